"""Forms with the texts of added tokens in them: `<think>` is text like all others, `<s>` never the special token."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from llguidance import LLMatcher
from tokenizers import AddedToken, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from loraplex import LLM, SamplingParams
from loraplex.engine.constraints.vocabulary import Vocabulary, read_vocabulary
from loraplex.engine.structured_outputs import StructuredOutputs
from tests.checkpoints import make_checkpoint

ADDED = ["<think>", "</think>", "[INST]"]
TAGS = {"type": "object", "properties": {"<s>": {"enum": ["<think>", "</s>"]}}, "required": ["<s>"]}
FORMS: list[tuple[dict[str, Any], str]] = [
    ({"regex": "<think>a{3}</think>9"}, "<think>aaa</think>9"),
    ({"choice": ["<think>yes"]}, "<think>yes"),
    ({"regex": "<s>a{3}</s>"}, "<s>aaa</s>"),
    ({"regex": r"\[INST\]<pad>"}, "[INST]<pad>"),
    ({"json": {"const": "<think></s>"}}, '"<think></s>"'),
    ({"grammar": 'start: "<think>" /<s>/ // <pad>\n'}, "<think><s>"),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_checkpoint(tmp_path_factory.mktemp("base"), "qwen2", max_position_embeddings=256)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer.add_tokens(ADDED)
    tokenizer.save_pretrained(folder)
    return folder


def ids_of(folder: Path) -> dict[str, int]:
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    return {token["content"]: token["id"] for token in added}


def test_what_must_be_said_is_said(base: Path) -> None:
    forms = [form for form, _ in FORMS] + [{"json": TAGS | {"additionalProperties": False}}]
    params = [
        SamplingParams(temperature=0.0, max_tokens=60, structured_outputs=StructuredOutputs(**form)) for form in forms
    ]
    ids = ids_of(base)
    special, own = {ids[text] for text in ("<s>", "</s>", "<pad>")}, {ids[text] for text in ADDED}
    with LLM(base, num_kv_blocks=256, num_threads=1) as llm:
        *told, tags = [it.outputs[0] for it in llm.generate(["hello"] * len(params), params, use_tqdm=False)]
    assert [answer.text for answer in told] == [text for _, text in FORMS]
    assert all(answer.finish_reason == "stop" and answer.token_ids[-1] in special for answer in [*told, tags])
    assert json.loads(tags.text)["<s>"] in ("<think>", "</s>")
    written = {token for answer in [*told, tags] for token in answer.token_ids[:-1]}
    assert not written & special and own <= written


def test_a_token_that_is_wanted_is_drawn(base: Path) -> None:
    """One token or the same text in others: bias chooses."""
    token = ids_of(base)["<think>"]
    params = SamplingParams(
        max_tokens=20, logit_bias={token: 100.0}, structured_outputs=StructuredOutputs(choice=["<think>", "zz"])
    )
    with LLM(base, num_kv_blocks=64, num_threads=1) as llm:
        (answer,) = llm.generate(["hello"], params, use_tqdm=False)[0].outputs
    assert answer.token_ids[0] == token and answer.text == "<think>"


def next_tokens(vocabulary: Vocabulary, grammar: str) -> set[int]:
    matcher = LLMatcher(vocabulary.tokenizer, LLMatcher.grammar_from_lark(vocabulary.by_ids(grammar)), log_level=0)
    mask = matcher.compute_bitmask()
    assert not matcher.is_error(), matcher.get_error()
    return {token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1}


def test_grammars_name_any_added_token(base: Path) -> None:
    vocabulary, ids = read_vocabulary(base, []), ids_of(base)
    grammar = 'start: <s> | <think> | "<pad>" // <pad>\n'
    assert vocabulary.by_ids(grammar) == f'start: <[{ids["<s>"]}]> | <[{ids["<think>"]}]> | "<pad>" // <pad>\n'
    both = f"start: <[{ids['<think>']}]> /[^<]*/ <[{ids['</think>']}]>"
    assert vocabulary.by_ids("start: <think> /[^<]*/ </think>") == both
    for name in ("<s>", "<think>", "<pad>"):
        assert next_tokens(vocabulary, f"start: {name}") == {ids[name]}
    text = next_tokens(vocabulary, 'start: "<think>"')
    assert text == {ids["<think>"]}
    unknown = LLMatcher.grammar_from_lark(vocabulary.by_ids("start: <nothing>"))
    assert "nothing" in LLMatcher(vocabulary.tokenizer, unknown, log_level=0).get_error()


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_special_tokens_that_the_model_itself_knows(tmp_path: Path, kind: str) -> None:
    """As in vocabularies that sentencepiece made: ids stay, and no text is cut into special tokens."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"<>/sabc", "ab"]
    model: Any = (
        models.BPE({piece: at for at, piece in enumerate(pieces)}, [("a", "b")], unk_token="<unk>", byte_fallback=True)
        if kind == "bpe"
        else models.Unigram([(piece, 0.0 if at < 3 else -1.0) for at, piece in enumerate(pieces)], 0, True)
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in pieces[:3]])
    tokenizer.add_tokens([AddedToken("<t>")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    vocabulary = read_vocabulary(tmp_path, [])
    assert vocabulary.end == len(pieces) + 1 and vocabulary.added["<s>"] == 1
    for text in ("<s>ab</s>", "<unk><t>c"):
        ids = vocabulary.tokenizer.tokenize_str(text)
        assert not {0, 1, 2} & set(ids) and vocabulary.tokenizer.decode_bytes(ids) == text.encode()
        matcher = LLMatcher(vocabulary.tokenizer, LLMatcher.grammar_from_lark(f'start: "{text}"'), log_level=0)
        while not matcher.is_accepting():
            mask = matcher.compute_bitmask()
            token = next(token for token in range(8 * len(mask)) if mask[token // 8] >> token % 8 & 1)
            assert token > 2 and matcher.consume_token(token), matcher.get_error()
