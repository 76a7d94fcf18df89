import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from loraplex.engine.sampling_params import SamplingParams
from loraplex.engine.text.detokenizer import MOST_PENDING, Detokenizer
from loraplex.engine.text.tokenizer import Tokenizer
from tests.checkpoints import make_tokenizer

WORDS = ["Zürich", "😀🎉", "日本語", " the quick", " brown fox", "\n", "🏳️‍🌈", "a", " b"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(make_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """In the manner of Llama 2: words begin with a block, unknown characters fall back to bytes."""
    folder = tmp_path_factory.mktemp("sentencepiece")
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz"]
    backend = Backend(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


def stream(detokenizer: Detokenizer, pieces: list[list[int]]) -> tuple[list[str], str | None]:
    deltas = []
    for index, piece in enumerate(pieces):
        delta, stopped_by = detokenizer.push(piece, final=index == len(pieces) - 1)
        deltas.append(delta)
        if stopped_by is not None:
            return deltas, stopped_by
    return deltas, None


def cut_in_pieces(ids: list[int], sizes: list[int]) -> list[list[int]]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(ids[at : at + size])
        at += size
    return [*pieces, ids[at:]]


@settings(max_examples=300)
@given(
    ids=st.lists(st.integers(0, 310), max_size=40), sizes=st.lists(st.integers(0, 4), max_size=20), skip=st.booleans()
)
def test_deltas_of_any_tokens_add_up_to_the_text(
    tokenizer: Tokenizer, ids: list[int], sizes: list[int], skip: bool
) -> None:
    detokenizer = Detokenizer(tokenizer, SamplingParams(skip_special_tokens=skip))
    deltas, _ = stream(detokenizer, cut_in_pieces(ids, sizes))
    assert "".join(deltas) == detokenizer.text == tokenizer.decode(ids, skip)


@settings(max_examples=300)
@given(
    words=st.lists(st.sampled_from(WORDS), max_size=12),
    stops=st.lists(st.sampled_from(["fox", "ck b", "😀", "🎉日", "\n", "ürich the", "語"]), max_size=3),
    include=st.booleans(),
)
def test_the_text_ends_at_the_first_stop_string(
    tokenizer: Tokenizer, words: list[str], stops: list[str], include: bool
) -> None:
    text = "".join(words)
    params = SamplingParams(stop=stops, include_stop_str_in_output=include)
    detokenizer = Detokenizer(tokenizer, params)
    deltas, stopped_by = stream(detokenizer, [[token] for token in tokenizer.encode(text, False)] + [[]])
    matches = [(text.find(stop), stop) for stop in stops if stop in text]
    if not matches:
        assert (stopped_by, "".join(deltas)) == (None, text)
        return
    at, stop = min(matches, key=lambda match: match[0])
    assert stopped_by == stop
    assert "".join(deltas) == detokenizer.text == text[: at + len(stop) if include else at]


def test_a_character_is_shown_only_when_it_is_complete(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("日", False)
    detokenizer = Detokenizer(tokenizer, SamplingParams())
    assert [detokenizer.push([token], False)[0] for token in ids] == ["", "", "日"]


def test_a_possible_stop_string_is_held_back_and_released(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop=["###"]))
    hash_id, letter = tokenizer.encode("#", False), tokenizer.encode("a", False)
    assert detokenizer.push(letter + hash_id, False) == ("a", None)
    assert detokenizer.push(hash_id, False) == ("", None)
    assert detokenizer.push(letter, False) == ("##a", None)
    assert detokenizer.push(hash_id, True) == ("#", None)


def test_tokens_after_a_stop_string_are_not_taken(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a#b", False)
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop=["#"]))
    assert detokenizer.push(ids, False) == ("a", "#")
    assert detokenizer.num_tokens == 2


def test_stop_strings_wait_for_min_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("#a#a#", False)
    detokenizer = Detokenizer(tokenizer, SamplingParams(stop=["#"], min_tokens=3))
    assert stream(detokenizer, [[token] for token in ids]) == (["#", "a", ""], "#")
    assert detokenizer.num_tokens == 3


def test_the_token_that_ended_the_choice_is_no_text_of_it(tokenizer: Tokenizer) -> None:
    shown, ender = tokenizer.encode("a", False), tokenizer.encode("b", False)
    assert Detokenizer(tokenizer, SamplingParams()).push(shown + ender, True, ended_by_token=True)[0] == "a"
    params = SamplingParams(include_stop_str_in_output=True)
    assert Detokenizer(tokenizer, params).push(shown + ender, True, ended_by_token=True)[0] == "ab"


def test_endless_broken_bytes_are_shown_after_a_while(tokenizer: Tokenizer) -> None:
    continuation = tokenizer.backend.token_to_id("Ģ")
    detokenizer = Detokenizer(tokenizer, SamplingParams())
    deltas = [detokenizer.push([continuation], False)[0] for _ in range(3 * MOST_PENDING)]
    assert "".join(deltas) == "\ufffd" * (3 * MOST_PENDING)


def test_the_first_word_after_a_prompt_keeps_its_space(sentencepiece: Tokenizer) -> None:
    prompt, words = sentencepiece.encode("hello"), [sentencepiece.backend.token_to_id(p) for p in ("▁", "w", "x")]
    detokenizer = Detokenizer(sentencepiece, SamplingParams(), prompt)
    assert "".join(stream(detokenizer, [[token] for token in words])[0]) == " wx"


@settings(max_examples=200)
@given(text=st.text("abc dé😀日", max_size=30).map(str.strip))
def test_byte_fallback_adds_up_for_real_text(sentencepiece: Tokenizer, text: str) -> None:
    ids = sentencepiece.encode(text)
    detokenizer = Detokenizer(sentencepiece, SamplingParams())
    assert "".join(stream(detokenizer, [[token] for token in ids] + [[]])[0]) == sentencepiece.decode(ids)


@settings(max_examples=200)
@given(ids=st.lists(st.integers(0, 290), max_size=40))
def test_broken_byte_fallback_never_fails_nor_takes_text_back(sentencepiece: Tokenizer, ids: list[int]) -> None:
    detokenizer = Detokenizer(sentencepiece, SamplingParams())
    deltas, _ = stream(detokenizer, [[token] for token in ids] + [[]])
    assert "".join(deltas) == detokenizer.text


@settings(max_examples=200)
@given(ids=st.lists(st.integers(0, 310), max_size=40), sizes=st.lists(st.integers(0, 4), max_size=20))
def test_special_tokens_that_must_be_seen_are_and_no_others(
    tokenizer: Tokenizer, ids: list[int], sizes: list[int]
) -> None:
    shown = Detokenizer(tokenizer, SamplingParams(), shown={2})
    deltas, _ = stream(shown, cut_in_pieces(ids, sizes))
    assert "".join(deltas) == tokenizer.decode([id for id in ids if id not in (0, 1)], skip_special_tokens=False)
