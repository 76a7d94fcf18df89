"""The whole engine with keys and values of 8 bits: tokens, prefix cache, figures, refusal."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from loraplex import LLM, SamplingParams
from loraplex.engine.config import EngineConfig
from loraplex.engine.kv_cache.prefix import root_hash
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.served import kv_cache_words
from loraplex.engine.offline.outputs import RequestOutput
from loraplex.engine.startup.kv_cache_size import EIGHT_BITS
from tests.checkpoints import make_adapter, make_checkpoint

PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0)
PROMPTS = [[7 + place * 13 % 300 for place in range(50)], [5, 6, 7], [9] * 33]
ADAPTERS = ["mine", None, "mine"]
LOGPROB_ERROR = {"fp8_e4m3": 0.15, "fp8_e5m2": 0.3, "int8": 0.04}
"""Root of the mean square, of a random model that no logit of which stands out."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its heads are padded to 64 and its decoder runs layer by layer: attention as other tests have compiled it."""
    shape = {"hidden_size": 56, "num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 56}
    return make_checkpoint(tmp_path_factory.mktemp("base"), **shape)


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter"), base, rank=4)


def open_llm(base: Path, adapter: Path, kv_cache_dtype: str) -> LLM:
    return LLM(
        base, {"mine": adapter}, kv_cache_dtype=kv_cache_dtype, kv_cache_memory=8 << 20, adapter_memory=4 << 20,
        num_threads=1,
    )  # fmt: skip


def prefix_root(llm: LLM) -> bytes:
    """What the keys of all blocks begin with."""
    return root_hash("", llm.llm_engine.engine.core.scheduler.limits.fingerprint)


def judge(llm: LLM, answers: list[RequestOutput]) -> torch.Tensor:
    """Log-probabilities that `llm` gives the tokens of these answers."""
    texts = [[*answer.prompt_token_ids, *answer.outputs[0].token_ids] for answer in answers]
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    found: list[float] = []
    for output in llm.generate(texts, params, adapter=ADAPTERS, use_tqdm=False):
        assert output.prompt_logprobs is not None
        found += [next(iter(entry.values())).logprob for entry in output.prompt_logprobs[1:] if entry]
    return torch.tensor(found)


@dataclass(frozen=True)
class Exact:
    answers: list[RequestOutput]
    logprobs: torch.Tensor
    blocks: int
    prefix_root: bytes


@pytest.fixture(scope="module")
def exact(base: Path, adapter: Path) -> Exact:
    """With keys and values in float32."""
    with open_llm(base, adapter, "auto") as llm:
        answers = llm.generate(PROMPTS, PARAMS, adapter=ADAPTERS, use_tqdm=False)
        assert llm.info.kv_cache_dtype == "float32"
        assert kv_cache_words(ModelConfig.from_folder(base), EngineConfig(model=str(base))) == "float32"
        return Exact(answers, judge(llm, answers), llm.info.num_blocks, prefix_root(llm))


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_answers_keep_close_and_repeat(base: Path, adapter: Path, name: str, exact: Exact) -> None:
    with open_llm(base, adapter, name) as llm:
        answers, again = (llm.generate(PROMPTS, PARAMS, adapter=ADAPTERS, use_tqdm=False) for _ in range(2))
        error = (judge(llm, exact.answers) - exact.logprobs).square().mean().sqrt()
        info, root = llm.info, prefix_root(llm)
    assert [one.outputs[0].token_ids for one in answers] == [one.outputs[0].token_ids for one in again]
    assert [one.num_cached_tokens for one in (*answers, *again)] == [0, 0, 0, 48, 0, 32]
    assert 0 < error < LOGPROB_ERROR[name]
    assert root != exact.prefix_root
    assert (
        info.kv_cache_dtype
        == name
        == kv_cache_words(ModelConfig.from_folder(base), EngineConfig(model=str(base), kv_cache_dtype=name))
    )
    assert info.kv_cache_bytes <= 8 << 20
    assert info.num_blocks / exact.blocks == pytest.approx(56 * 4 / (56 + 2), abs=0.1)
    assert info.num_blocks / info.bfloat16_blocks == pytest.approx(56 * 2 / (56 + 2), abs=0.1)


def test_an_unknown_dtype_is_refused_in_words(base: Path) -> None:
    with pytest.raises(ValueError, match="kv_cache_dtype 'fp4' is not supported; use auto, fp8_e4m3, fp8_e5m2, int8"):
        LLM(base, kv_cache_dtype="fp4")
