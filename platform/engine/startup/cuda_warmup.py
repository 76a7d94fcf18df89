"""Warm-up on CUDA: every kernel is compiled for the shapes it will see, and the ladder of decode steps is captured."""

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
from ..runner.graph_pool import size_ladder
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
    """All keys and values go to the padding block, which nobody reads. Graphs from the largest to the smallest, as they
    share memory."""
    most = config.most_step_tokens
    prompts = (step for size in _prompt_sizes(most) for step in _prompts(size, config, max_model_len))
    _run(runner, config, [*_decodes(config), *prompts])
    table = runner.adapters.table
    # As if slot 0 changed all that an adapter may: what is launched for that is compiled, and finds nothing to change.
    for own_logits in (False, True):
        table.extras[0] = _changing(table, len(runner.decoder.embedding.table), own_logits)
        _run(runner, config, (step for size in {2, most} for step in _prompts(size, config, max_model_len)))
    del table.extras[0]
    runner.cache.copy_blocks([(0, 0)])
    if runner.states is not None:
        runner.states.copy_states([(PADDING, PADDING)])


def _changing(table: PageTable, vocab_size: int, own_logits: bool) -> Extras:
    """Of all kinds but the linears of the layers."""
    kinds = [kind for kind, (inputs, _) in table.shapes.items() if kind in (EMBEDDING, HEAD) or not inputs]
    return Extras(frozenset(kinds), {}, vocab_size, has_vectors=True, own_logits=own_logits, on_experts=True)


def run_largest(runner: CudaRunner, config: EngineConfig, max_model_len: int) -> None:
    """The steps that take most memory: of as many tokens as there may be, with a prompt whose every token is judged."""
    _run(runner, config, _prompts(config.most_step_tokens, config, max_model_len))


def run_largest_decode(runner: CudaRunner, config: EngineConfig) -> None:
    """Of the steps that are captured the one with the largest tensors, without a graph."""
    _run(replace(runner, graphs=runner.graphs.disabled()), config, [([1] * config.max_num_seqs, DRAWN, True)])


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


def _decodes(config: EngineConfig) -> Iterator[Step]:
    for size in reversed(size_ladder(config.max_num_seqs)):
        for params in (GREEDY, DRAWN):
            for adapter in (False, True):
                yield [1] * size, params, adapter


def _prompt_sizes(most: int) -> list[int]:
    """Powers of two and what lies midway: tiles and splits change at sizes between the powers, too."""
    return sorted(
        {min(size, most) for power in range(1, most.bit_length() + 1) for size in (1 << power, 3 << power - 1)}
    )


def _prompts(size: int, config: EngineConfig, max_model_len: int) -> Iterator[Step]:
    """Prompts alone and with decodes, of up to `size` tokens together."""
    longest = min(size, max_model_len - 1)
    prompts = [longest] * (size // longest)
    yield prompts[: config.max_num_seqs], GREEDY, True
    decodes = min(config.max_num_seqs, size // 2 + 1) - 1
    if size > decodes + 1:
        yield [min(size - decodes, longest), *[1] * decodes], DESCRIBED, True


def _scheduled(count: int, params: SamplingParams, adapter: bool, block_size: int) -> Scheduled:
    adapters = [AdapterRef("")] if adapter else []
    message = GenerateRequest(request_id="", prompt_token_ids=[0] * count, params=params, adapters=adapters)
    request = Request(message, 0, 0.0, max_length=count + 1, eos_token_ids=frozenset(), fingerprint="")
    [sequence] = request.sequences
    sequence.blocks = [0] * blocks_of(count, block_size)
    return Scheduled(sequence, 0, count, sample=True)
