"""A family's tokenizer that transformers opens and saves again is the base's, though written in another way."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, LlamaConfig, Qwen2Config

from loraplex.engine.text.tokenizer import Tokenizer as OurTokenizer
from loraplex.web.adapter_tokenizers.parts import differing_parts
from loraplex.web.adapter_tokenizers.read import Base, read_tokenizer
from tests.checkpoints import CORPUS

from .test_adapter_tokenizers import files_in

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
NO_OFFSETS: dict[str, bool] = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def train(tokenizer: Tokenizer, *special: str) -> None:
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])


def make_qwen(folder: Path) -> None:
    """As Qwen2.5 has it on the hub."""
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(**NO_OFFSETS)])
    tokenizer.decoder = decoders.ByteLevel(**NO_OFFSETS)
    train(tokenizer, "<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    tokenizer.post_processor = processors.ByteLevel(**NO_OFFSETS)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    settings |= {"bos_token": None, "add_bos_token": False, "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    Qwen2Config().save_pretrained(folder)


def make_llama3(folder: Path) -> None:
    """As Llama 3 has it on the hub."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
    begin = ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
    template = processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[begin])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "{{ messages }}"}
    settings |= {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    LlamaConfig().save_pretrained(folder)


@pytest.mark.parametrize(("make", "rewritten"), [(make_qwen, True), (make_llama3, False)])
def test_a_tokenizer_that_was_saved_again_is_the_same(make: Any, rewritten: bool, tmp_path: Path) -> None:
    base, again = tmp_path / "base", tmp_path / "again"
    base.mkdir()
    make(base)
    compared = Base(base, OurTokenizer(base), 400)
    theirs = AutoTokenizer.from_pretrained(base)
    theirs.save_pretrained(again)
    saved, hub = (json.loads((folder / "tokenizer.json").read_text()) for folder in (again, base))
    assert (saved != hub) is rewritten
    assert read_tokenizer(files_in(again), compared) is None
    size = compared.tokenizer.vocab_size
    theirs.add_tokens(["<x>"])
    theirs.save_pretrained(again)
    found = read_tokenizer(files_in(again), compared)
    assert found is not None
    assert [(token.id, token.content) for token in found.added_tokens] == [(size, "<x>")]


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
TEMPLATE = {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}
MODEL: dict[str, Any] = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}


@pytest.mark.parametrize(
    ("part", "one", "other", "same"),
    [
        ("pre_tokenizer", BYTES, BYTES | {"trim_offsets": False}, True),
        ("pre_tokenizer", BYTES, BYTES | {"use_regex": False}, False),
        ("pre_tokenizer", BYTES, BYTES | {"add_prefix_space": True}, False),
        ("pre_tokenizer", BYTES, {"type": "Sequence", "pretokenizers": [BYTES]}, True),
        ("pre_tokenizer", BYTES, {"type": "Sequence", "pretokenizers": [BYTES, BYTES]}, False),
        ("pre_tokenizer", BYTES, None, False),
        ("post_processor", BYTES, None, True),
        ("post_processor", TEMPLATE, {"type": "Sequence", "processors": [BYTES, TEMPLATE]}, True),
        ("post_processor", TEMPLATE, {"type": "Sequence", "processors": [BYTES]}, False),
        ("decoder", BYTES, {"type": "ByteLevel"}, True),
        ("decoder", BYTES, {"type": "Fuse"}, False),
        ("normalizer", {"type": "NFC"}, None, False),
        ("normalizer", {"type": "NFC"}, {"type": "NFKC"}, False),
        ("model", MODEL, MODEL | {"merges": ["a b"], "unk_token": None, "end_of_word_suffix": ""}, True),
        ("model", MODEL, MODEL | {"merges": ["ab"]}, False),
        ("model", MODEL, MODEL | {"ignore_merges": True}, False),
        ("model", MODEL, MODEL | {"continuing_subword_prefix": "#"}, False),
        ("model", MODEL, MODEL | {"vocab": {"a": 0, "b": 1, "ab": 3}}, False),
        ("model", MODEL, MODEL | {"vocab": [["a", 0]]}, False),
    ],
)
def test_what_counts_as_a_difference(part: str, one: Any, other: Any, same: bool) -> None:
    assert differing_parts({part: one}, {part: other}) == differing_parts({part: other}, {part: one})
    assert (differing_parts({part: one}, {part: other}) == []) is same
