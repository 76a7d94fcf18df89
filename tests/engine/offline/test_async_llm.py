"""AsyncLLM over the engine's own process: the same answers as LLM, streams, aborts, ids and ends."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from loraplex import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    AsyncLLMEngine,
    EngineDeadError,
    LoRARequest,
    RequestOutputKind,
    SamplingParams,
    random_uuid,
)
from tests.checkpoints import make_adapter, make_checkpoint

SETTINGS: dict[str, Any] = {"num_kv_blocks": 64, "adapter_memory": 4 << 20, "num_threads": 1}
FIELDS: dict[str, Any] = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}
GREEDY = SamplingParams(**FIELDS)
CHAT = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter"), base, rank=4)


@dataclass(frozen=True)
class Shared:
    """One engine of several tests, in the loop that it lives in."""

    runner: asyncio.Runner
    engine: AsyncLLM

    def run(self, program: Callable[[AsyncLLM], Coroutine[Any, Any, None]]) -> None:
        self.runner.run(program(self.engine))


@pytest.fixture(scope="module")
def shared(base: Path) -> Iterator[Shared]:
    with asyncio.Runner() as runner:
        engine = AsyncLLM(AsyncEngineArgs(base, **SETTINGS))
        runner.run(engine.start())
        yield Shared(runner, engine)
        runner.run(engine.close())


async def last(engine: AsyncLLM, prompt: Any, params: SamplingParams = GREEDY, **named: Any) -> Any:
    return [output async for output in engine.generate(prompt, params, random_uuid(), **named)][-1]


def test_it_answers_as_llm_does(shared: Shared, base: Path, adapter: Path) -> None:
    request = LoRARequest("mine", 1, str(adapter))
    long = "hello " * 40
    with LLM(base, **SETTINGS) as llm:
        plain, adapted = llm.generate([long] * 2, GREEDY, lora_request=[None, request], use_tqdm=False)
        [chat] = llm.chat(CHAT, GREEDY, use_tqdm=False)

    async def program(engine: AsyncLLM) -> None:
        base_answer, own, learned_twice = await asyncio.gather(
            last(engine, long), last(engine, long, lora_request=request), last(engine, long, lora_request=request)
        )
        assert base_answer.outputs == plain.outputs
        assert own.outputs == learned_twice.outputs == adapted.outputs
        await engine.add_adapter("named", adapter)
        named = await last(engine, long, adapter="named")
        assert named.outputs[0].token_ids == adapted.outputs[0].token_ids
        chats = [output async for output in engine.chat(CHAT, GREEDY, "chat")]
        assert chats[-1].outputs == chat.outputs
        told = [output.outputs[0].text for output in chats]
        assert all(later.startswith(earlier) for earlier, later in pairwise(told))
        assert [output.finished for output in chats] == [False] * (len(chats) - 1) + [True]
        parts = [
            output.outputs[0].text
            async for output in engine.generate(
                long, SamplingParams(output_kind=RequestOutputKind.DELTA, **FIELDS), "delta"
            )
        ]
        assert "".join(parts) == plain.outputs[0].text
        # How many tokens an output brings depends on the machine's load; the first of many does not bring all.
        endless = engine.generate(long, SamplingParams(max_tokens=100, ignore_eos=True), "endless")
        assert not (await anext(endless)).finished
        await endless.aclose()
        assert (await engine.get_tokenizer()).name_or_path == str(base)

    shared.run(program)


def test_requests_that_are_wrong_are_refused_and_harm_nobody(shared: Shared, base: Path) -> None:
    async def program(engine: AsyncLLM) -> None:
        assert engine.is_running and not engine.errored
        running = engine.generate("hello", SamplingParams(max_tokens=100, ignore_eos=True), "one")
        await anext(running)
        for prompt, named, words in [
            ("hello", {"request_id": "one"}, "a request 'one' is running"),
            ([1, 999], {}, "token id 999, outside the vocabulary"),
            ([5] * 300, {}, "prompt and output together may have 256"),
            ("hello", {"adapter": "nobody"}, "there is no adapter 'nobody'"),
            ("hello", {"lora_request": LoRARequest("bad", 1, str(base))}, "has no adapter_config"),
        ]:
            arguments = {"request_id": random_uuid()} | named
            with pytest.raises(ValueError, match=words):
                async for _ in engine.generate(prompt, GREEDY, **arguments):
                    raise AssertionError("it was answered")
        assert [output async for output in running][-1].outputs[0].finish_reason == "length"
        assert (await last(engine, "hello")).finished

    shared.run(program)


def test_an_abort_ends_the_stream_and_frees_the_id(shared: Shared) -> None:
    async def program(engine: AsyncLLM) -> None:
        params = SamplingParams(max_tokens=200, n=2, ignore_eos=True)
        stream = engine.generate("hello", params, "one")
        await anext(stream)
        await engine.abort(["one", "nobody"])
        ended = [output async for output in stream][-1]
        assert ended.finished and {choice.finish_reason for choice in ended.outputs} == {"abort"}
        closed = engine.generate("hello", params, "one")
        await anext(closed)
        await closed.aclose()
        assert (await last(engine, "hello")).outputs[0].finish_reason == "length"

    shared.run(program)


def test_the_end_of_the_process_is_told_and_survived(shared: Shared) -> None:
    async def program(engine: AsyncLLM) -> None:
        stream = engine.generate("hello", SamplingParams(max_tokens=240, ignore_eos=True), "one")
        await anext(stream)
        assert engine._client.pid is not None
        os.kill(engine._client.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError):
            async for _ in stream:
                pass
        assert engine.errored
        with pytest.raises(EngineDeadError):
            await engine.check_health()
        async with asyncio.timeout(120):
            while not engine.is_running:
                await asyncio.sleep(0.1)
        assert (await last(engine, "hello")).finished

    shared.run(program)


def test_shutdown_ends_the_process(base: Path) -> None:
    async def run() -> None:
        engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(base, **SETTINGS), start_engine_loop=True)
        await last(engine, "hello")
        pid = engine._client.pid
        assert pid is not None
        engine.shutdown()
        await engine._closing
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        with pytest.raises(ValueError, match="this AsyncLLM is closed"):
            await last(engine, "hello")

    asyncio.run(run())


def test_an_engine_that_cannot_start_says_why(base: Path) -> None:
    async def run() -> None:
        engine = AsyncLLM(AsyncEngineArgs(base, num_kv_blocks=1))
        with pytest.raises(ValueError, match="the KV cache needs 2 blocks"):
            await engine.start()
        await engine.close()

    asyncio.run(run())


def test_sleep_ends_the_process_and_the_next_request_or_wake_up_starts_another(base: Path, adapter: Path) -> None:
    async def program() -> None:
        lora = LoRARequest("mine", 1, str(adapter))

        async def said(number: str) -> list[int]:
            outputs = [output async for output in engine.generate("hello", GREEDY, number, lora_request=lora)]
            return outputs[-1].outputs[0].token_ids

        async with AsyncLLM(AsyncEngineArgs(base, **SETTINGS)) as engine:
            assert await engine.add_lora(lora)
            before = await said("1")
            running = engine.generate("hello", SamplingParams(max_tokens=200, ignore_eos=True), "long")
            await anext(running)
            with pytest.raises(ValueError, match="requests are running"):
                await engine.sleep()
            await running.aclose()
            pid = engine._client.pid
            assert pid is not None and not await engine.is_sleeping()
            await engine.sleep(2)
            assert await engine.is_sleeping()
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            assert await said("2") == before and not await engine.is_sleeping()
            await engine.sleep()
            await engine.wake_up()
            assert not await engine.is_sleeping() and await said("3") == before

    asyncio.run(program())
