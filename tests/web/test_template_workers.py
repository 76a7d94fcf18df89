"""Templates of strangers: what they may do, and what stops at the border of their process."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loraplex.web.chat_templates import process
from loraplex.web.chat_templates.chat_template import ChatTemplate, TemplateFailure
from loraplex.web.chat_templates.job import RenderJob
from loraplex.web.chat_templates.pool import TemplateWorkers
from loraplex.web.chat_templates.process import TemplateProcess, TemplateTooSlow

from .chat_templates.test_chat_template import CHATS, NAMED, TEMPLATES

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Hello"}]
SLOW = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
GREETING = "{{ messages[0].content }}"


def job(source: str, max_chars: int = 100_000, **variables: Any) -> RenderJob:
    return RenderJob(source, NAMED, max_chars, MESSAGES, variables=variables)


@pytest.fixture(scope="module")
def worker() -> Iterator[TemplateProcess]:
    worker = TemplateProcess()
    yield worker
    worker.close()


@pytest.fixture
def workers() -> Iterator[TemplateWorkers]:
    workers = TemplateWorkers()
    yield workers
    workers.close()


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_worker_renders_as_this_process_does(worker: TemplateProcess, name: str, chat: list[dict[str, Any]]) -> None:
    here = ChatTemplate(TEMPLATES[name], NAMED, 10_000).render(chat, variables={"enable_thinking": True})
    assert worker.render(RenderJob(TEMPLATES[name], NAMED, 10_000, chat, variables={"enable_thinking": True})) == here


def test_continuations_filters_and_large_numbers(worker: TemplateProcess) -> None:
    chat = [*MESSAGES, {"role": "assistant", "content": "I was "}]
    continued = RenderJob(TEMPLATES["chatml"], NAMED, 10_000, chat, False, continue_final_message=True)
    assert worker.render(continued).endswith("<|im_start|>assistant\nI was")
    assert worker.render(job("{{ 'a b' | wordwrap(1) }}{{ messages | pprint }}{{ n }}", n=10**30)).endswith("0" * 30)


ATTACKS = {
    "{{ 'a' * 10**9 }}": "memory",
    "{{ [1] * 10**9 }}": "memory",
    "{{ '%1000000000d' % 3 }}": "memory",
    "{% set n = namespace(a='a' * 1000) %}{% for i in range(40) %}{% set n.a = n.a + n.a %}{% endfor %}": "memory",
    "{% for a in range(100000) %}{{ 'x' * 10000 }}{% endfor %}": "longer than 100000 characters",
    "{{ 'x' * 100001 }}": "longer than 100000 characters",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}": "recursion",
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}": "RecursionError",
    "{% for a in b %}" * 300 + "{% endfor %}" * 300: "RecursionError",
    "{{ ''.__class__.__mro__ }}": "unsafe",
    "{{ messages.__class__.__base__.__subclasses__() }}": "unsafe",
    "{{ cycler.__init__.__globals__ }}": "unsafe",
    "{{ raise_exception.__globals__.os }}": "unsafe",
    "{{ (''|attr('__class__')).x }}": "unsafe",
    "{% set x = messages.append(1) %}": "unsafe",
    "{{ range(10**7) }}": "Range too big",
    "{% include '/etc/passwd' %}": "no loader",
    "{% for %}": "broken in line 1",
}


@pytest.mark.parametrize("source", ATTACKS)
def test_attacks_are_refused_and_leave_the_worker_serving(
    worker: TemplateProcess, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stops each is not the time, however busy the machine is."""
    monkeypatch.setattr(process, "SECONDS", 60.0)
    with pytest.raises(TemplateFailure, match=ATTACKS[source]):
        worker.render(job(source))
    assert worker.render(job(GREETING)) == "Hello"


@pytest.mark.parametrize("source", [SLOW, "{{ lipsum(n=100000000) }}", "{{ 7 ** (10 ** 8) % 10 }}"])
def test_a_loop_without_output_is_killed(worker: TemplateProcess, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.render(job(GREETING))
    killed = worker._child
    monkeypatch.setattr(process, "SECONDS", 0.3)
    with pytest.raises(TemplateTooSlow):
        worker.render(job(source))
    assert killed is not None and killed.returncode == -signal.SIGKILL
    monkeypatch.undo()
    assert worker.render(job(GREETING)) == "Hello"


def test_a_worker_that_dies_is_replaced(worker: TemplateProcess) -> None:
    worker.render(job(GREETING))
    assert worker._child is not None
    worker._child.kill()
    worker._child.wait()
    with pytest.raises(TemplateFailure, match="ended the process"):
        worker.render(job(GREETING))
    assert worker.render(job(GREETING)) == "Hello"


def test_an_escape_from_the_sandbox_would_find_nothing(worker: TemplateProcess) -> None:
    """No file, no socket, no secret, no torch, little memory."""
    worker.render(job(GREETING))
    assert worker._child is not None
    folder = Path(f"/proc/{worker._child.pid}")
    lines = {line[:26].strip(): line[26:].split() for line in (folder / "limits").read_text().splitlines()}
    assert lines["Max open files"][0] == "3"
    assert lines["Max file size"][0] == "0"
    assert int(lines["Max address space"][0]) == 256 << 20
    names = {variable.partition("=")[0] for variable in (folder / "environ").read_text().split("\0") if variable}
    assert names <= {"PATH", "PYTHONPATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LC_CTYPE"}
    assert "libtorch" not in (folder / "maps").read_text()
    assert len(list((folder / "fd").iterdir())) == 3


async def test_others_are_rendered_meanwhile(workers: TemplateWorkers) -> None:
    """One template is slow: the event loop runs on, the other worker answers, and the slow one has to rest."""
    await asyncio.gather(*(workers.render("good", job(GREETING)) for _ in range(4)))
    slow = asyncio.create_task(workers.render("bad", job(SLOW)))
    answers = 0
    while not slow.done():
        assert await workers.render("good", job(GREETING)) == "Hello"
        answers += 1
    assert answers > 1
    with pytest.raises(TemplateTooSlow):
        await slow
    with pytest.raises(TemplateFailure, match="tried again after"):
        await workers.render("bad", job(GREETING))


async def test_no_process_is_started_before_it_is_needed(workers: TemplateWorkers) -> None:
    assert [worker._child for worker in workers._processes.queue] == [None, None, None]
    await workers.render("one", job(GREETING))
    children = [worker._child for worker in workers._processes.queue]
    assert children.count(None) == 2
    workers.close()
    assert all(child is None or child.returncode is not None for child in children)
