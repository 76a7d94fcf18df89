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
        with target.open("wb") as file:
            told = await run_file(create_app(state), state, source, file, heard.append)
    assert told == {True: 101, False: 1} and len(heard) == 102
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert [row["custom_id"] for row in rows] == [f"r{number}" for number in range(102)]
    for row, answer in zip(rows[:100], alone, strict=False):
        assert same(row["response"]["body"]) == same(answer.json())
    assert rows[-1]["response"]["body"]["error"]["param"] == "max_tokens" and rows[-1]["line"] == 102
    assert {request.priority for request in engine.requests} == {LAST}
    [row] = state.registry.usage.sums(UsageQuery(by=()))
    assert row.requests == len(alone), "nobody is charged for what runs here"


async def test_a_file_without_right_lines_is_refused_before_anything_runs(state: State, tmp_path: Path) -> None:
    source = tmp_path / "in"
    for content, words in (("", "no lines"), ("a,b\nc,d\n", "Line 1.*1 more lines"), ('{"custom_id": 5}', "custom_id")):
        source.write_text(content)
        with pytest.raises(ValueError, match=words):
            check_file(source, state)
    state.registry.close()


def typed(tmp_path: Path, *words: str, **more: Any) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "loraplex", "run-batch", *words]
    return subprocess.run(command, cwd=tmp_path, text=True, timeout=240, **({"capture_output": True} | more))


def served_by(checkpoint: Path, tmp_path: Path) -> list[str]:
    own = ["--served-model-name", "m", "--data-dir", str(tmp_path / "data"), "--max-model-len", "128"]
    return ["--model", str(checkpoint), *own]


@pytest.mark.parametrize("spelling", [("-i", "-o"), ("--input-file", "--output-file")])
def test_the_command(checkpoint: Path, tmp_path: Path, spelling: tuple[str, str]) -> None:
    source = write(tmp_path / "in", (COMPLETIONS, {"prompt": "a", "max_tokens": 3, "temperature": 0}), model="m")
    target = tmp_path / "out"
    ran = typed(tmp_path, spelling[0], str(source), spelling[1], str(target), *served_by(checkpoint, tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert "1 lines answered, 0 refused" in ran.stderr.replace("\n", " ")
    [row] = [json.loads(line) for line in target.read_text().splitlines()]
    assert row["response"]["body"]["usage"]["completion_tokens"] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "in", "out"]


def test_adapters_that_are_named_answer_and_standard_output_has_the_answers_alone(
    checkpoint: Path, adapter_folders: list[Path], tmp_path: Path
) -> None:
    """Standard output is a file with content here, as after `>>`; the log would be on it too, if it went there."""
    source = write(tmp_path / "in", *[(COMPLETIONS, {"prompt": "a", "max_tokens": 3})] * 3, model="s")
    named = ["--lora-modules", f"s={adapter_folders[0]}", "--log-level", "debug", "--output-tmp-dir", "/tmp/x"]
    (tmp_path / "out").write_text("before\n")
    with (tmp_path / "out").open("a") as out:
        ways = {"stdout": out, "stderr": subprocess.PIPE, "capture_output": False}
        ran = typed(tmp_path, "-i", str(source), "-o", "-", *named, *served_by(checkpoint, tmp_path), **ways)
    assert ran.returncode == 0, ran.stderr
    first, *lines = (tmp_path / "out").read_text().splitlines()
    assert first == "before" and [json.loads(line)["custom_id"] for line in lines] == ["r0", "r1", "r2"]
    assert {json.loads(line)["response"]["body"]["model"] for line in lines} == {"s"}
    assert "accepted without effect (docs/vllm.md): --output-tmp-dir" in ran.stderr


def test_a_bad_adapter_is_refused_before_a_line_runs(checkpoint: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "in", (COMPLETIONS, {"prompt": "a", "max_tokens": 3}), model="s")
    named = ["--lora-modules", "s=/no/such/folder"]
    ran = typed(tmp_path, "-i", str(source), "-o", "out", *named, *served_by(checkpoint, tmp_path))
    assert ran.returncode == 2 and "lora_modules: s: /no/such/folder has no adapter_config.json" in ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "in"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-i", "absent", "-o", "out"], "there is no file absent"),
        (["-i", "in", "-o", "no/out"], "/no for the answers"),
        (["-i", "in", "-o", "."], ". is a folder"),
        (["-i", "in", "-o", "in"], "in is the input file in; the answers need a file of their own"),
        (["-i", "in", "-o", "link"], "link is the input file in"),
        (["-i", "link", "-o", "in"], "in is the input file link"),
        (["-i", "https://host/in", "-o", "out"], "https://host/in is no file of this machine"),
        (["-i", "in", "-o", "https://host/out"], "https://host/out is no file of this machine"),
        (["-i", "in", "-o", "out", "--zzz"], "there is no option --zzz. loraplex run-batch --help lists all"),
    ],
)
def test_what_is_wrong_is_said_at_once(tmp_path: Path, arguments: list[str], words: str) -> None:
    (tmp_path / "in").write_text("{}")
    (tmp_path / "link").symlink_to("in")
    ran = typed(tmp_path, *arguments)
    assert ran.returncode == 2 and words in ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "link"] and (tmp_path / "in").read_text() == "{}"


def test_standard_output_may_not_be_the_input(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("{}")
    with (tmp_path / "in").open("a") as out:
        for name in ("-", "/dev/stdout", "/dev/fd/1"):
            ran = typed(tmp_path, "-i", "in", "-o", name, stdout=out, stderr=subprocess.PIPE, capture_output=False)
            assert ran.returncode == 2 and f"{name} is the input file in" in ran.stderr
