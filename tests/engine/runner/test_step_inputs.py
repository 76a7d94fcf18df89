"""The arrays of a step: padded, sent at once, at addresses that stay."""

import random
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from loraplex.engine.device.device_time import DeviceTime
from loraplex.engine.device.host_transfer import HostTransfer
from loraplex.engine.device.staging import ALIGNMENT, Staging
from loraplex.engine.device.stream import Graph, Launch
from loraplex.engine.kernels.cuda.placeholders import resolve_reference
from loraplex.engine.kernels.cuda.sampling.layout import IDLE, RECORD
from loraplex.engine.kv_cache.prefix import BlockKey
from loraplex.engine.protocol import AdapterRef
from loraplex.engine.runner.cuda_runner import CudaRunner
from loraplex.engine.runner.graph_pool import PATIENCE, GraphKey, GraphPool
from loraplex.engine.runner.step_inputs import NO_RECORDS, NOT_WRITTEN, StepInputs
from loraplex.engine.runner.step_layout import judged
from loraplex.engine.sampling.cuda.sampler import RowNeeds
from loraplex.engine.scheduler.plan import Kept, Scheduled, StepPlan
from loraplex.lora.apply.batch import PageTable

from ..virtual_stream import VirtualStream
from .test_runner import sequence


class Slots:
    def __init__(self) -> None:
        self.newest_epoch = self.asked = 0
        slots = torch.zeros(4, 1, 1, dtype=torch.int64)
        self.table = PageTable(torch.zeros(4), slots, slots.int(), slots.float(), {})

    def slot_of(self, digest: str, epoch: int) -> int:
        self.asked += 1
        return {"first": 0, "second": 3}[digest]


@pytest.fixture
def stream() -> VirtualStream:
    return VirtualStream(random.Random(1))


@pytest.fixture
def inputs(stream: VirtualStream) -> StepInputs:
    table = Slots().table
    return StepInputs(table, stream, tokens=12, sequences=6, blocks=5, block_size=4, rounds=2)


def decode(token_ids: list[int], blocks: list[int], *adapters: AdapterRef) -> Scheduled:
    return Scheduled(sequence(token_ids, blocks, *adapters), len(token_ids) - 1, 1, sample=True)


def test_a_decode_step_is_padded_to_the_ladder(inputs: StepInputs, stream: VirtualStream) -> None:
    shape = inputs.write([decode([1, 2, 3, 4, 5], [7, 2]), decode([6], [3]), decode([8, 9], [4])], Slots())
    stream.record().synchronize()
    batch = inputs.batch(shape)
    assert (shape.tokens, shape.sequences, shape.rows) == (4, 4, 4)
    assert batch.token_ids.tolist() == [5, 6, 9, 0] and batch.positions.tolist() == [4, 0, 1, 0]
    assert batch.slot_mapping.tolist() == [8, 12, 17, -1]
    assert batch.query_starts.tolist() == [0, 1, 2, 3, 3] and batch.context_lengths.tolist() == [5, 1, 2, 0]
    assert batch.block_tables.tolist() == [[7, 2, 0, 0, 0], [3, 0, 0, 0, 0], [4, 0, 0, 0, 0], [0] * 5]
    assert batch.sample_rows.tolist() == [0, 1, 2, 0]
    assert shape.lora_rounds == 0


def test_states_are_padded_with_the_padding_slot(stream: VirtualStream) -> None:
    inputs = StepInputs(Slots().table, stream, tokens=12, sequences=6, blocks=5, block_size=4, has_states=True)
    decodes = [decode([1, 2, 3, 4, 5], [7, 2]), decode([6], [3]), decode([8, 9], [4])]
    for item, slot in zip(decodes, (5, 2, 9), strict=True):
        item.sequence.state = slot
    shape = inputs.write(decodes, Slots())
    stream.record().synchronize()
    found = inputs.batch(shape).states
    assert found is not None
    assert (found.slots.tolist(), found.kept_starts.tolist()) == ([5, 2, 9, 0], [0, 0, 0, 0, 0])
    addresses = found.slots.data_ptr(), found.kept_starts.data_ptr()
    chunk = Scheduled(sequence([8, 7, 6, 5, 4, 3, 2], [3, 9]), start=2, count=4, sample=False)
    chunk.sequence.state, chunk.kept = 1, [Kept(4, 8, BlockKey(b"", b"")), Kept(6, 3, BlockKey(b"", b""))]
    shape = inputs.write([decodes[0], chunk], Slots())
    stream.record().synchronize()
    found = inputs.batch(shape).states
    assert found is not None and (found.slots.data_ptr(), found.kept_starts.data_ptr()) == addresses
    assert (found.slots.tolist(), found.kept_starts.tolist()) == ([5, 1, 0, 0, 0, 0], [0, 0, 2, 2, 2, 2, 2])
    assert (found.kept_tokens[:2].tolist(), found.kept_slots[:2].tolist()) == ([2, 4], [8, 3])


class Contexts:
    """A cache that takes decodes apart by their longest context."""

    clips = False

    def is_uneven(self, lengths: np.ndarray) -> bool:
        return int(lengths.max()) > 4

    def cuts(self, tokens: int, sequences: int, blocks: int, uneven: bool, mixed: bool) -> int:
        return 7 if uneven else 0


def test_decodes_with_one_long_context_are_captured_apart(inputs: StepInputs) -> None:
    keys, batches = list[GraphKey](), []
    runner: Any = SimpleNamespace(cache=Contexts(), inputs=inputs, adapters=Slots(), device_time=DeviceTime(Mock()))
    runner.sampler = SimpleNamespace(
        prepare=lambda rows: RowNeeds(NO_RECORDS, [None] * len(rows), False, False), fetch=lambda counts: None
    )  # fmt: skip
    runner.graphs = SimpleNamespace(run=lambda key, launch: keys.append(key))
    runner._launch = lambda *given: None
    runner._replay = lambda plan, shape, asked: (
        batches.append(inputs.batch(shape)) or CudaRunner._replay(runner, plan, shape, asked)
    )  # fmt: skip
    for first in ([1, 2], [1, 2, 3, 4, 5]):
        CudaRunner.submit(runner, StepPlan([decode(first, [7, 2]), decode([6], [3])]))
    assert [key.attention_cuts for key in keys] == [0, 7] and len({*keys}) == 2
    assert [batch.uneven for batch in batches] == [False, True]


def test_a_step_with_a_prompt_is_padded_in_tokens_and_has_all_sequences(
    inputs: StepInputs, stream: VirtualStream
) -> None:
    chunk = Scheduled(sequence([8, 7, 6, 5, 4], [3, 1]), 1, 2, sample=False)
    shape = inputs.write([decode([1, 2, 3], [7]), chunk, decode([6], [3])], Slots())
    stream.record().synchronize()
    assert shape.mixed and (shape.tokens, shape.sequences, shape.rows) == (12, 6, 6)
    batch = inputs.batch(shape)
    assert batch.mixed and batch.token_ids.tolist() == [3, 7, 6, 6] + [0] * 8
    assert batch.query_starts.tolist() == [0, 1, 3, 4, 4, 4, 4] and batch.context_lengths.tolist() == [3, 3, 1, 0, 0, 0]
    assert batch.slot_mapping.tolist() == [30, 13, 14, 12] + [NOT_WRITTEN] * 8
    assert batch.sample_rows.tolist() == [0, 3, 0, 0, 0, 0]
    assert not inputs.batch(inputs.write([decode([1, 2, 3], [7])], Slots())).mixed


def test_a_step_that_tells_of_its_prompts_is_as_large_as_it_is(inputs: StepInputs) -> None:
    chunk = Scheduled(sequence([8, 7, 6, 5, 4], [3, 1], prompt_logprobs=1), 1, 2, sample=False)
    shape = inputs.write([decode([1, 2, 3], [7]), chunk], Slots())
    assert not shape.is_fixed and not shape.mixed and (shape.tokens, shape.sequences, shape.rows) == (3, 2, 1)


def test_logits_of_prompts_are_asked_for_some_at_a_time(inputs: StepInputs, stream: VirtualStream) -> None:
    """Two prompts whose tokens are judged around one that only draws; the first has one token in the cache already."""
    first = Scheduled(sequence([8, 7, 6, 5, 4], [3, 1], prompt_logprobs=2), 1, 4, sample=True)
    last = Scheduled(sequence([1, 2, 3, 4, 9], [2, 4], prompt_logprobs=2), 0, 4, sample=False)
    scheduled = [first, decode([6], [3]), last]
    shape = inputs.write(scheduled, Slots())
    stream.record().synchronize()
    assert inputs.batch(shape).sample_rows.tolist() == [3, 4], "those to draw from"
    found = [
        (part.index, inputs.judged(shape, part.rows).sample_rows.tolist(), part.token_ids, part.count)
        for part in judged(scheduled, 2)
    ]
    assert found == [(0, [0, 1], [6, 5], 2), (0, [2], [4], 2), (2, [5, 6], [2, 3], 2), (2, [7, 8], [4, 9], 2)]
    assert [part.token_ids for part in judged(scheduled)] == [[6, 5, 4], [2, 3, 4, 9]]


def test_the_arrays_are_written_while_the_step_before_is_on_its_way(inputs: StepInputs, stream: VirtualStream) -> None:
    addresses = [inputs.batch(inputs.write([decode([5], [1])], Slots())).token_ids.data_ptr()]
    first = stream.record()
    shape = inputs.write([decode([6], [1])], Slots())
    addresses.append(inputs.batch(shape).token_ids.data_ptr())
    first.synchronize()
    assert inputs.batch(shape).token_ids.tolist() in ([5], [6])
    stream.record().synchronize()
    assert inputs.batch(shape).token_ids.tolist() == [6] and len({*addresses}) == 1


def test_a_placeholder_is_what_the_step_before_drew_for_its_sequence(inputs: StepInputs, stream: VirtualStream) -> None:
    one, two, other = (decode([token], [token]).sequence for token in (1, 2, 3))
    inputs.write([Scheduled(one, 0, 1, True), Scheduled(other, 0, 1, True), Scheduled(two, 0, 1, True)], Slots())
    drawn = torch.tensor([10, 11, 12])
    shape = inputs.write([Scheduled(two, 1, 1, True), decode([9], [4]), Scheduled(one, 1, 1, True)], Slots())
    stream.record().synchronize()
    resolve_reference(*inputs.placeholders(shape), drawn)
    assert inputs.batch(shape).token_ids.tolist() == [12, 9, 10, 0]


def test_a_failed_draw_leaves_a_token_that_can_be_looked_up(inputs: StepInputs, stream: VirtualStream) -> None:
    one = decode([1], [1]).sequence
    inputs.write([Scheduled(one, 0, 1, True)], Slots())
    shape = inputs.write([Scheduled(one, 1, 1, True)], Slots())
    stream.record().synchronize()
    resolve_reference(*inputs.placeholders(shape), torch.tensor([-1]))
    assert inputs.batch(shape).token_ids.tolist() == [0]


def test_adapters_are_listed_by_round_and_no_longer_when_they_are_gone(
    inputs: StepInputs, stream: VirtualStream
) -> None:
    both = AdapterRef("second", 0.5), AdapterRef("first", -2.0)
    shape = inputs.write([decode([1], [1], *both), decode([2], [2]), decode([3], [3], AdapterRef("first"))], Slots())
    stream.record().synchronize()
    assert shape.lora_rounds == 2
    first, second = (lists.tensors for lists in inputs.lora)
    assert first.chunks[:3].tolist() == [[0, 0, 1], [3, 1, 1], [-1, -1, -1]] and first.tokens[:2].tolist() == [2, 0]
    assert second.chunks[:2].tolist() == [[0, 0, 1], [-1, -1, -1]] and float(second.scales[0]) == -2.0
    shape = inputs.write([decode([1], [1], AdapterRef("second"))], Slots())
    stream.record().synchronize()
    assert shape.lora_rounds == 1
    assert first.chunks[:2].tolist() == [[3, 0, 1], [-1, -1, -1]]


def test_staging_waits_for_its_own_copy_before_it_is_written_again(stream: VirtualStream) -> None:
    staging = Staging({"a": ((3,), torch.int32), "b": ((2, 2), torch.int64)}, torch.device("cpu"), stream)
    assert all(tensor.data_ptr() % ALIGNMENT == 0 for tensor in staging.device.values())
    seen = []
    for number in range(5):
        arrays = staging.open()
        arrays["a"][:] = number
        arrays["b"][:] = number
        staging.send("a", "b", 1)
        stream.enqueue(lambda: seen.append((staging.device["a"].tolist(), staging.device["b"].tolist())))
    stream.record().synchronize()
    assert seen == [([number] * 3, [[number] * 2, [0, 0]]) for number in range(5)]


def test_only_arrays_of_the_span_are_sent(stream: VirtualStream) -> None:
    staging = Staging(dict.fromkeys("abc", ((2,), torch.int32)), torch.device("cpu"), stream)
    for array in staging.open().values():
        array[:] = 1
    staging.send("b", "c", 1)
    stream.record().synchronize()
    assert [staging.device[name].tolist() for name in "abc"] == [[0, 0], [1, 1], [1, 0]]


def test_one_copy_of_a_step_takes_the_rounds_that_act_and_no_other(
    inputs: StepInputs, stream: VirtualStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    monkeypatch.setattr(stream, "copy", lambda destination, _: copied.append(destination.nbytes))
    first, second = AdapterRef("first"), AdapterRef("second")
    for adapters in ((), (first,), (first, second)):
        inputs.write([decode([1], [1], *adapters)], Slots())
    words = 4 * len(inputs.lora[0].words)
    assert [size - copied[0] for size in copied] == [0, words, 2 * words]


def test_adapters_of_decodes_are_worked_out_and_sent_once(
    inputs: StepInputs, stream: VirtualStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until another sequence joins, a prompt comes, or memory of adapters is given away."""
    sent: list[str] = []
    send = inputs._staging.send
    monkeypatch.setattr(inputs._staging, "send", lambda *span: sent.append(span[0]) or send(*span))
    slots, one, two = Slots(), decode([1], [1], AdapterRef("first")), decode([2], [2], AdapterRef("second"))

    def write(*scheduled: Scheduled) -> tuple[bool, int, list[list[int]]]:
        """Whether lists were sent, slots asked for, and the chunks on the device."""
        slots.asked = 0
        shape = inputs.write([*scheduled], slots)
        stream.record().synchronize()
        assert shape.lora is not None and shape.lora.arrays.rounds == inputs.lora[:1]
        return sent.pop() == "lora 0", slots.asked, inputs.lora[0].tensors.chunks[: len(scheduled) + 1].tolist()

    alone, both = [[0, 0, 1], [-1, -1, -1]], [[0, 0, 1], [3, 1, 1], [-1, -1, -1]]
    assert write(one) == (True, 1, alone)
    assert write(one) == write(one) == (False, 0, alone)
    assert write(one, two) == (True, 2, both)
    assert write(one, two) == (False, 0, both)
    slots.newest_epoch += 1
    assert write(one, two) == (True, 2, both)
    prompt = Scheduled(sequence([4, 5, 6], [3]), 0, 2, sample=False)
    assert write(one, prompt) == (True, 1, [*alone, [-1, -1, -1]])
    assert write(one, prompt) == (True, 1, [*alone, [-1, -1, -1]])
    assert write(one, two) == (True, 2, both)
    inputs.write([decode([7], [4])], slots)
    assert write(one, two) == (True, 2, both), "a step of the base alone came between"


def test_lists_that_could_not_be_sent_are_sent_with_the_next_step(inputs: StepInputs, stream: VirtualStream) -> None:
    one = decode([1], [1], AdapterRef("second"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "copy", Mock(side_effect=RuntimeError("the device is gone")))
        with pytest.raises(RuntimeError):
            inputs.write([one], Slots())
    inputs.write([one], Slots())
    stream.record().synchronize()
    assert inputs.lora[0].tensors.chunks[:2].tolist() == [[3, 0, 1], [-1, -1, -1]]


def test_what_rows_ask_of_the_sampler_comes_with_their_step(inputs: StepInputs, stream: VirtualStream) -> None:
    """Rows of the padding are idle, whatever a larger step asked for before."""
    steps = [[decode([1], [number]) for number in range(1, count + 1)] for count in (4, 3)]
    for number, scheduled in enumerate(steps):
        records = np.arange(len(scheduled) * RECORD).reshape(-1, RECORD) + 1000 * number
        assert inputs.write(scheduled, Slots(), records=records).rows == 4
    stream.record().synchronize()
    assert inputs.parameters[:3].tolist() == records.tolist() and inputs.parameters[3].eq(IDLE).all()


def test_drawn_tokens_arrive_as_they_were_though_the_next_step_has_drawn_its_own(stream: VirtualStream) -> None:
    drawn, host_transfer = torch.zeros(4, dtype=torch.int32), HostTransfer(stream, VirtualStream(random.Random(2)))
    arrivals = []
    for number in range(3):
        stream.enqueue(lambda number=number: drawn.fill_(number))
        arrivals.append(host_transfer.send(drawn[:3]))
    stream.record().synchronize()
    assert [arrival.wait().tolist() for arrival in arrivals] == [[0] * 3, [1] * 3, [2] * 3]


def test_a_graph_is_captured_once_for_each_key_up_to_a_limit(stream: VirtualStream) -> None:
    ran: list[int] = []
    launched: list[int] = []

    def launch(tokens: int) -> None:
        launched.append(tokens)
        stream.enqueue(lambda: ran.append(tokens))

    pool = GraphPool(stream.capture, most=3)

    def run(*sizes: int) -> list[int]:
        """What is launched meanwhile."""
        for tokens in sizes:
            key = GraphKey(tokens, tokens, False, 0, False, frozenset(), False, False, 1, False, False)
            pool.run(key, lambda tokens=tokens: launch(tokens))
        stream.record().synchronize()
        assert ran == list(sizes)
        found = launched.copy()
        ran.clear(), launched.clear()
        return found

    assert run(1, 2, 8, 1, 1, 4, 2, 4) == [1, 1, 2, 2, 8, 8, 4, 4], "once to run and once to capture"
    assert run(*[4] * 13, 16) == [*[4] * 13, 16] and len(pool) == 3
    assert run(4, 4) == [4, 4], "what comes again and again is captured"
    assert run(4, 1, 2, 8) == [8] and len(pool) == 3, "and takes the place of what was not used for longest"
    for other in range(20, 40):
        run(other)
    assert len(pool) == 3 and len(pool._launched) == 3, "nothing is counted for ever"
    assert run(*[8] * 16) == [8] * 17 and run(8, 2, 1, 4) == [4]


def test_memory_that_runs_out_in_a_capture_costs_no_step_once_the_engine_serves(stream: VirtualStream) -> None:
    ran: list[int] = []
    room = 3

    def capture(launch: Launch) -> Graph:
        if not room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return stream.capture(launch)

    pool = GraphPool(capture, most=9)

    def run(*sizes: int) -> None:
        for tokens in sizes:
            key = GraphKey(tokens, tokens, False, 0, False, frozenset(), False, False, 1, False, False)
            pool.run(key, lambda tokens=tokens: stream.enqueue(lambda: ran.append(tokens)))
        stream.record().synchronize()

    run(1, 2, 4)
    room = 0
    with pytest.raises(torch.OutOfMemoryError):
        run(8)
    stream.record().synchronize()
    pool.serves = True
    ran.clear()
    run(16, 16, 1, 2)
    assert ran == [16, 16, 1, 2] and len(pool) == 3
    for _ in range(3):
        run(*[32] * PATIENCE)
    assert len(pool) == 2, "steps in flight keep theirs"
    room = 1
    run(*[64] * 99)
    assert len(pool) == 2 and ran[4:] == [32] * 3 * PATIENCE + [64] * 99


def test_no_number_of_a_launch_is_shared_by_keys(stream: VirtualStream) -> None:
    fields = range(len(GraphKey._fields))
    keys = [GraphKey(*(1 + (place == field) for place in fields)) for field in fields]
    ran: list[GraphKey] = []
    pool = GraphPool(stream.capture, most=len(keys))
    for key in keys * 2:
        pool.run(key, lambda key=key: stream.enqueue(lambda: ran.append(key)))
    stream.record().synchronize()
    assert ran == keys * 2 and len(pool) == len(fields)
