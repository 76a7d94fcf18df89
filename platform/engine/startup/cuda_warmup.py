"""Warm-up on CUDA: every kernel is compiled for the shapes it will see, and steps of all sizes are captured."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from loraplex.lora.apply.batch import Extras, PageTable
from loraplex.lora.files.manifest import EMBEDDING, HEAD

from ..config import EngineConfig
from ..kv_cache.keyed_pool import PADDING
from ..kv_cache.prefix import BlockKey
from ..protocol import AdapterRef, GenerateRequest
from ..runner.cuda_runner import CudaRunner
from ..runner.step_sizes import StepSizes
from ..sampling_params import SamplingParams
from ..scheduler.plan import Kept, Scheduled, StepPlan
from ..scheduler.sequence import Request
from .kv_cache_size import blocks_of

GREEDY: Final = SamplingParams(temperature=0.0)
DRAWN: Final = SamplingParams(temperature=0.7, top_p=0.9, seed=0)
DESCRIBED: Final = SamplingParams(temperature=0.7, top_k=5, min_p=0.01, seed=0, logprobs=1, prompt_logprobs=1)


class FirstSlot:
    """AdapterSlots before any adapter is resident: slot 0 has no ranks, so nothing is read and nothing added."""

    newest_epoch = 0

    def __init__(self, table: PageTable) -> None:
        self.table = table

    def slot_of(self, digest: str, epoch: int) -> int:
        return 0


Step = tuple[list[int], SamplingParams, bool]
"""New tokens of each sequence, how they are drawn, whether with adapters."""


def warm_up_cuda(runner: CudaRunner, config: EngineConfig, max_model_len: int) -> None:
    """All keys and values go to the padding block, which nobody reads."""
    most, launched = config.most_step_tokens, without_graphs(runner)
    _run(runner, config, _captured(runner.inputs.sizes, config, max_model_len))
    _run(launched, config, (step for size in _prompt_sizes(most) for step in _judged(size, config, max_model_len)))
    table = runner.adapters.table
    # As if slot 0 changed all that an adapter may: what is launched for that is compiled, and finds nothing to change.
    for own_logits in (False, True):
        table.extras[0] = _changing(table, len(runner.decoder.embedding.table), own_logits)
        for size in sorted({2, most}):
            _run(launched, config, [(_prompts(size, config, max_model_len), GREEDY, True)])
            _run(launched, config, _judged(size, config, max_model_len))
    del table.extras[0]
    runner.cache.copy_blocks([(0, 0)])
    if runner.states is not None:
        runner.states.copy_states([(PADDING, PADDING)])


def without_graphs(runner: CudaRunner) -> CudaRunner:
    """The same, which launches every step."""
    return replace(runner, graphs=runner.graphs.disabled())


def _changing(table: PageTable, vocab_size: int, own_logits: bool) -> Extras:
    """Of all kinds but the linears of the layers."""
    kinds = [kind for kind, (inputs, _) in table.shapes.items() if kind in (EMBEDDING, HEAD) or not inputs]
    return Extras(frozenset(kinds), {}, vocab_size, has_vectors=True, own_logits=own_logits, on_experts=True)


def run_largest(runner: CudaRunner, config: EngineConfig, max_model_len: int) -> None:
    """The steps that take most memory: of as many tokens as there may be, with a prompt whose every token is judged."""
    _run(without_graphs(runner), config, _judged(config.most_step_tokens, config, max_model_len))


def run_largest_captured(runner: CudaRunner, config: EngineConfig, max_model_len: int) -> None:
    """Of the steps that are captured those with the largest tensors, without a graph."""
    prompts = _prompts(config.most_step_tokens, config, max_model_len)
    largest: list[Step] = [(prompts, DRAWN, True), ([1] * config.max_num_seqs, DRAWN, True)]
    _run(without_graphs(runner), config, largest)


def _run(runner: CudaRunner, config: EngineConfig, steps: Iterable[Step]) -> None:
    idle = replace(runner, adapters=FirstSlot(runner.adapters.table))
    for counts, params, adapter in steps:
        plan = StepPlan([_scheduled(count, params, adapter, config.block_size) for count in counts])
        if runner.states is not None:
            _hold_states(plan)
        idle.submit(plan).result()


def _hold_states(plan: StepPlan) -> None:
    """All in the padding slot; of a prompt that has several tokens one is kept on the way."""
    for item in plan.scheduled:
        item.sequence.state = PADDING
        item.kept = [Kept(1, PADDING, BlockKey(b"", b""))] if item.count > 1 else []


def _captured(sizes: StepSizes, config: EngineConfig, max_model_len: int) -> Iterator[Step]:
    """From the largest to the smallest, as they share memory; StepSizes.captured of them."""
    for size in reversed(sizes.prompts):
        for adapter in (False, True):
            yield _prompts(size, config, max_model_len), GREEDY, adapter
    for size in reversed(sizes.decodes):
        for params in (GREEDY, DRAWN):
            for adapter in (False, True):
                yield [1] * size, params, adapter


def _prompt_sizes(most: int) -> list[int]:
    """Powers of two and what lies midway: tiles and splits change at sizes between the powers, too."""
    return sorted(
        {min(size, most) for power in range(1, most.bit_length() + 1) for size in (1 << power, 3 << power - 1)}
    )


def _prompts(size: int, config: EngineConfig, max_model_len: int) -> list[int]:
    """Prompts alone, of `size` tokens together, where so many sequences may have them."""
    longest = min(size, max_model_len - 1)
    whole, rest = divmod(size, longest)
    return ([longest] * whole + [rest] * (rest > 0))[: config.max_num_seqs]


def _judged(size: int, config: EngineConfig, max_model_len: int) -> Iterator[Step]:
    """Prompts whose tokens are judged, alone and with decodes, of up to `size` tokens together."""
    yield _prompts(size, config, max_model_len), DESCRIBED, True
    decodes = min(config.max_num_seqs, size // 2 + 1) - 1
    if size > decodes + 1:
        yield [min(size - decodes, max_model_len - 1), *[1] * decodes], DESCRIBED, True


def _scheduled(count: int, params: SamplingParams, adapter: bool, block_size: int) -> Scheduled:
    adapters = [AdapterRef("")] if adapter else []
    message = GenerateRequest(request_id="", prompt_token_ids=[0] * count, params=params, adapters=adapters)
    request = Request(message, 0, 0.0, max_length=count + 1, eos_token_ids=frozenset(), fingerprint="")
    [sequence] = request.sequences
    sequence.blocks = [0] * blocks_of(count, block_size)
    return Scheduled(sequence, 0, count, sample=True)
