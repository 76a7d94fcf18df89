"""The figures against the engine's own logits and transformers + peft, and what is refused."""

import json
import math
import shutil
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from loraplex import LLM, SamplingParams
from loraplex.engine.certify.certificate import Certificate, CertifyJob, Figures, prompts_digest
from loraplex.engine.certify.prompts import GENERATED, MOST_TOKENS, generated_prompts, read_prompts
from loraplex.engine.certify.run import certify
from loraplex.engine.certify.served import ServedModel
from loraplex.engine.config import EngineConfig
from loraplex.engine.model.config import ModelConfig, base_signature
from loraplex.engine.model.layers import DecoderLayer
from loraplex.engine.quantize.options import QuantizeOptions
from loraplex.engine.quantize.run import quantize_checkpoint
from loraplex.engine.sampling.sampler import Sampler
from loraplex.engine.startup.scales_file import ScalesFile, write_scales_file
from loraplex.engine.text.tokenizer import Tokenizer
from tests.checkpoints import make_adapter, make_checkpoint, make_ia3, reference_model
from tests.engine.model.test_kinds import offsets

TEXTS = ["The quick brown fox jumps over the lazy dog.", "Select name from users;", "1 2 3 " * 30]
QUANTIZED: dict[str, Any] = {"quantization": "int4", "head_quantization": "int8", "kv_cache_dtype": "fp8_e4m3"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"), "qwen2", max_position_embeddings=128)


@pytest.fixture(scope="module")
def dora(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("dora"), base, use_dora=True)


def job_of(
    model: Path,
    *,
    reference: str | None = None,
    adapter: str | None = None,
    prompts: list[str] | None = None,
    **engine: Any,
) -> CertifyJob:
    return CertifyJob(EngineConfig(model=str(model), **engine), reference, adapter, prompts=prompts)


def served(job: CertifyJob, **changes: Any) -> CertifyJob:
    """The same job of a base that is served otherwise."""
    return replace(job, engine=msgspec.structs.replace(job.engine, **changes))


def prompts(base: Path) -> list[list[int]]:
    return [Tokenizer(base).encode(text)[:127] for text in TEXTS]


@torch.inference_mode()
def reference_logits(base: Path, adapter: Path | None) -> torch.Tensor:
    model = reference_model(base, {} if adapter is None else {"some": adapter})
    made = prompts(base)
    answers = [model(input_ids=torch.tensor([prompt]), **offsets(model, prompt, 0)) for prompt in made]
    return torch.cat([answer.logits[0, :-1] for answer in answers])


def served_logits(model: Path, adapter: Path | None, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> torch.Tensor:
    """What the engine computes before each of the prompts' tokens but the first, in its compiled step."""
    seen: list[torch.Tensor] = []
    judge = Sampler.prompt_logprobs

    def recording(self: Sampler, logits: torch.Tensor, token_ids: list[int], count: int) -> Any:
        seen.append(logits.clone())
        return judge(self, logits, token_ids, count)

    adapters = {} if adapter is None else {"some": adapter}
    with monkeypatch.context() as patched, LLM(model, adapters, num_kv_blocks=64, **settings) as llm:
        patched.setattr(Sampler, "prompt_logprobs", recording)
        params = SamplingParams(max_tokens=0, prompt_logprobs=0)
        for prompt in prompts(model):
            llm.generate([prompt], params, adapter="some" if adapters else None, use_tqdm=False)
    return torch.cat(seen)


def figures(reference: torch.Tensor, served: torch.Tensor, base: Path) -> Figures:
    """By the formulas, position by position."""
    expected, found = (logits.double().log_softmax(-1) for logits in (reference, served))
    divergences = [float((p.exp() * (p - q)).sum()) for p, q in zip(expected, found, strict=True)]
    targets = [token for prompt in prompts(base) for token in prompt[1:]]
    perplexities = [
        math.exp(-sum(float(row[token]) for row, token in zip(rows, targets, strict=True)) / len(targets))
        for rows in (expected, found)
    ]
    agreed = sum(int(p.argmax()) == int(q.argmax()) for p, q in zip(expected, found, strict=True))
    mean = sum(divergences) / len(targets)
    return Figures(agreed / len(targets), mean, max(divergences), perplexities[1], perplexities[1] - perplexities[0])


def assert_near(found: Figures, expected: Figures) -> None:
    assert found.top1_agreement == expected.top1_agreement
    assert found.mean_kl == pytest.approx(expected.mean_kl, rel=1e-3, abs=1e-8)
    assert found.max_kl == pytest.approx(expected.max_kl, rel=5e-3, abs=1e-8)
    assert found.perplexity == pytest.approx(expected.perplexity, rel=1e-5)
    assert found.perplexity_delta == pytest.approx(expected.perplexity_delta, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("adapted", [False, True], ids=["base", "dora"])
def test_each_rounding_alone_and_both_are_what_the_engine_computes(
    base: Path, dora: Path, adapted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = dora if adapted else None
    job = job_of(base, adapter=str(dora) if adapted else None, prompts=TEXTS, **QUANTIZED)
    certificate, reference = certify(job), reference_logits(base, adapter)
    weights = {name: QUANTIZED[name] for name in ("quantization", "head_quantization")}
    cache = {"kv_cache_dtype": QUANTIZED["kv_cache_dtype"]}
    for found, settings in (
        (certificate.weights, weights),
        (certificate.kv_cache, cache),
        (certificate.both, QUANTIZED),
    ):
        served = served_logits(base, adapter, monkeypatch, **settings)
        assert_near(found, figures(reference, served, base))
    assert certificate.kv_cache.mean_kl < certificate.weights.mean_kl
    assert certificate.num_prompts == len(TEXTS) and certificate.num_tokens == len(reference)
    assert certificate.both.perplexity - certificate.both.perplexity_delta == pytest.approx(
        certificate.reference_perplexity
    )


def test_awq_and_static_scales_are_certified_as_they_are_served(
    base: Path, dora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, file = ModelConfig.from_folder(base), tmp_path / "kv_scales.safetensors"
    scale = torch.full((config.attention.num_kv_heads,), 2.0**-9)  # half of what the keys need
    names = [f"model.layers.{layer}.self_attn.{part}_scale" for layer in range(config.num_layers) for part in "kv"]
    tensors = {name: scale.clone() for name in names}
    write_scales_file(file, ScalesFile(tensors, base_signature(base).fingerprint, "fp8_e4m3", ()))
    settings: dict[str, Any] = {"quantization": "awq", "weights_cache": str(tmp_path / "kept")}
    settings |= {"kv_cache_dtype": "fp8_e4m3", "kv_scales_file": str(file)}
    certificate = certify(job_of(base, adapter=str(dora), prompts=TEXTS, **settings))
    served = served_logits(base, dora, monkeypatch, **settings)
    assert_near(certificate.both, figures(reference_logits(base, dora), served, base))
    assert certificate.coverage.quantization == "awq at the first start"
    own = certify(job_of(base, prompts=TEXTS[:1], **(settings | {"kv_cache_scales": "dynamic"})))
    static = certify(job_of(base, prompts=TEXTS[:1], **settings))
    assert len(own.coverage.changes(static.coverage)) == 1 and own.kv_cache != static.kv_cache
    others = certify(job_of(base, prompts=TEXTS[:1], **(settings | {"kv_cache_dtype": "int8"})))
    assert others.coverage.kv_cache_dtype == "int8", "scales made for another dtype are not used"

    def replace_file(share: float, stage: str) -> None:
        if share > 0:
            write_scales_file(file, ScalesFile(tensors, base_signature(base).fingerprint, "fp8_e4m3", ("a" * 64,)))

    with pytest.raises(ValueError, match="have changed meanwhile"):
        certify(job_of(base, prompts=TEXTS[:1], **settings), replace_file)


def test_a_layer_goes_before_the_next_comes(base: Path, dora: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each of the two models that compute as served: the memory is that of one layer, however many there are."""
    loaded, load = list[tuple[ServedModel, weakref.ref[Any]]](), ServedModel.layer

    def loading(model: ServedModel, layer: int) -> DecoderLayer:
        assert not [one for one, linear in loaded if one is model and linear() is not None], layer
        made = load(model, layer)
        loaded.append((model, weakref.ref(made.feed_forward.output.method)))
        return made

    monkeypatch.setattr(ServedModel, "layer", loading)
    certify(job_of(base, adapter=str(dora), prompts=TEXTS[:1], **QUANTIZED))
    assert len(loaded) >= 2 * 2 * 2, "for the adapter and for the prompts"


def test_without_rounding_there_is_no_difference(base: Path, dora: Path) -> None:
    certificate = certify(job_of(base, adapter=str(dora), prompts=TEXTS))
    assert certificate.coverage.quantization == "" and certificate.coverage.kv_cache_dtype == "float32"
    for found in (certificate.weights, certificate.kv_cache, certificate.both):
        assert found.top1_agreement == 1 and found.max_kl < 1e-6 and abs(found.perplexity_delta) < 1e-3


def test_a_folded_checkpoint_against_the_model_it_was_made_from(
    base: Path, dora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = QuantizeOptions(scheme="awq", group_size=32, calibration_tokens=1536)
    quantize_checkpoint(base, tmp_path / "awq", options)
    job = job_of(tmp_path / "awq", reference=str(base), adapter=str(dora), prompts=TEXTS, kv_cache_dtype="int8")
    certificate = certify(job)
    served = served_logits(tmp_path / "awq", dora, monkeypatch, kv_cache_dtype="int8")
    assert_near(certificate.both, figures(reference_logits(base, dora), served, base))
    assert certificate.kv_cache.max_kl < certificate.weights.max_kl
    assert certificate.coverage.base != certificate.coverage.reference
    assert "compressed-tensors" in certificate.coverage.quantization


def test_rounding_to_another_dtype_is_said_and_measured(base: Path) -> None:
    certificate = certify(job_of(base, prompts=TEXTS, dtype="bfloat16"))
    assert certificate.coverage.quantization == "stored as bfloat16"
    assert certificate.coverage.kv_cache_dtype == "bfloat16"
    assert 1e-7 < certificate.weights.mean_kl < 1e-2 and certificate.kv_cache.mean_kl < 1e-2


def test_generated_prompts_are_the_same_every_time_and_within_bounds(base: Path) -> None:
    assert generated_prompts() == generated_prompts() and len(set(generated_prompts())) == GENERATED
    first, second = (certify(job_of(base, **QUANTIZED)) for _ in range(2))
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)
    assert first.coverage.prompts == prompts_digest(generated_prompts())
    assert first.num_prompts == GENERATED and first.num_tokens <= GENERATED * 126
    assert Certificate.from_json(json.loads(json.dumps(first.to_json()))) == first


def test_every_part_that_changes_is_covered(
    base: Path, dora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(base, adapter=str(dora), prompts=TEXTS[:1])
    other_base = make_checkpoint(tmp_path / "other", "qwen2", seed=9, max_position_embeddings=128)
    other_adapter = make_ia3(tmp_path / "ia3", base)
    jobs = {
        "base": replace(served(job, model=str(other_base)), reference=str(base)),
        "reference": replace(job, reference=str(other_base)),
        "quantization": served(job, quantization="int8"),
        "kv_cache_dtype": served(job, kv_cache_dtype="int8"),
        "adapter": replace(job, adapter=str(other_adapter)),
        "prompts": replace(job, prompts=TEXTS[:2]),
    }
    mine = certify(job).coverage
    for part, changed in jobs.items():
        theirs = certify(changed).coverage
        assert len(mine.changes(theirs)) == 1 and getattr(mine, part) != getattr(theirs, part), part
        assert mine.digest() != theirs.digest()
    for name, before, after in (
        ("config.json", '"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-05'),
        ("tokenizer_config.json", "{", "{ "),
    ):
        folder = tmp_path / f"changed {name}"
        shutil.copytree(base, folder)
        text = (folder / name).read_text()
        assert before in text
        (folder / name).write_text(text.replace(before, after, 1))
        theirs = certify(replace(served(job, model=str(folder)), reference=str(folder))).coverage
        assert mine.base != theirs.base and mine.reference != theirs.reference, name
    monkeypatch.setattr("loraplex.quant.schemes.arithmetic.ARITHMETIC", "abacus")
    assert mine.changes(certify(job).coverage) == [f"the processor's arithmetic ({mine.arithmetic}, now abacus)"]
    monkeypatch.undo()
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    assert mine.changes(certify(job).coverage) == [f"torch ({mine.runtime['torch']}, now 9.9.9)"]


def test_files_that_change_meanwhile_make_no_certificate(base: Path, tmp_path: Path) -> None:
    """Its figures would be of neither of the two models."""
    folder = tmp_path / "copy"
    shutil.copytree(base, folder)
    for job in (job_of(folder, prompts=TEXTS[:1]), job_of(base, reference=str(folder), prompts=TEXTS[:1])):
        certify(job)

        def write(share: float, stage: str) -> None:
            if share > 0.5:
                (folder / "config.json").write_bytes((folder / "config.json").read_bytes() + b" ")

        with pytest.raises(ValueError, match="model's files have changed meanwhile; certify again"):
            certify(job, write)


def test_what_cannot_be_certified_is_refused_in_words(base: Path, dora: Path, tmp_path: Path) -> None:
    quantize_checkpoint(base, tmp_path / "fp8", QuantizeOptions(scheme="fp8", calibration_tokens=1536))
    wider = make_checkpoint(tmp_path / "wider", "qwen2", intermediate_size=128, num_hidden_layers=3)
    other_family = make_checkpoint(tmp_path / "llama", "llama")
    misfit = make_adapter(tmp_path / "misfit", wider)
    job = job_of(base, prompts=TEXTS)
    for refused, words in (
        (served(job, model=str(tmp_path / "fp8")), "quantized already .*give that one's folder .*--reference"),
        (replace(job, reference=str(tmp_path / "fp8")), "is quantized itself"),
        (
            replace(job, reference=str(wider)),
            r"feed_forward.inputs\[0\].outputs is 128 instead of 96, and so are .*the number of layers",
        ),
        (replace(job, reference=str(other_family)), "architecture is 'LlamaForCausalLM' instead of 'Qwen2ForCausalLM'"),
        (replace(job, reference=str(tmp_path)), "no config.json"),
        (served(job, quantization="int5"), "'int5' is not supported"),
        (served(job, kv_cache_dtype="fp4"), "'fp4' is not supported"),
        (replace(job, adapter=str(misfit)), "misfit"),
        (replace(job, adapter=str(tmp_path)), "has no adapter_config.json"),
        (replace(job, adapter=str(dora), adapter_digest="0" * 64), "have changed since"),
        (replace(job, prompts=[]), "none of the prompts"),
        (replace(job, prompts=["x"] * 65), "65 prompts .* at most 64"),
    ):
        with pytest.raises(ValueError, match=words):
            certify(refused)


def test_an_activated_adapter_acts_from_the_middle_of_prompts(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = make_adapter(tmp_path / "alora", base, alora_invocation_tokens=[310, 311])
    [first, *_] = made = read_prompts(TEXTS, Tokenizer(base), 320, 127, (310, 311))
    assert 0 < first.start < len(first.token_ids) - 2 and first.token_ids[first.start :][:2] == [310, 311]
    found = certify(job_of(base, adapter=str(adapter), prompts=TEXTS, **QUANTIZED))
    monkeypatch.setattr(f"{__name__}.prompts", lambda base: [prompt.token_ids for prompt in made])
    served = served_logits(base, adapter, monkeypatch, **QUANTIZED)
    assert_near(found.both, figures(reference_logits(base, adapter), served, base))


def test_prompts_with_invocation_tokens_stay_as_they_are(base: Path) -> None:
    tokenizer = Tokenizer(base)
    [prompt] = read_prompts(TEXTS[:1], tokenizer, 320, 127)
    sought = prompt.token_ids[4:6]
    assert read_prompts(TEXTS[:1], tokenizer, 320, 127, sought) == [replace(prompt, start=4)]
    with pytest.raises(ValueError, match="no room"):
        read_prompts(TEXTS[:1], tokenizer, 320, 8, list(range(300, 308)))


def test_prompts_are_cut_and_unknown_tokens_refused(base: Path) -> None:
    tokenizer = Tokenizer(base)
    [prompt] = read_prompts(["word " * 2000, ""], tokenizer, 320, 10**6)
    assert len(prompt.token_ids) == MOST_TOKENS and prompt.start == 0
    with pytest.raises(ValueError, match="the model knows only 100"):
        read_prompts(TEXTS, tokenizer, 100, 128)


def test_a_model_that_overflows_gets_no_figures(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_checkpoint(tmp_path / "base")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][:] = 1e38
    tensors["lm_head.weight"] *= 1e3
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="infinite or undefined"):
        certify(job_of(folder, prompts=TEXTS))
