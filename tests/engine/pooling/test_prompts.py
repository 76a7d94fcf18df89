"""default_prompt_name of config_sentence_transformers.json: texts are embedded as sentence-transformers embeds them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer

from loraplex import LLM
from tests.checkpoints import make_checkpoint

from .classifiers import make_classifier
from .encoders import make_encoder
from .modules_file import write_modules

SETTINGS: dict[str, Any] = {"adapter_memory": 4 << 20, "num_threads": 1, "max_num_seqs": 8}
TEXTS = ["The quick brown fox", "", "again and again", "Zürich 😀"]


def write_prompts(folder: Path, default: str | None, **prompts: str | None) -> None:
    said = {"prompts": prompts, "default_prompt_name": default, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))


@pytest.mark.parametrize("family", ["bert", "llama"])
@pytest.mark.parametrize("default", ["passage", "none", None])
def test_it_is_put_before_each_text(family: str, default: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    base = make_encoder(folder, "bert") if family == "bert" else make_checkpoint(folder)
    write_modules(base, "mean_tokens" if family == "bert" else "lasttoken", normalized=True)
    write_prompts(base, default, query="select name: ", passage="words and words ", none=None)
    reference = SentenceTransformer(str(base), device="cpu")
    expected = torch.tensor(reference.encode(TEXTS))
    with LLM(base, **SETTINGS, **({} if family == "bert" else {"num_kv_blocks": 64})) as llm:
        assert llm.info.pooling is not None and ("put before each text" in llm.info.pooling.source) is (
            default == "passage"
        )
        outputs = llm.embed(TEXTS, use_tqdm=False)
        given = llm.embed([{"prompt_token_ids": output.prompt_token_ids} for output in outputs], use_tqdm=False)
        tokens = llm.encode(TEXTS[:1], pooling_task="token_embed", use_tqdm=False)
        scores = [output.outputs.score for output in llm.score(TEXTS[0], TEXTS[2:], use_tqdm=False)]
    found = torch.tensor([output.outputs.embedding for output in outputs])
    assert torch.allclose(found, expected, atol=1e-5)
    assert [output.outputs for output in given] == [output.outputs for output in outputs], "token ids are as they are"
    assert tokens[0].prompt_token_ids == outputs[0].prompt_token_ids
    assert scores == pytest.approx((expected[2:] @ expected[0]).tolist(), abs=1e-5)
    if default == "passage":
        assert not torch.allclose(found, torch.tensor(reference.encode(TEXTS, prompt="")), atol=1e-2)


@pytest.mark.parametrize(
    ("default", "pooling", "words"),
    [
        ("other", {}, "default_prompt_name 'other' in config_sentence_transformers.json is none of its prompts"),
        ("passage", {"include_prompt": False}, "include_prompt false in 1_Pooling beside a default_prompt_name"),
    ],
)
def test_what_is_not_served_is_said(default: str, pooling: dict[str, Any], words: str, tmp_path: Path) -> None:
    base = make_encoder(tmp_path / "base", "bert")
    write_modules(base, "mean_tokens", **pooling)
    write_prompts(base, default, passage="words ")
    with pytest.raises(ValueError, match=words):
        LLM(base, **SETTINGS)


def test_classes_are_of_the_text_alone(tmp_path: Path) -> None:
    base = make_classifier(tmp_path / "base")
    with LLM(base, **SETTINGS, num_kv_blocks=64) as llm:
        plain = llm.classify(TEXTS[:1], use_tqdm=False)
    write_modules(base, "mean_tokens")
    write_prompts(base, "passage", passage="words and words ")
    with LLM(base, **SETTINGS, num_kv_blocks=64) as llm:
        assert llm.info.pooling is not None and llm.info.pooling.prompt == "words and words "
        assert llm.classify(TEXTS[:1], use_tqdm=False)[0].outputs == plain[0].outputs
