from typing import Any

import pytest
import torch

from loraplex.engine.batch import Batch
from loraplex.engine.kv_cache.prefix import BlockKey
from loraplex.engine.model.decoder import Ends
from loraplex.engine.protocol import AdapterRef, GenerateRequest
from loraplex.engine.runner.runner import ModelRunner
from loraplex.engine.sampling.sampler import Sampler
from loraplex.engine.sampling_params import SamplingParams
from loraplex.engine.scheduler.plan import Kept, Scheduled, StepPlan
from loraplex.engine.scheduler.sequence import Request, Sequence
from loraplex.lora.apply.batch import PageTable

VOCABULARY = 10
EPOCHS = {"first": 7, "second": 9}


class EchoDecoder:
    """Its logits favour the token id plus one, so that what was drawn tells which row was read."""

    batch: Batch

    def forward_with_ends(self, batch: Batch, cache: Any) -> tuple[torch.Tensor, Ends]:
        self.batch = batch
        wanted = (batch.token_ids[batch.sample_rows] + 1) % VOCABULARY
        nothing = torch.empty(len(batch.token_ids), 0)
        return torch.nn.functional.one_hot(wanted, VOCABULARY).float() * 10, (nothing, nothing)


class RecordingCache:
    def __init__(self) -> None:
        self.copies: list[tuple[int, int]] = []

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        self.copies += pairs


class Slots:
    newest_epoch = 0

    def __init__(self) -> None:
        empty = torch.empty(0)
        self.table = PageTable(empty, empty, empty, empty, {})

    def slot_of(self, digest: str, epoch: int) -> int:
        return {"first": 0, "second": 3}[digest]


@pytest.fixture
def decoder() -> EchoDecoder:
    return EchoDecoder()


@pytest.fixture
def cache() -> RecordingCache:
    return RecordingCache()


@pytest.fixture
def runner(decoder: EchoDecoder, cache: RecordingCache) -> ModelRunner:
    return ModelRunner(decoder, cache, Slots(), Sampler(), block_size=4)  # type: ignore[arg-type]


def sequence(token_ids: list[int], blocks: list[int], *adapters: AdapterRef, **params: Any) -> Sequence:
    message = GenerateRequest(
        request_id="r",
        prompt_token_ids=token_ids,
        params=SamplingParams(temperature=0.0, **params),
        adapters=list(adapters),
    )
    request = Request(message, 0, 0.0, max_length=99, eos_token_ids=frozenset(), fingerprint="f")
    request.epochs = tuple([EPOCHS.get(adapter.digest, 0) for adapter in adapters])
    request.sequences[0].blocks = blocks
    return request.sequences[0]


def test_a_mixed_step_becomes_one_batch(runner: ModelRunner, decoder: EchoDecoder, cache: RecordingCache) -> None:
    decode = Scheduled(sequence([1, 2, 3, 4, 5, 6], [7, 2]), start=5, count=1, sample=True)
    chunk = Scheduled(sequence([8, 7, 6, 5, 4, 3, 2], [3, 9, 1]), start=2, count=4, sample=False)
    prompt = Scheduled(sequence([3, 1], [5]), start=0, count=2, sample=True)
    result = runner.submit(StepPlan([decode, chunk, prompt], copies=[(7, 8), (8, 9)])).result()
    batch = decoder.batch
    assert batch.token_ids.tolist() == [6, 6, 5, 4, 3, 3, 1]
    assert batch.positions.tolist() == [5, 2, 3, 4, 5, 0, 1]
    assert batch.slot_mapping.tolist() == [9, 14, 15, 36, 37, 20, 21]
    assert batch.query_starts.tolist() == [0, 1, 5, 7]
    assert batch.context_lengths.tolist() == [6, 6, 2]
    assert batch.block_tables.tolist() == [[7, 2, 0], [3, 9, 1], [5, 0, 0]]
    assert batch.sample_rows.tolist() == [0, 6]
    assert batch.lora is None
    assert result.sampled.token_ids == [7, 2]
    assert cache.copies == [(7, 8), (8, 9)]


class RecordingStates:
    def __init__(self) -> None:
        self.copies: list[tuple[int, int]] = []

    def copy_states(self, pairs: list[tuple[int, int]]) -> None:
        self.copies += pairs


def test_states_are_told_by_slot_with_the_tokens_after_which_they_are_kept(
    decoder: EchoDecoder, cache: RecordingCache
) -> None:
    states, key = RecordingStates(), BlockKey(b"", b"")
    runner = ModelRunner(decoder, cache, Slots(), Sampler(), 4, states)  # type: ignore[arg-type]
    decode = Scheduled(sequence([1, 2, 3, 4, 5, 6], [7, 2]), start=5, count=1, sample=True)
    kept = [Kept(4, 8, key), Kept(6, 3, key)]
    chunk = Scheduled(sequence([8, 7, 6, 5, 4, 3, 2], [3, 9, 1]), start=2, count=4, sample=False, kept=kept)
    prompt = Scheduled(sequence([3, 1], [5]), start=0, count=2, sample=True, kept=[Kept(1, 9, key)])
    for item, slot in ((decode, 5), (chunk, 1), (prompt, 6)):
        item.sequence.state = slot
    runner.submit(StepPlan([decode, chunk, prompt], state_copies=[(7, 6)])).result()
    found = decoder.batch.states
    assert found is not None and states.copies == [(7, 6)]
    assert found.slots.tolist() == [5, 1, 6]
    assert found.kept_starts.tolist() == [0, 0, 2, 3]
    assert found.kept_tokens.tolist() == [2, 4, 5] and found.kept_slots.tolist() == [8, 3, 9]
    for tensor in (found.slots, found.kept_starts, found.kept_tokens, found.kept_slots):
        assert tensor.dtype == torch.int32 and tensor.is_contiguous()


def test_dtypes_are_those_of_the_contract(runner: ModelRunner, decoder: EchoDecoder) -> None:
    runner.submit(StepPlan([Scheduled(sequence([1, 2], [1]), 0, 2, True)])).result()
    batch = decoder.batch
    longs = (batch.token_ids, batch.positions, batch.slot_mapping, batch.sample_rows)
    assert {tensor.dtype for tensor in longs} == {torch.int64}
    assert {t.dtype for t in (batch.query_starts, batch.context_lengths, batch.block_tables)} == {torch.int32}


def test_each_token_carries_its_adapters_slot_and_scale(runner: ModelRunner, decoder: EchoDecoder) -> None:
    items = [
        Scheduled(sequence([1, 2], [1], AdapterRef("second", 0.5)), 0, 2, True),
        Scheduled(sequence([1], [2]), 0, 1, True),
        Scheduled(sequence([1], [3], AdapterRef("first")), 0, 1, True),
    ]
    runner.submit(StepPlan(items)).result()
    lora = decoder.batch.lora
    assert lora is not None
    assert lora.token_slot.tolist() == [[3], [3], [-1], [0]]
    assert lora.sorted_tokens.tolist() == [3, 0, 1]
    assert lora.scales.tolist() == [1.0, 0.5, 0.5]


def test_a_sum_of_adapters_is_one_round_each(runner: ModelRunner, decoder: EchoDecoder) -> None:
    both = [AdapterRef("second", 0.5), AdapterRef("first", -2.0)]
    items = [
        Scheduled(sequence([1, 2], [1], *both), 0, 2, True),
        Scheduled(sequence([1], [2], AdapterRef("first")), 0, 1, True),
    ]
    runner.submit(StepPlan(items)).result()
    lora = decoder.batch.lora
    assert lora is not None
    assert lora.token_slot.tolist() == [[3, 0], [3, 0], [0, -1]]
    assert lora.sorted_tokens.tolist() == [2, 0, 1, 0, 1] and lora.scales.tolist() == [1.0, 0.5, 0.5, -2.0, -2.0]
    assert lora.segment_slots.tolist() == [0, 3, 0] and lora.segment_starts.tolist() == [0, 1, 3, 5]
    assert lora.round_starts.tolist() == [0, 2, 3]


def test_an_adapter_acts_from_its_first_token_on(runner: ModelRunner, decoder: EchoDecoder) -> None:
    """Before it, on it and after it; and each adapter of a sum from its own."""
    late = sequence([1, 2, 3, 4, 5], [1], AdapterRef("second", 0.5))
    both = sequence([1, 2, 3, 4], [2], AdapterRef("second"), AdapterRef("first"))
    late.request.starts, both.request.starts = (2,), (3, 1)
    chunks = [Scheduled(late, 1, 3, False), Scheduled(sequence([1], [3], AdapterRef("first")), 0, 1, True)]
    runner.submit(StepPlan(chunks)).result()
    assert decoder.batch.lora is not None
    assert decoder.batch.lora.token_slot.tolist() == [[-1], [3], [3], [0]]
    runner.submit(StepPlan([Scheduled(both, 0, 4, True), Scheduled(late, 0, 2, False)])).result()
    assert decoder.batch.lora.token_slot.tolist() == [[-1, -1], [-1, 0], [-1, 0], [3, 0], [-1, -1], [-1, -1]]
    assert decoder.batch.lora.round_starts.tolist() == [0, 1, 2]
    runner.submit(StepPlan([Scheduled(both, 0, 3, False)])).result()
    assert decoder.batch.lora.segment_slots.tolist() == [0] and decoder.batch.lora.round_starts.tolist() == [0, 1]
    runner.submit(StepPlan([Scheduled(late, 0, 2, False), Scheduled(both, 0, 1, False)])).result()
    assert decoder.batch.lora is None


def test_prompt_logprobs_are_those_of_the_tokens_that_follow(runner: ModelRunner) -> None:
    judged = Scheduled(sequence([1, 2, 5, 6], [1], prompt_logprobs=1), 0, 3, False)
    plain = Scheduled(sequence([4], [2]), 0, 1, True)
    result = runner.submit(StepPlan([judged, plain])).result()
    entries = result.prompt_logprobs[0]
    assert [entry.token_id for entry in entries] == [2, 5, 6]
    assert [entry.rank for entry in entries] == [1, 2, 1]
    assert [entry.top[0][0] for entry in entries] == [2, 3, 6]
    assert result.sampled.token_ids == [5]


def test_a_step_that_draws_nothing_needs_no_logits(runner: ModelRunner, decoder: EchoDecoder) -> None:
    result = runner.submit(StepPlan([Scheduled(sequence([1, 2, 3], [1]), 0, 2, False)])).result()
    assert decoder.batch.sample_rows.tolist() == []
    assert result.sampled.token_ids == []
