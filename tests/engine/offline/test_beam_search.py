"""LLM.beam_search beside transformers' generate(num_beams=...)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from loraplex import LLM, BeamSearchParams, LoRARequest, VLLMValidationError
from tests.checkpoints import make_adapter, make_checkpoint, reference_model

PROMPTS = ([5, 9, 11, 30, 4], list(range(3, 40)), [7])
Rule = tuple[float, bool | Literal["never"]]
RULES: list[Rule] = [(1.0, False), (0.0, "never"), (2.0, True), (-1.0, False), (1.5, "never")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter"), base, rank=4)


@pytest.fixture(scope="module")
def llm(base: Path, adapter: Path) -> Iterator[LLM]:
    with LLM(
        base, {"mine": adapter}, dtype="float32", num_kv_blocks=512, adapter_memory=4 << 20, num_threads=1
    ) as opened:
        yield opened


def reference(
    model: Any, prompt: list[int], params: BeamSearchParams, ends: list[int]
) -> list[tuple[list[int], float]]:
    found = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=params.beam_width,
        num_return_sequences=params.beam_width,
        max_new_tokens=params.max_tokens,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        eos_token_id=ends or None,
        pad_token_id=0,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    outputs = []
    for sequence, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        output = sequence[len(prompt) :]
        end = next((place + 1 for place, token in enumerate(output) if token in ends), params.max_tokens)
        outputs.append((output[:end], score))
    return outputs


def frequent_tokens(model: Any, count: int) -> list[int]:
    """Tokens that this model likes to say: as ends they make beams finish early."""
    said = model.generate(
        torch.tensor([PROMPTS[0]]), max_new_tokens=30, min_new_tokens=30, do_sample=False, num_beams=3, pad_token_id=0
    )[0].tolist()
    return sorted(set(said), key=said.count, reverse=True)[:count]


@pytest.mark.parametrize("width", [2, 3, 4, 8])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("name", [None, "mine"])
def test_outputs_and_scores_are_those_of_transformers(
    llm: LLM, base: Path, adapter: Path, width: int, rule: Rule, name: str | None
) -> None:
    model = reference_model(base, {"mine": adapter} if name else None)
    ends = frequent_tokens(model, 2)
    params = BeamSearchParams(
        beam_width=width,
        max_tokens=12,
        length_penalty=rule[0],
        early_stopping=rule[1],
        ignore_eos=True,
        stop_token_ids=ends,
    )
    lora = LoRARequest("mine", 1, str(adapter)) if name else None
    together = llm.beam_search([list(prompt) for prompt in PROMPTS], params, lora)
    for prompt, output in zip(PROMPTS, together, strict=True):
        expected = reference(model, list(prompt), params, ends)
        found = [sequence.tokens[len(prompt) :] for sequence in output.sequences]
        assert found == [tokens for tokens, _ in expected]
        scores = [it.cum_logprob / len(tokens) ** rule[0] for it, tokens in zip(output.sequences, found, strict=True)]
        torch.testing.assert_close(torch.tensor(scores), torch.tensor([s for _, s in expected]), rtol=1e-5, atol=1e-4)


def test_some_of_them_end_at_a_stop_token_and_some_at_the_length(llm: LLM, base: Path) -> None:
    ends = frequent_tokens(reference_model(base), 2)
    params = BeamSearchParams(beam_width=4, max_tokens=12, ignore_eos=True, stop_token_ids=ends)
    outputs = [sequence for output in llm.beam_search(PROMPTS, params) for sequence in output.sequences]
    assert {output.finish_reason for output in outputs} == {"stop", "length"}
    for output in outputs:
        assert (output.stop_reason in ends) == (output.finish_reason == "stop")
        assert len(output.logprobs) <= 12 and output.cum_logprob < 0


def test_a_text_prompt_comes_back_with_its_outputs_as_text(llm: LLM) -> None:
    [output] = llm.beam_search("hello", BeamSearchParams(beam_width=2, max_tokens=5, ignore_eos=True))
    for sequence in output.sequences:
        assert sequence.orig_prompt == "hello"
        assert sequence.text == llm.get_tokenizer().decode(sequence.tokens)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 100}, "beam_width"),
        ({"beam_width": "3"}, "beam_width"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"length_penalty": "1"}, "length_penalty"),
        ({"early_stopping": "soon"}, "early_stopping"),
    ],
)
def test_wrong_parameters_are_refused_as_they_are_made(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(VLLMValidationError) as refused:
        BeamSearchParams(**({"beam_width": 2, "max_tokens": 4} | fields))
    assert refused.value.parameter == named


def test_a_search_that_cannot_run_names_its_prompt(llm: LLM) -> None:
    with pytest.raises(ValueError, match="prompt 1: "):
        llm.beam_search(["a", [10**6]], BeamSearchParams(beam_width=2, max_tokens=4))
