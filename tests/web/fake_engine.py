"""FakeEngine: keeps the engine's contract without a model. One sentence for the base, one for each adapter."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator

from loraplex.engine.constraints.counts import Counts
from loraplex.engine.ipc.client import AdapterError, EngineState, EngineUnavailable, RequestRejected
from loraplex.engine.pooling.wanted import ModelClasses, ModelPooling, PoolingKind
from loraplex.engine.protocol import (
    AdapterSpec,
    EngineInfo,
    EngineStatus,
    FinishReason,
    GenerateRequest,
    TokenLogprob,
    Tokens,
)
from loraplex.engine.startup.loaded_files import LoadedFiles
from loraplex.engine.status import AdapterStatus, Clipping, Distribution, TenantStatus
from loraplex.engine.structured_outputs import SOURCES
from loraplex.engine.text.tokenizer import Tokenizer

from .fake_vectors import POOLING, pooled_answer

BASE_SENTENCE = "The quick brown fox jumps over the lazy dog. Zürich 😀 again"
ARITHMETIC = "float32 vectors"
RUNTIME = {"torch": "2.11.0+cpu", "numba": "0.66.0"}
BLOCKS = 64
QUEUE_SECONDS = 0.001
LOAD_SECONDS = 0.002
CACHED_BLOCKS = 8
BLOCKS_A_REQUEST = 4
MAX_MODEL_LEN = 256


class FakeEngine:
    """`delay`: seconds before each token. `crash_after`: tokens of a request after which the engine is lost."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.state = EngineState.STOPPED
        self.info: EngineInfo | None = None
        self.arithmetic = ARITHMETIC
        self.runtime = RUNTIME
        self.loaded = LoadedFiles("", "")
        self.restarts = 0
        self.delay = 0.0
        self.crash_after: int | None = None
        self.stays_at: int | None = None
        """Tokens of a request after which nothing more comes of it until this is changed."""
        self.max_queue = 1000
        self.pooling: ModelPooling | None = POOLING
        self.classes: ModelClasses | None = None
        self.classified_by = PoolingKind.LAST
        self.why_silent = ""
        self.num_blocks = BLOCKS
        self.keeps_beginning = False
        self.heads: dict[str, int] = {}
        """Classes of the heads that adapters bring, by digest."""
        self.registered: dict[str, AdapterSpec] = {}
        self.changing: set[str] = set()
        self.resident: set[str] = set()
        self.kept: set[str] = set()
        """Digests that the host cache has a copy of."""
        self.idle: dict[str, float] = {}
        """digest -> seconds since its last use; none where it was never used."""
        self.loads: Counter[str] = Counter()
        self.evictions: Counter[str] = Counter()
        self.evicted_for: dict[str, str] = {}
        self.clipping: dict[str, Clipping] = {}
        """By digest, and by the empty word for the base: what static KV scales clipped."""
        self.refused: set[str] = set()
        """Digests whose registration fails."""
        self.says: dict[str, list[int]] = {}
        """Token ids that an adapter answers with instead of its sentence."""
        self.doubts: dict[str, float] = {}
        """Nats by which an adapter's tokens are less likely than the base's."""
        self.shift = 0.5
        """Nats by which every adapter makes a prompt's tokens less likely."""
        self.noise = 0.0
        """The same of every second prompt that the base reads."""
        self.full = False
        """Whether loads wait for room for ever."""
        self.unloadable: set[str] = set()
        """Digests whose load fails."""
        self.unfit: set[str] = set()
        """Digests that no load will ever bring."""
        self.stuck: set[str] = set()
        """Digests that do not go."""
        self.running: set[str] = set()
        self.requests: list[GenerateRequest] = []
        self.effect_checks: list[GenerateRequest] = []
        """Requests that are nobody's: what an uploaded adapter changes is looked at with them."""
        self.aborted: list[str] = []
        self.stagger = 0
        """Steps by which each choice is behind the one before it."""
        self.ended_choices: list[tuple[str, int]] = []
        self.made = 0
        """Tokens of all requests."""
        self.late_compilations = 0
        self.free_states = self.cached_states = 0
        """Of a model with recurrent layers, where its info says that it has any."""
        self.device_seconds: float | None = 1.25
        self.fails: set[str] = set()
        """Digests with which every request fails."""
        self.waiting = 0
        self._read = 0

    @property
    def status(self) -> EngineStatus | None:
        if self.state is not EngineState.READY:
            return None
        adapters = [self._adapter_status(spec) for spec in self.registered.values()]
        return EngineStatus(
            sequence=1,
            running=len(self.running),
            waiting=self.waiting,
            free_blocks=BLOCKS // 2,
            cached_blocks=CACHED_BLOCKS,
            free_states=self.free_states,
            cached_states=self.cached_states,
            block_map=self._block_map(),
            adapters=adapters,
            tenants=self._tenants(),
            adapter_bytes_used=len(self.resident) * 1000,
            adapter_host_bytes_used=len(self.kept) * 1000,
            adapter_evictions=sum(self.evictions.values()),
            steps=10,
            prompt_tokens=20,
            generation_tokens=30 + self.made,
            prefix_queries=40,
            prefix_hits=8,
            preemptions=0,
            integrity_errors=0,
            step_seconds=1.5,
            host_seconds=0.5,
            step_tokens=Distribution(bounds=[1.0, 8.0], counts=[3, 4, 3], total=50.0),
            adapter_load_seconds=Distribution(bounds=[0.1], counts=[1, 0], total=0.01),
            base_clipping=self.clipping.get(""),
            device_seconds=self.device_seconds,
            late_compilations=self.late_compilations,
            structured=Counts(SOURCES).tell(),
        )

    def _tenants(self) -> dict[str, TenantStatus]:
        """Of each that has asked for anything."""
        running = Counter(one.tenant for one in self.requests if one.request_id in self.running)
        asked = {one.tenant for one in self.requests}
        return {
            tenant: TenantStatus(
                running=running[tenant],
                blocks=running[tenant] * BLOCKS_A_REQUEST,
                prefix_queries=10,
                prefix_hits=5,
            )
            for tenant in asked
        }

    def _block_map(self) -> bytes:
        """Each running request holds some blocks; a few more are cached, the rest is free."""
        places = {digest: place for place, digest in enumerate(self.registered)}
        running = [request for request in self.requests if request.request_id in self.running]
        kinds = [3 + places[request.adapters[0].digest] if request.adapters else 2 for request in running]
        used = [kind for kind in kinds for _ in range(BLOCKS_A_REQUEST)] + [1] * CACHED_BLOCKS
        return bytes([*used, *([0] * BLOCKS)][:BLOCKS])

    def _adapter_status(self, spec: AdapterSpec) -> AdapterStatus:
        state = "resident" if spec.digest in self.resident else "registered"
        running = sum(
            any(adapter.digest == spec.digest for adapter in request.adapters)
            for request in self.requests
            if request.request_id in self.running
        )
        return AdapterStatus(
            digest=spec.digest,
            state=state,
            tier="device" if state == "resident" else "host" if spec.digest in self.kept else "disk",
            rank=8,
            pages=2,
            bytes=1000,
            host_bytes=1000 if spec.digest in self.kept else 0,
            pinned=spec.pinned,
            running=running,
            loads=self.loads[spec.digest],
            load_seconds=0.01,
            evictions=self.evictions.get(spec.digest, 0),
            evicted_for=self.evicted_for.get(spec.digest),
            last_used_seconds_ago=self.idle.get(spec.digest),
            clipping=self.clipping.get(spec.digest),
        )

    def ready(self) -> bool:
        return self.obstacle() is None

    def obstacle(self) -> str | None:
        return None if self.state is EngineState.READY else f"the engine is {self.state}"

    def heartbeat_age(self) -> float:
        return 0.1 if self.ready() else float("inf")

    def check_room(self, tenant: str) -> None:
        if len(self.running) >= self.max_queue:
            raise RequestRejected("overloaded", "the queue is full")

    async def start(self) -> None:
        self.info = EngineInfo(
            model="fake",
            architecture="LlamaForCausalLM",
            device="cpu",
            compute="none",
            arithmetic=self.arithmetic,
            runtime=self.runtime,
            base_files=self.loaded.base,
            kv_cache_files=self.loaded.kv_cache,
            dtype="float32",
            vocab_size=320,
            max_model_len=MAX_MODEL_LEN,
            block_size=16,
            num_blocks=self.num_blocks,
            kv_cache_bytes=1 << 20,
            kv_cache_dtype="fp8_e4m3",
            kv_values_per_token=1000,
            bfloat16_blocks=BLOCKS // 2,
            weight_bytes=1 << 20,
            adapter_memory=1 << 20,
            adapter_host_memory=1 << 20,
            max_loaded_adapters=8,
            num_threads=1,
            load_seconds=0.1,
            pooling=self.pooling,
            classified_by=self.classified_by,
            classes=self.classes,
            why_silent=self.why_silent,
            keeps_beginning=self.keeps_beginning,
            pooling_refusal="" if self.pooling else "modules.json has a module 'Dense'",
        )
        self.state = EngineState.READY

    async def stop(self, grace: float = 5.0) -> None:
        self.state = EngineState.STOPPED

    def crash(self) -> None:
        """Running requests end with EngineUnavailable at their next token."""
        self.state = EngineState.RESTARTING
        self.restarts += 1

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Tokens, None]:
        self._admit(request)
        (self.effect_checks if request.request_id.startswith("effect-check-") else self.requests).append(request)
        self.running.add(request.request_id)
        ended = False
        try:
            if request.pooling is not None:
                await asyncio.sleep(self.delay)
                self._maybe_crash(0)
                ended = True
                yield pooled_answer(request, self._classes_of(request))
                return
            outputs = [self._output(request) for _ in range(request.params.n)]
            for step in range(max(map(len, outputs)) + self.stagger * len(outputs)):
                await asyncio.sleep(self.delay)
                self._maybe_crash(step)
                while step == self.stays_at:
                    await asyncio.sleep(max(self.delay, 0.01))
                    self._maybe_crash(step)
                for index, output in enumerate(outputs):
                    own = step - index * self.stagger
                    if 0 <= own < len(output) and (request.request_id, index) not in self.ended_choices:
                        self.made += 1
                        yield self._tokens(request, index, output, own)
            ended = True
        finally:
            self.running.discard(request.request_id)
            if not ended:
                self.aborted.append(request.request_id)

    def end_choice(self, request_id: str, index: int) -> None:
        assert request_id in self.running
        self.ended_choices.append((request_id, index))

    def _classes_of(self, request: GenerateRequest) -> int:
        base = 0 if self.classes is None else len(self.classes.labels)
        return next((self.heads[it.digest] for it in request.adapters if it.digest in self.heads), base)

    def _admit(self, request: GenerateRequest) -> None:
        if not self.ready():
            raise EngineUnavailable(f"the engine is {self.state}")
        assert request.request_id not in self.running
        self.check_room(request.tenant)
        for adapter in request.adapters:
            if adapter.digest not in self.registered:
                raise RequestRejected("unavailable", f"adapter {adapter.digest[:12]} is not registered")
            if adapter.digest in self.fails:
                raise RequestRejected("internal", "the step failed")
            if adapter.digest in self.changing and len(request.adapters) > 1:
                raise RequestRejected("invalid", f"adapter {adapter.digest[:12]} changes what the base itself computes")

    def _maybe_crash(self, step: int) -> None:
        if self.crash_after is not None and step >= self.crash_after:
            self.crash()
        if not self.ready():
            raise EngineUnavailable("the engine stopped while this request ran")

    def _output(self, request: GenerateRequest) -> list[int]:
        """The sentence and the end-of-sequence token, or the sentence again and again, cut at max_tokens."""
        digest = request.adapters[0].digest if request.adapters else None
        sentence = self.says.get(digest or "") or self._tokenizer.encode(sentence_of(digest), add_special_tokens=False)
        limit = request.params.max_tokens
        room = MAX_MODEL_LEN - len(request.prompt_token_ids) if limit is None else limit
        if request.params.ignore_eos:
            return (sentence * (room // len(sentence) + 1))[:room] or [-1]
        eos = self._tokenizer.eos_token_id
        assert eos is not None
        output = [*sentence, eos][:room] or [-1]
        stop = next((at for at, token in enumerate(output) if token in request.params.stop_token_ids), len(output))
        return output[: stop + 1]

    def _tokens(self, request: GenerateRequest, index: int, output: list[int], step: int) -> Tokens:
        token, params = output[step], request.params
        token_ids = [token] if token >= 0 else []
        asked = token in params.stop_token_ids
        stopped = asked or (token == self._tokenizer.eos_token_id and not params.ignore_eos)
        last = step == len(output) - 1
        first_choice = step == 0 and index == 0
        return Tokens(
            request_id=request.request_id,
            index=index,
            token_ids=token_ids,
            logprobs=None if params.logprobs is None else [self._logprob(request, token) for token in token_ids],
            prompt_logprobs=self._prompt_logprobs(request) if first_choice else None,
            finish_reason=(FinishReason.STOP if stopped else FinishReason.LENGTH) if last else None,
            stop_reason=token if last and asked else None,
            cached_tokens=4 if step == 0 else 0,
            queue_seconds=QUEUE_SECONDS + LOAD_SECONDS if step == 0 else None,
            load_seconds=LOAD_SECONDS if step == 0 else None,
        )

    def _logprob(self, request: GenerateRequest, token_id: int) -> TokenLogprob:
        assert request.params.logprobs is not None
        found = logprob_of(token_id, request.params.logprobs)
        less = self.doubts.get(request.adapters[0].digest, 0.0) if request.adapters else 0.0
        top = [(token, value - less) for token, value in found.top]
        return TokenLogprob(token_id, found.logprob - less, found.rank, top)

    def _prompt_logprobs(self, request: GenerateRequest) -> list[TokenLogprob | None] | None:
        count = request.params.prompt_logprobs
        if count is None:
            return None
        self._read += not request.adapters
        less = self.shift if request.adapters else self.noise * (self._read % 2)
        found = [logprob_of(token, count) for token in request.prompt_token_ids[1:]]
        return [None, *(TokenLogprob(one.token_id, one.logprob - less, one.rank, one.top) for one in found)]

    async def register_adapter(self, spec: AdapterSpec) -> None:
        self._require_ready()
        if spec.digest in self.refused:
            raise AdapterError("its weights do not fit into the adapter memory")
        self.registered[spec.digest] = spec
        if spec.pinned:
            self._bring(spec.digest)

    async def unregister_adapter(self, digest: str) -> None:
        self._require_ready()
        if digest in self.stuck:
            raise AdapterError("its pages are not given back")
        self.registered.pop(digest, None)
        self.resident.discard(digest)
        self.loads.pop(digest, None)

    async def load_adapter(self, digest: str) -> None:
        self._require_known(digest)
        if digest in self.unloadable:
            raise AdapterError("it does not fit beside the pinned adapters")
        if digest in self.unfit:
            raise AdapterError("an output of no weight cannot be scaled", unfit=True)
        if self.full:
            await asyncio.Event().wait()
        self._bring(digest)

    async def evict_adapter(self, digest: str) -> None:
        self._require_known(digest)
        if self.registered[digest].pinned:
            raise AdapterError(f"adapter {digest[:12]} is pinned; unpin it first")
        self.evictions[digest] += digest in self.resident
        self.resident.discard(digest)

    async def pin_adapter(self, digest: str, pinned: bool) -> None:
        self._require_known(digest)
        self.registered[digest] = AdapterSpec(digest=digest, path=self.registered[digest].path, pinned=pinned)
        if pinned:
            self._bring(digest)

    def _bring(self, digest: str) -> None:
        self.loads[digest] += digest not in self.resident
        self.resident.add(digest)

    def _require_known(self, digest: str) -> None:
        self._require_ready()
        if digest not in self.registered:
            raise AdapterError("unknown adapter")

    def _require_ready(self) -> None:
        if not self.ready():
            raise EngineUnavailable(f"the engine is {self.state}")


def sentence_of(digest: str | None) -> str:
    """What the fake says with this adapter."""
    return BASE_SENTENCE if digest is None else f"adapter {digest[:8]} speaks"


def logprob_of(token_id: int, count: int) -> TokenLogprob:
    """The token itself is the most likely one; the alternatives follow by id."""
    value = -0.125 * (token_id % 8)
    top = [(token_id, value), *((3 + (token_id + step) % 300, value - step) for step in range(1, count))]
    return TokenLogprob(token_id, value, 1, top[:count])
