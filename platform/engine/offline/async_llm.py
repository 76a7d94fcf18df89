"""AsyncLLM: the engine in a process of its own, for programs of asyncio. Text in, text out, with vLLM's names."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from ..config import EngineConfig
from ..ipc.client import EngineClient, EngineStartError, EngineUnavailable, RequestRejected
from ..protocol import EngineInfo, Tokens
from ..sampling_params import SamplingParams
from ..text.tokenizer import Tokenizer
from .adapter_book import AdapterBook
from .arguments import EngineArgs, check_level, check_tags
from .chat import Message, chat_prompts, transformers_tokenizer
from .collector import Collector
from .lora_request import LoRARequest
from .outputs import RequestOutput
from .pooling.collector import PooledCollector
from .pooling.outputs import PoolingRequestOutput
from .pooling.params import EMBED, PoolingParams, truncating, wanted_pooling
from .prompts import Adapter, Prompt
from .requests import RequestMaker

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONG_TEXT: Final = 16 << 10
"""Characters whose tokens are computed on a thread."""


Value = TypeVar("Value")


class EngineDeadError(RuntimeError):
    """The engine's process is away. A new one may be starting: the same call may work in a moment."""


class AsyncLLM:
    """The process starts with the first use. End it with shutdown(), `await close()` or `async with`."""

    def __init__(self, engine_args: EngineArgs, adapters: Mapping[str, str | Path] | None = None) -> None:
        """`adapters` maps names to folders in PEFT layout. ValueError for a model that is not there."""
        self._config: EngineConfig = engine_args.create_engine_config()
        self._folder = Path(self._config.tokenizer or self._config.model)
        self._tokenizer = Tokenizer(self._folder)
        self._adapters = AdapterBook(Path(self._config.model), self._tokenizer)
        self._first_adapters = dict(adapters or {})
        self._client = EngineClient(self._config)
        self._requests: RequestMaker | None = None
        self._starting = asyncio.Lock()
        self._learning = asyncio.Lock()
        self._live: dict[str, Collector | PooledCollector] = {}
        self._closed = self._asleep = False

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **_: Any) -> Self:
        """What else vLLM takes here is about its own process and logs."""
        return cls(engine_args)

    @property
    def is_running(self) -> bool:
        return self._client.ready()

    @property
    def errored(self) -> bool:
        """It has started, and does not answer now."""
        return self._requests is not None and not self._closed and not self._client.ready()

    @property
    def info(self) -> EngineInfo | None:
        """What was chosen at the start; None before it."""
        return self._client.info

    async def start(self) -> None:
        """Return when the engine is ready. ValueError with the engine's words for why it cannot start."""
        await self._started()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        adapter: Adapter | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """What is new of the answer as it comes, by `output_kind`. Closing the iterator aborts the request.

        ValueError for what is wrong with the request, and for an id that is in use. EngineDeadError, possibly after
        some outputs, when the engine's process ends.
        """
        make = (await self._prepared(request_id, lora_request)).make
        collector = await _made(prompt, make, request_id, prompt, sampling_params, lora_request or adapter, priority)
        with self._living(collector):
            async with aclosing(self._run(collector)) as outputs:
                async for output in outputs:
                    yield output

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        adapter: Adapter | None = None,
        priority: int = 0,
        truncate_prompt_tokens: int | None = None,
    ) -> AsyncGenerator[PoolingRequestOutput, None]:
        """The prompt's vector, once. Without a task in `pooling_params` it is an embedding. Errors as generate()."""
        requests, info = await self._prepared(request_id, lora_request), self._client.info
        assert info is not None, "it has started"
        params = truncating(pooling_params, truncate_prompt_tokens)
        pooling, most = wanted_pooling(params.task or EMBED, params, info), params.truncate_prompt_tokens
        arguments = (request_id, prompt, pooling, most, lora_request or adapter, priority)
        collector = await _made(prompt, requests.make_pooled, *arguments)
        with self._living(collector):
            async with aclosing(self._messages(collector)) as messages:
                async for message in messages:
                    collector.take(message)
            yield collector.output()

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        chat_template: str | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **generating: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """As generate(), of one conversation. ValueError as LLM.chat()."""
        [prompt] = chat_prompts(
            self._transformers_tokenizer,
            messages,
            chat_template=chat_template,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
        )
        async with aclosing(self.generate(prompt, sampling_params, request_id, **generating)) as outputs:
            async for output in outputs:
                yield output

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Each request's stream ends with finish_reason "abort". What is ended already, or unknown, is fine."""
        for one in [request_id] if isinstance(request_id, str) else list(request_id):
            collector = self._live.get(one)
            for index in range(0 if collector is None else collector.request.params.n):
                self._client.end_choice(one, index)

    async def add_adapter(self, name: str, folder: str | Path) -> None:
        """Requests may name it from now on. ValueError has every reason why it cannot be used."""
        await self._started()
        await self._client.register_adapter(await asyncio.to_thread(self._adapters.add, name, folder))

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Load the adapter before the first request that names it. ValueError as add_adapter()."""
        await self._started()
        await self._learn(lora_request)
        return True

    async def get_tokenizer(self) -> "PreTrainedTokenizerBase":
        """That of transformers."""
        return await asyncio.to_thread(lambda: self._transformers_tokenizer)

    async def check_health(self) -> None:
        """EngineDeadError when no requests are served."""
        obstacle = self._client.obstacle()
        if obstacle is not None:
            raise EngineDeadError(obstacle)

    async def sleep(self, level: int = 1) -> None:
        """End the engine's process, and so free its memory, until wake_up() or the next request. ValueError while
        requests run."""
        check_level(level)
        async with self._starting:
            if self._live:
                raise ValueError("requests are running: end or abort them before sleep()")
            if self._requests is not None:
                self._requests, self._asleep = None, True
                await self._client.stop()
                self._client = EngineClient(self._config)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Return when the model and the adapters are loaded again. ValueError as LLM.wake_up()."""
        check_tags(tags)
        await self._started()

    async def is_sleeping(self) -> bool:
        return self._asleep

    async def close(self) -> None:
        """End the engine's process. What runs ends with EngineDeadError. Twice is no error."""
        self._closed = True
        await self._client.stop()
        self._adapters.close()

    def shutdown(self) -> None:
        """close() without waiting for it. Within a running loop, the loop does it."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self.close())
        else:
            self._closing = loop.create_task(self.close())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @cached_property
    def _transformers_tokenizer(self) -> "PreTrainedTokenizerBase":
        return transformers_tokenizer(self._folder)

    async def _started(self) -> RequestMaker:
        async with self._starting:
            if self._closed:
                raise ValueError("this AsyncLLM is closed; make a new one")
            if self._requests is None:
                for name in list(self._first_adapters):
                    await asyncio.to_thread(self._adapters.add, name, self._first_adapters[name])
                    del self._first_adapters[name]
                try:
                    await self._client.start()
                except EngineStartError as error:
                    raise ValueError(str(error)) from error
                for spec in self._adapters.specs:
                    await self._client.register_adapter(spec)
                assert self._client.info is not None
                self._asleep = False
                self._requests = RequestMaker(self._tokenizer, self._adapters, self._client.info)
            return self._requests

    async def _learn(self, request: LoRARequest | None) -> None:
        if request is None:
            return
        async with self._learning:
            spec = await asyncio.to_thread(self._adapters.learn, request)
            if spec is not None:
                await self._client.register_adapter(spec)

    async def _prepared(self, request_id: str, lora_request: LoRARequest | None) -> RequestMaker:
        """ValueError for an id that is in use, and for an adapter that cannot be used."""
        requests = await self._started()
        self._check_new(request_id)
        await self._learn(lora_request)
        return requests

    def _check_new(self, request_id: str) -> None:
        if request_id in self._live:
            raise ValueError(f"a request {request_id!r} is running; give each request an id of its own")

    @contextmanager
    def _living(self, collector: Collector | PooledCollector) -> Iterator[None]:
        request_id = collector.request.request_id
        self._check_new(request_id)
        self._live[request_id] = collector
        try:
            yield
        finally:
            del self._live[request_id]

    async def _run(self, collector: Collector) -> AsyncGenerator[RequestOutput, None]:
        async with aclosing(self._messages(collector)) as messages:
            async for tokens in messages:
                if collector.take(tokens):
                    self._client.end_choice(tokens.request_id, tokens.index)
                output = collector.news()
                if output is not None:
                    yield output
                if collector.finished:
                    return

    async def _messages(self, collector: Collector | PooledCollector) -> AsyncGenerator[Tokens, None]:
        try:
            async with aclosing(self._client.generate(collector.request)) as stream:
                async for tokens in stream:
                    yield tokens
        except RequestRejected as error:
            raise (ValueError if error.kind == "invalid" else RuntimeError)(str(error)) from error
        except EngineUnavailable as error:
            raise EngineDeadError(str(error)) from error


async def _made(prompt: Prompt, make: Callable[..., Value], *arguments: Any) -> Value:
    """make(*arguments), on a thread where the prompt is a long text."""
    is_long = isinstance(prompt, str) and len(prompt) > LONG_TEXT
    return await asyncio.to_thread(make, *arguments) if is_long else make(*arguments)
