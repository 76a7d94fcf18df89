"""What tokenizer files of an adapter may say, and everything that they may not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from loraplex.engine.model.config import ModelConfig, base_signature
from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.base import ServedBase
from loraplex.registry.files.adapter_tokenizer import AdapterTokenizer
from loraplex.web.adapter_tokenizers import check
from loraplex.web.adapter_tokenizers.added_tokens import MAX_CHARS, MAX_TOKENS, as_library_token
from loraplex.web.adapter_tokenizers.check import Terms, check_tokenizer
from loraplex.web.adapter_tokenizers.files import SETTINGS_FILE, TEMPLATE_FILE, TOKENIZER_FILE, TOKENIZER_LIMITS
from loraplex.web.adapter_tokenizers.read import Base, read_tokenizer
from loraplex.web.adapter_tokenizers.unfit import Unfit

from .tokenizer_folders import ADDED, OWN_TEMPLATE, edit_json, save_tokenizer

Document = dict[str, Any]
ON, OFF_CHOSEN, OFF_BESIDE = Terms(True, True), Terms(False, True), Terms(False, False)


@pytest.fixture(scope="module")
def base(checkpoint: Path) -> Base:
    return Base(checkpoint, Tokenizer(checkpoint), ModelConfig.from_folder(checkpoint).vocab_size)


@pytest.fixture(scope="module")
def served(checkpoint: Path, base: Base) -> ServedBase:
    return ServedBase("tiny", base_signature(checkpoint), "", checkpoint)


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """As a trainer leaves it that added three tokens."""
    save_tokenizer(checkpoint, tmp_path / "own", eos_token="<|end|>")
    return tmp_path / "own"


def files_in(folder: Path) -> dict[str, Path]:
    return {name: folder / name for name in TOKENIZER_LIMITS if (folder / name).is_file()}


def token(token_id: int, content: str, **flags: bool) -> Document:
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": token_id, "content": content, **off, **flags}


def test_what_a_trainer_saves_is_taken(base: Base, folder: Path) -> None:
    found = read_tokenizer(files_in(folder), base)
    assert found is not None
    assert [(token.id, token.content, token.special) for token in found.added_tokens] == [
        (300, ADDED[0], True),
        (301, ADDED[1], True),
        (302, ADDED[2], False),
    ]
    assert found.chat_template == OWN_TEMPLATE
    assert found.named_tokens == {"eos_token": "<|end|>"}


def test_an_extended_tokenizer_is_transformers_own(base: Base, folder: Path) -> None:
    """The one that is built of the base's parts and the declared tokens, against the file that was never opened."""
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    found = read_tokenizer(files_in(folder), base)
    assert found is not None
    ours = base.tokenizer.extended([as_library_token(token) for token in found.added_tokens], found.named_tokens)
    before = base.tokenizer.encode("<call> Zürich")
    for text in ("plain words", "<|turn|>USER: hi<|end|>", "a<call>b <call> Zürich 😀</s>", "<|turn<|end|>|>"):
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        for skip in (False, True):
            assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.special_ids == base.tokenizer.special_ids | {300, 301}
    assert ours.eos_token_id == 301
    assert base.tokenizer.encode("<call> Zürich") == before and base.tokenizer.token_id("<call>") is None


@pytest.mark.parametrize("names", [[TOKENIZER_FILE], [SETTINGS_FILE], [TEMPLATE_FILE], list(TOKENIZER_LIMITS)])
def test_the_bases_own_files_are_nothing(base: Base, names: list[str]) -> None:
    assert read_tokenizer({name: base.folder / name for name in names}, base) is None


def test_what_trainers_change_for_their_batches_is_nothing(base: Base, checkpoint: Path, tmp_path: Path) -> None:
    """Truncation, padding, another pad token, older spellings of the same, a line break after the template."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.backend_tokenizer.enable_truncation(64)
    tokenizer.backend_tokenizer.enable_padding(pad_id=1, pad_token="</s>")
    tokenizer.save_pretrained(tmp_path)
    document = json.loads((tmp_path / TOKENIZER_FILE).read_text())
    document["truncation"] = {"direction": "Right", "max_length": 64, "strategy": "LongestFirst", "stride": 0}
    document["model"]["merges"] = [" ".join(pair) for pair in document["model"]["merges"]]
    del document["model"]["ignore_merges"], document["model"]["byte_fallback"]
    (tmp_path / TOKENIZER_FILE).write_text(json.dumps(document, indent=1))
    template = (tmp_path / TEMPLATE_FILE).read_text()
    (tmp_path / TEMPLATE_FILE).write_text(template + "\n")
    assert read_tokenizer(files_in(tmp_path), base) is None


def with_token(*entries: Document) -> Callable[[Document], None]:
    return lambda document: document["added_tokens"].extend(entries)


def with_part(part: str, value: Any) -> Callable[[Document], None]:
    return lambda document: document.update({part: value})


def in_model(key: str, value: Any) -> Callable[[Document], None]:
    return lambda document: document["model"].update({key: value})


SLOW_REGEX = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}
SPLIT = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
HOSTILE: dict[str, tuple[Callable[[Document], None], str]] = {
    "a normalizer with a slow expression": (with_part("normalizer", SLOW_REGEX), "a different normalizer"),
    "a pre-tokenizer with a slow expression": (with_part("pre_tokenizer", SPLIT), "a different pre_tokenizer"),
    "no pre-tokenizer": (with_part("pre_tokenizer", None), "a different pre_tokenizer"),
    "another post-processor": (with_part("post_processor", None), "a different post_processor"),
    "another decoder": (with_part("decoder", {"type": "Fuse"}), "a different decoder"),
    "another vocabulary": (in_model("vocab", {"a": 0}), "a different model"),
    "another vocabulary entry": (lambda document: document["model"]["vocab"].update(new=300), "a different model"),
    "fewer merges": (lambda document: document["model"]["merges"].pop(), "a different model"),
    "merges of another kind": (in_model("merges", [[1, 2, 3]]), "a different model"),
    "a model that is none": (with_part("model", []), "a different model"),
    "several at once": (
        lambda document: document.update(normalizer=SLOW_REGEX, decoder=None),
        "a different normalizer and decoder",
    ),
    "an unknown member": (with_part("code", "import os"), "unknown member 'code'"),
    "a gap": (with_token(token(305, "<a>")), "has id 305, but would get 300"),
    "an id of the vocabulary": (with_token(token(42, "<a>")), "has id 42, but would get 300"),
    "a negative id": (with_token(token(-1, "<a>")), "has id -1"),
    "a huge id": (with_token(token(2**40, "<a>")), f"has id {2**40}"),
    "ids in the wrong order": (with_token(token(301, "<a>"), token(301, "<b>")), "same id"),
    "the base's id again": (with_token(token(1, "<a>")), "same id"),
    "the base's text again": (with_token(token(300, "</s>")), "is the base's token 1 already"),
    "a text of the vocabulary": (with_token(token(300, "Ġa")), "already"),
    "a text twice": (with_token(token(300, "<a>"), token(301, "<a>")), "twice"),
    "no text": (with_token(token(300, "")), "0 characters"),
    "a long text": (with_token(token(300, "x" * 257)), "257 characters"),
    "many tokens": (
        with_token(*(token(300 + n, f"<{n}>") for n in range(MAX_TOKENS + 1))),
        f"at most {MAX_TOKENS:,}",
    ),
    "many characters": (
        with_token(*(token(300 + n, f"<{n:0200}>") for n in range(400))),
        f"at most {MAX_CHARS:,}",
    ),
    "a flag that is a number": (with_token(token(300, "<a>") | {"special": 1}), "cannot be read"),
    "an id that is a text": (with_token(token(300, "<a>") | {"id": "300"}), "cannot be read"),
    "an unknown flag": (with_token(token(300, "<a>") | {"regex": ".*"}), "cannot be read"),
    "tokens that are no list": (with_part("added_tokens", {"a": 1}), "cannot be read"),
    "a removed token": (lambda document: document["added_tokens"].pop(0), "'<s>' is missing"),
    "a changed token": (lambda document: document["added_tokens"][0].update(lstrip=True), "'<s>' was changed"),
    "a renamed token": (lambda document: document["added_tokens"][0].update(content="<S>"), "'<s>' was changed"),
    "a token that is special no more": (lambda document: document["added_tokens"][1].update(special=False), "changed"),
    "rows that nobody has": (
        with_token(*(token(300 + n, f"<{n}>") for n in range(21))),
        "rows for 320 token ids",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tokenizer_is_refused_in_words(base: Base, tmp_path: Path, name: str) -> None:
    change, reason = HOSTILE[name]
    document = json.loads((base.folder / TOKENIZER_FILE).read_text())
    change(document)
    (tmp_path / TOKENIZER_FILE).write_text(json.dumps(document))
    with pytest.raises(Unfit) as refusal:
        read_tokenizer(files_in(tmp_path), base)
    assert reason in str(refusal.value)
    assert refusal.value.remedy


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cannot be read"),
        (b"\x80\x04pickle", "cannot be read"),
        (b'{"added_tokens": [], "added_tokens": []}', "appears twice"),
        (b'{"model": ' + b"[" * 100_000, "nested"),
        (b'{"model": NaN}', "NaN"),
        (b'{"model": "\xff"}', "UTF-8"),
        (b'{"model": "\\ud800"}', "surrogate"),
        (b"[]", "not a JSON object"),
    ],
)
def test_bytes_that_are_no_tokenizer(base: Base, tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / TOKENIZER_FILE).write_bytes(data)
    with pytest.raises(Unfit, match=reason):
        read_tokenizer(files_in(tmp_path), base)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"eos_token": "<none>"}, "'<none>', which is not a token"),
        ({"eos_token": 5}, "not text"),
        ({"bos_token": "x" * 300}, "not text of 1 to 256"),
        ({"chat_template": 5}, "not text"),
        ({"chat_template": "x" * 200_000}, "200,000 characters"),
        ({"added_tokens_decoder": {"300": {"content": "<new>"}}}, "lists a token with id '300'"),
    ],
)
def test_settings_that_cannot_be_used(base: Base, tmp_path: Path, changes: Document, reason: str) -> None:
    shutil.copy(base.folder / SETTINGS_FILE, tmp_path)
    edit_json(tmp_path / SETTINGS_FILE, **changes)
    with pytest.raises(Unfit, match=reason):
        read_tokenizer(files_in(tmp_path), base)


@pytest.mark.parametrize("data", [b"\xff", b"a\0b"])
def test_templates_that_are_no_text(base: Base, tmp_path: Path, data: bytes) -> None:
    (tmp_path / TEMPLATE_FILE).write_bytes(data)
    with pytest.raises(Unfit, match=TEMPLATE_FILE):
        read_tokenizer(files_in(tmp_path), base)


def test_a_template_in_the_settings_and_a_named_one(base: Base, tmp_path: Path) -> None:
    (tmp_path / SETTINGS_FILE).write_text(json.dumps({"chat_template": OWN_TEMPLATE}))
    assert read_tokenizer(files_in(tmp_path), base) == AdapterTokenizer(chat_template=OWN_TEMPLATE)
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": OWN_TEMPLATE}]
    (tmp_path / SETTINGS_FILE).write_text(json.dumps({"chat_template": named}))
    assert read_tokenizer(files_in(tmp_path), base) == AdapterTokenizer(chat_template=OWN_TEMPLATE)
    (tmp_path / TEMPLATE_FILE).write_text("{{ messages[0].content }}")
    found = read_tokenizer(files_in(tmp_path), base)
    assert found == AdapterTokenizer(chat_template="{{ messages[0].content }}")


def test_rows_that_the_adapter_brings(base: Base, tmp_path: Path) -> None:
    document = json.loads((base.folder / TOKENIZER_FILE).read_text())
    document["added_tokens"] += [token(300 + n, f"<{n}>") for n in range(21)]
    (tmp_path / TOKENIZER_FILE).write_text(json.dumps(document))
    found = read_tokenizer(files_in(tmp_path), Base(base.folder, base.tokenizer, 321))
    assert found is not None and len(found.added_tokens) == 21


def test_the_switch_decides(served: ServedBase, folder: Path) -> None:
    """In the child process, as uploads are checked."""
    found, finding = check_tokenizer(files_in(folder), served, 0, ON)
    assert (finding.level, finding.message) == ("pass", "3 added tokens, own chat template, answers end with <|end|>")
    assert found is not None and found.chat_template == OWN_TEMPLATE
    for terms, level in ((OFF_CHOSEN, "fail"), (OFF_BESIDE, "warn")):
        found, finding = check_tokenizer(files_in(folder), served, 0, terms)
        assert (found, finding.level) == (None, level)
        assert "3 added tokens, own chat template" in finding.message
        assert "LORAPLEX_ADAPTER_TOKENIZERS=true" in str(finding.remedy)


@pytest.mark.parametrize("terms", [OFF_CHOSEN, OFF_BESIDE])
def test_the_bases_own_files_are_never_a_problem(served: ServedBase, checkpoint: Path, terms: Terms) -> None:
    found, finding = check_tokenizer(files_in(checkpoint), served, 0, terms)
    assert (found, finding.level) == (None, "pass")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for %}", "broken in line 1"),
        ("{{ raise_exception('never') }}", "never"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{# nothing #}", "as empty text"),
    ],
)
def test_a_broken_template_is_refused_at_upload(served: ServedBase, tmp_path: Path, template: str, reason: str) -> None:
    (tmp_path / TEMPLATE_FILE).write_text(template)
    found, finding = check_tokenizer(files_in(tmp_path), served, 0, ON)
    assert (found, finding.level) == (None, "fail")
    assert reason in finding.message


def test_a_file_that_would_cost_too_much_is_not_parsed(base: Base, tmp_path: Path) -> None:
    """Sixty megabytes of empty lists would be gigabytes as objects."""
    (tmp_path / TOKENIZER_FILE).write_bytes(b'{"model": [' + b"[]," * (20 << 20) + b"[]]}")
    with pytest.raises(Unfit, match="much larger than the base's"):
        read_tokenizer(files_in(tmp_path), base)


def test_a_child_that_fails_is_a_refusal(served: ServedBase, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MEMORY", 16 << 20)
    found, finding = check_tokenizer(files_in(folder), served, 0, ON)
    assert (found, finding.level) == (None, "fail")
    assert "the files crashed" in finding.message
