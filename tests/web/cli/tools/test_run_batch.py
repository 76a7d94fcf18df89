"""`loraplex run-batch`: a file in, a file out, each line as the server would answer it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loraplex.engine.protocol import LAST
from loraplex.registry.usage.usage import UsageQuery
from loraplex.web.app import create_app
from loraplex.web.batches.file_run import check_file, run_file
from loraplex.web.state import State

from ...batches.test_batches import same
from ...conftest import served
from ...fake_engine import FakeEngine

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


def write(path: Path, *bodies: tuple[str, dict[str, Any]], model: str = "tiny") -> Path:
    rows = [
        {"custom_id": f"r{number}", "method": "POST", "url": url, "body": {"model": model, **body}}
        for number, (url, body) in enumerate(bodies)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


async def test_answers_are_in_the_files_order_and_as_the_server_gives_them(
    state: State, engine: FakeEngine, tmp_path: Path
) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    bodies = [(COMPLETIONS, {"prompt": "a", "max_tokens": 1 + (7 * number) % 20}) for number in range(100)]
    source = write(tmp_path / "in", *bodies, (CHATS, chat | {"max_tokens": 3}), (CHATS, chat | {"max_tokens": "x"}))
    target, heard = tmp_path / "out", list[bool]()
    async with served(state) as client:
        alone = [await client.post(url, json={"model": "tiny", **body}) for url, body in [*bodies, (CHATS, chat)]]
        engine.requests.clear()
        engine.delay = 0.001
        assert check_file(source, state) == 102
        told = await run_file(create_app(state), state, source, target, heard.append)
    assert told == {True: 101, False: 1} and len(heard) == 102
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == [f"r{number}" for number in range(102)]
    for row, answer in zip(rows[:100], alone, strict=False):
        assert same(row["response"]["body"]) == same(answer.json())
    assert rows[-1]["response"]["body"]["error"]["param"] == "max_tokens" and rows[-1]["line"] == 102
    assert {request.priority for request in engine.requests} == {LAST}
    [row] = state.registry.usage.sums(UsageQuery(by=()))
    assert row.requests == len(alone), "nobody is charged for what runs here"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out"]


async def test_a_file_without_right_lines_is_refused_before_anything_runs(state: State, tmp_path: Path) -> None:
    source = tmp_path / "in"
    for content, words in (("", "no lines"), ("a,b\nc,d\n", "Line 1.*1 more lines"), ('{"custom_id": 5}', "custom_id")):
        source.write_text(content)
        with pytest.raises(ValueError, match=words):
            check_file(source, state)
    state.registry.close()


@pytest.mark.parametrize("spelling", [("-i", "-o"), ("--input-file", "--output-file")])
def test_the_command(checkpoint: Path, tmp_path: Path, spelling: tuple[str, str]) -> None:
    source = write(tmp_path / "in", (COMPLETIONS, {"prompt": "a", "max_tokens": 3, "temperature": 0}), model="m")
    target = tmp_path / "out"
    given = [spelling[0], str(source), spelling[1], str(target), "--model", str(checkpoint)]
    own = ["--served-model-name", "m", "--data-dir", str(tmp_path / "data"), "--max-model-len", "128"]
    command = [sys.executable, "-m", "loraplex", "run-batch", *given, *own]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    assert "1 lines answered, 0 refused" in ran.stderr.replace("\n", " ")
    [row] = [json.loads(line) for line in target.read_text().splitlines()]
    assert row["response"]["body"]["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-i", "absent", "-o", "out"], "there is no file absent"),
        (["-i", "in", "-o", "no/out"], "there is no folder no"),
    ],
)
def test_what_is_wrong_is_said_at_once(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "in").write_text("{}")
    command = [sys.executable, "-m", "loraplex", "run-batch", *arguments]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 2 and words in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
