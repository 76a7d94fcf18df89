"""sentence_bert_config.json of newer sentence-transformers: what it says of texts is followed, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer

from loraplex import LLM
from tests.checkpoints import make_checkpoint

from .encoders import make_encoder
from .modules_file import write_modules

SETTINGS: dict[str, Any] = {"adapter_memory": 4 << 20, "num_threads": 1, "max_num_seqs": 8}
FORWARD = {"method": "forward", "method_output_name": "last_hidden_state"}
FILE = "sentence_bert_config.json"


def test_a_folder_that_sentence_transformers_saved(tmp_path: Path) -> None:
    base = make_encoder(tmp_path / "base", "bert")
    write_modules(base, "mean_tokens", normalized=True)
    reference, saved = SentenceTransformer(str(base), device="cpu"), tmp_path / "saved"
    reference.save_pretrained(str(saved), create_model_card=False)
    assert json.loads((saved / FILE).read_text())["modality_config"] == {"text": FORWARD}
    with LLM(saved, **SETTINGS) as llm:
        [output] = llm.embed("The quick brown fox", use_tqdm=False)
    assert output.outputs.embedding == pytest.approx(reference.encode("The quick brown fox").tolist(), abs=1e-5)


def test_a_chat_model_that_sentence_transformers_saved_is_refused(tmp_path: Path) -> None:
    """It renders each text by the chat template, of which no other file tells. The folder has no lm_head."""
    base, saved = make_checkpoint(tmp_path / "base", tie_word_embeddings=False), tmp_path / "saved"
    SentenceTransformer(str(base), device="cpu", local_files_only=True).save_pretrained(
        str(saved), create_model_card=False
    )
    with pytest.raises(ValueError, match=r"has 'message': each text would go .* 'text' alone"):
        LLM(saved, **SETTINGS, num_kv_blocks=64)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"modality_config": {"text": FORWARD, "message": FORWARD}}, "has 'message'"),
        ({"modality_config": {"image": FORWARD}}, "has no 'text'"),
        ({"modality_config": {"text": {"method": "get_text_features"}}}, "method 'get_text_features' of 'text'"),
        (
            {"modality_config": {"text": FORWARD | {"method_output_name": "pooler_output"}}},
            "method_output_name 'pool",
        ),
        ({"modality_config": {"text": FORWARD | {"method_output_name": ["hidden_states", 2]}}}, "method_output_name"),
        ({"modality_config": ["text"]}, "must hold an object for each modality"),
        ({"processing_kwargs": {"text": {"max_length": 8}}}, "text of processing_kwargs in sentence_bert_config.json"),
        ({"query_length": 8}, "query_length in sentence_bert_config.json"),
        ({"do_lower_case": True}, "do_lower_case in sentence_bert_config.json"),
    ],
)
def test_what_is_not_served_is_named_at_the_start(said: dict[str, Any], words: str, tmp_path: Path) -> None:
    base = make_encoder(tmp_path / "base", "bert")
    write_modules(base, "mean_tokens")
    (base / FILE).write_text(json.dumps(said))
    with pytest.raises(ValueError, match=words):
        LLM(base, **SETTINGS)


def test_a_model_that_generates_still_does(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base")
    write_modules(base, "lasttoken")
    (base / FILE).write_text(json.dumps({"modality_config": {"text": FORWARD, "message": FORWARD}}))
    with LLM(base, **SETTINGS, num_kv_blocks=64) as llm:
        assert llm.generate("a", use_tqdm=False)[0].outputs[0].token_ids
        with pytest.raises(ValueError, match=r"makes no embeddings: modality_config .* has 'message'"):
            llm.embed("a", use_tqdm=False)


def test_what_only_chats_are_told_of_changes_no_text(tmp_path: Path) -> None:
    base = make_encoder(tmp_path / "base", "bert")
    write_modules(base, "mean_tokens")
    (base / FILE).write_text(json.dumps({"max_seq_length": 64, "do_lower_case": False, "processing_kwargs": {}}))
    with LLM(base, **SETTINGS) as llm:
        assert llm.info.pooling is not None and llm.info.max_model_len == 64
