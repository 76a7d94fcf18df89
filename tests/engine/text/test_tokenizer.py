import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from transformers import AutoTokenizer

from loraplex.engine.text.tokenizer import Tokenizer
from tests.checkpoints import CHAT_TEMPLATE, make_tokenizer

TEXTS = ["", "Hello world", "  two  spaces\n\ttab", "Zürich 😀🎉 日本語", "<s>already there</s>", "a" * 300, "\x00\x7f"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("special", [True, False])
def test_ids_and_text_equal_those_of_transformers(folder: Path, text: str, special: bool) -> None:
    ours, theirs = Tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    ids = ours.encode(text, special)
    assert ids == theirs.encode(text, add_special_tokens=special)
    for skip in (True, False):
        assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("settings", [{"add_bos_token": True}, {"add_bos_token": False}, {"add_eos_token": True}])
def test_tokenizer_json_alone_says_what_surrounds_a_prompt_as_in_transformers(
    tmp_path: Path, settings: dict[str, bool]
) -> None:
    path = make_tokenizer(tmp_path) / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    assert Tokenizer(tmp_path).encode("hello") == AutoTokenizer.from_pretrained(tmp_path).encode("hello")


def test_facts_about_the_vocabulary(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    assert tokenizer.vocab_size == 300
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.eos_token_id == 1
    assert tokenizer.named_tokens == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    assert tokenizer.token(1) == "</s>" and tokenizer.token(300) is None


def test_the_chat_template_is_found_in_either_place(folder: Path, tmp_path: Path) -> None:
    assert Tokenizer(folder).chat_template == CHAT_TEMPLATE
    (make_tokenizer(tmp_path) / "chat_template.jinja").unlink()
    assert Tokenizer(tmp_path).chat_template is None
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"chat_template": [{"name": "default", "template": "old style"}]}))
    assert Tokenizer(tmp_path).chat_template == "old style" and Tokenizer(tmp_path).tool_template is None
    named = [{"name": name, "template": f"{name} style"} for name in ("default", "tool_use", "rag")]
    path.write_text(json.dumps({"chat_template": named}))
    assert (Tokenizer(tmp_path).chat_template, Tokenizer(tmp_path).tool_template) == ("default style", "tool_use style")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("in a file")
    assert Tokenizer(tmp_path).tool_template == "in a file"


def test_a_folder_without_a_fast_tokenizer_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokenizer\.json; save a fast tokenizer there"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="cannot be read as a tokenizer"):
        Tokenizer(tmp_path)


def test_importing_it_brings_neither_torch_nor_transformers() -> None:
    modules = ("text.tokenizer", "text.detokenizer", "offline.collector", "offline.llm", "model.config", "model.folder")
    imports = ", ".join(f"loraplex.engine.{module}" for module in modules)
    code = f"import sys, {imports}; sys.exit(bool({{'torch', 'transformers'}} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_pairs_are_cut_as_the_library_cuts_the_longest_first(tmp_path: Path) -> None:
    tokenizer = Tokenizer(make_tokenizer(tmp_path))
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for first, second in itertools.product((0, 1, 4, 9, 30), repeat=2):
        for most in (1, 2, 3, 7, 8, 12, 31, 80):
            library.enable_truncation(most)
            texts = "q" * first, "z" * second
            assert tokenizer.encode_pair(*texts, most) == library.encode(*texts).ids, (first, second, most)
