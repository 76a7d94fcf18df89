"""The arrays of a step on a virtual device, and the runner that fills them as one for CUDA does."""

import random
from functools import partial

import torch

from loraplex.engine.batch import Batch, StateSlots
from loraplex.engine.device.host_transfer import Arrival, HostTransfer
from loraplex.engine.kernels.cuda.placeholders import resolve_reference
from loraplex.engine.runner.graph_pool import GraphKey, GraphPool
from loraplex.engine.runner.step_inputs import StepInputs, StepShape
from loraplex.engine.scheduler.plan import StepPlan, StepResult
from loraplex.lora.apply.batch import PageTable

from .virtual_model import SLOTS, Brought, Draw, Inputs, VirtualDevice
from .virtual_runner import SlottedAdapters, VirtualHandle, VirtualRunner

TOKENS, SEQUENCES, ROUNDS = 12, 6, 2
"""The largest step, and how many adapters are summed at most."""


class DeviceArrays:
    """Once for a device."""

    def __init__(self, device: VirtualDevice, has_states: bool = False) -> None:
        slots = torch.zeros(SLOTS, 1, 1, dtype=torch.int64)
        self.table = PageTable(torch.zeros(SLOTS), slots, slots.int(), slots.float(), {})
        self.inputs = StepInputs(
            self.table, device.compute, tokens=TOKENS, sequences=SEQUENCES, blocks=device.num_blocks,
            block_size=device.block_size, rounds=ROUNDS, has_states=has_states,
        )  # fmt: skip
        self.drawn = torch.zeros(SEQUENCES, dtype=torch.int64)
        self.host_transfer = HostTransfer(device.compute, device.transfer)
        self.graphs = GraphPool(device.compute.capture, most=5)


class ArrayRunner(VirtualRunner):
    """Tells the device of a step through StepInputs, in graphs where they can be, and reads an HostTransfer."""

    def __init__(
        self, device: VirtualDevice, adapters: SlottedAdapters, depth: int, failing: random.Random, arrays: DeviceArrays
    ) -> None:
        super().__init__(device, adapters, depth, failing)
        self._arrays = arrays
        adapters.table = arrays.table

    def _begin(self, plan: StepPlan, draws: list[Draw]) -> VirtualHandle:
        shape, plan_inputs = self._arrays.inputs.write(plan.scheduled, self._adapters), self._inputs(plan.scheduled)
        sizes = shape.tokens, shape.sequences, shape.mixed, shape.lora_rounds
        key = GraphKey(*sizes, False, frozenset(), False, False, 1, False, False)
        launch = partial(self._launch, shape, key.lora_rounds)
        if shape.is_fixed:
            self._arrays.graphs.run(key, launch)
        else:
            launch()
        self._device.compute.enqueue(partial(self._draw, draws))
        self._device.compute.enqueue(partial(self._compare, self._arrays.inputs.batch(shape), plan_inputs))
        return ArrivingHandle(self._arrays.host_transfer.send(self._arrays.drawn[: len(draws)]))

    def _launch(self, shape: StepShape, rounds: int) -> None:
        inputs, compute = self._arrays.inputs, self._device.compute
        compute.enqueue(partial(resolve_reference, *inputs.placeholders(shape), self._arrays.drawn))
        compute.enqueue(partial(self._forward, inputs.batch(shape), rounds))

    def _forward(self, batch: Batch, rounds: int) -> None:
        inputs = Inputs(
            batch.token_ids.tolist(),
            batch.positions.tolist(),
            batch.slot_mapping.tolist(),
            batch.query_starts.tolist(),
            batch.context_lengths.tolist(),
            batch.block_tables.tolist(),
            batch.sample_rows.tolist(),
            self._acting(len(batch.token_ids), rounds),
        )
        self._device.forward(inputs)
        if batch.states is not None:
            self._device.bring_on(inputs, brought(batch, batch.states))

    def _acting(self, tokens: int, rounds: int) -> list[list[tuple[int, float]]]:
        found: list[list[tuple[int, float]]] = [[] for _ in range(tokens)]
        for lists in self._arrays.inputs.lora[:rounds]:
            tensors = lists.tensors
            for slot, first, count in tensors.chunks[: lists.bound_chunks(tokens)].tolist():
                if slot >= 0:
                    for row in range(first, first + count):
                        found[tensors.tokens[row]].append((slot, float(tensors.scales[row])))
        return found

    def _compare(self, batch: Batch, told: Inputs) -> None:
        """The arrays, while this step runs, with what the plan said when it was submitted."""
        found = [batch.positions, batch.slot_mapping, batch.context_lengths]
        said = [told.positions, told.slot_mapping, told.context_lengths]
        if [part.tolist()[: len(row)] for part, row in zip(found, said, strict=True)] != said:
            self._device.mistakes.append("the arrays are those of another step")

    def _draw(self, draws: list[Draw]) -> None:
        self._arrays.drawn[: len(draws)] = torch.tensor(self._device.draw(draws), dtype=torch.int64)


def brought(batch: Batch, states: StateSlots) -> Brought:
    """Of the sequences that are no padding."""
    starts, ends = batch.query_starts.tolist(), states.kept_starts.tolist()
    kept = list(zip(states.kept_tokens.tolist(), states.kept_slots.tolist(), strict=True))
    return [
        (slot, [(int(batch.positions[token]) + 1, place) for token, place in kept[ends[row] : ends[row + 1]]])
        for row, slot in enumerate(states.slots.tolist())
        if starts[row] < starts[row + 1]
    ]


class ArrivingHandle(VirtualHandle):
    def __init__(self, arrival: Arrival) -> None:
        self.fails = False
        self._arrival = arrival

    def result(self) -> StepResult:
        return self._answer(self._arrival.wait().tolist())
