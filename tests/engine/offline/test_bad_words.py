"""bad_words: greedy and drawn answers avoid them, and are otherwise those of transformers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from loraplex import LLM, SamplingParams
from loraplex.engine.sampling.bad_words import BadWords
from loraplex.engine.text.bad_word_tokens import bad_word_tokens
from tests.checkpoints import make_checkpoint, reference_model

PROMPT = "The quick brown fox"
TOKENS = 24


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def llm(base: Path) -> Iterator[LLM]:
    with LLM(base, num_kv_blocks=64, adapter_memory=1 << 20, num_threads=1) as opened:
        yield opened


def generate(llm: LLM, *bad_words: str, temperature: float = 0.0, min_tokens: int = TOKENS) -> list[int]:
    params = SamplingParams(
        temperature=temperature, seed=3, max_tokens=TOKENS, min_tokens=min_tokens, bad_words=[*bad_words]
    )
    return llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0].token_ids


def word_of(llm: LLM, token_ids: list[int]) -> str | None:
    """Text that is read as just these tokens."""
    text = llm.tokenizer.decode(token_ids)
    return text if text.strip() and bad_word_tokens([text], llm.tokenizer)[0] == token_ids else None


@torch.inference_mode()
def with_transformers(base: Path, prompt: list[int], sequences: list[list[int]], eos: int) -> list[int]:
    """Greedy, with the rule spelled out for the whole output."""
    model, output = reference_model(base), list[int]()
    for _ in range(TOKENS):
        logits = model(input_ids=torch.tensor([prompt + output])).logits[0, -1].clone()
        logits[eos] = -torch.inf
        for ids in sequences:
            if len(ids) <= len(output) + 1 and output[len(output) - len(ids) + 1 :] == ids[:-1]:
                logits[ids[-1]] = -torch.inf
        output.append(int(logits.argmax()))
    return output


@pytest.mark.parametrize("length", [1, 2])
def test_answers_go_round_them_as_with_transformers(base: Path, llm: LLM, length: int) -> None:
    free = generate(llm)
    words = [word_of(llm, free[place : place + length]) for place in range(TOKENS - length)]
    chosen = [word for word in words if word is not None][:3]
    assert chosen, "the answer has words of this length"
    sequences = bad_word_tokens(chosen, llm.tokenizer)
    avoiding = generate(llm, *chosen)
    assert avoiding != free
    assert avoiding == with_transformers(base, llm.tokenizer.encode(PROMPT), sequences, eos=1)
    drawn = generate(llm, *chosen, temperature=1.5)
    for ids in sequences:
        assert all(drawn[place : place + len(ids)] != ids for place in range(TOKENS))


def test_other_requests_of_the_batch_are_not_touched(llm: LLM) -> None:
    free = generate(llm)
    word = next(word for place in range(8) if (word := word_of(llm, [free[place]])))
    fields = {"temperature": 0.0, "max_tokens": TOKENS, "min_tokens": TOKENS}
    params = [SamplingParams(**fields), SamplingParams(bad_words=word, **fields), SamplingParams(**fields)]  # type: ignore[arg-type]
    one, other, two = llm.generate([PROMPT] * 3, params, use_tqdm=False)
    assert one.outputs == two.outputs and one.outputs[0].token_ids == free != other.outputs[0].token_ids


def test_a_word_is_blocked_when_its_beginning_was_just_put_out() -> None:
    words = BadWords([[5], [1, 2, 3], [2, 4]])
    assert words.next_tokens([]) == (5,)
    assert words.next_tokens([1, 2]) == (5, 3, 4)
    assert words.next_tokens([2]) == (5, 4)
    assert words.next_tokens([1, 2, 9]) == (5,)
    assert not BadWords([])
