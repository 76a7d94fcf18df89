"""Random requests by both OpenAPI documents, answered as these say: no fault of the server, no status, field or content
type that is not described, and nothing taken that a schema forbids.

FUZZ_CASES and FUZZ_SEED: how many, and which.
"""

import copy
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi import checks

from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.web.openapi.admin import OPERATIONS as ADMIN
from loraplex.web.openapi.documents import admin_document, public_document
from loraplex.web.openapi.public import OPERATIONS as PUBLIC
from loraplex.web.state import open_state

from .conftest import make_settings
from .fake_engine import FakeEngine
from .known_server import KnownServer

CASES: Final = int(os.environ.get("FUZZ_CASES", "2000"))
SEED: Final = int(os.environ.get("FUZZ_SEED", "1"))
Operation = APIOperation[Any, Any, Any, Any]
OPERATIONS: Final = {**PUBLIC, **ADMIN}
DEMANDS: Final = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
]
CREDENTIALS: Final = ("operator", "operator", "operator", "session", "adapters", "inference", "nobody", "stranger")
CREDENTIAL_HEADERS: Final = ("authorization", "cookie", "x-csrf-token")
tried: Counter[tuple[str, int]] = Counter()
"""By operation and status."""


@pytest.fixture(scope="module")
def server(
    checkpoint: Path, adapter_folders: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KnownServer]:
    folder = tmp_path_factory.mktemp("schemas") / "data"
    own = make_settings(folder, checkpoint).model_copy(update={"adapter_folders": [adapter_folders[0].parent]})
    known = KnownServer(open_state(own, checkpoint, FakeEngine(Tokenizer(checkpoint))), adapter_folders)
    yield known
    known.close()


def operations_of(document: dict[str, Any], rows: Mapping[str, Any]) -> dict[str, Operation]:
    """By method and path; answers may have no member that is not described."""
    document, bodies = copy.deepcopy(document), {body.__name__ for row in rows.values() for body in row.body}
    for name, component in document["components"]["schemas"].items():
        if name not in bodies and "properties" in component:
            component.setdefault("additionalProperties", False)
    operations = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in operations}


ALL: Final = operations_of(public_document(""), PUBLIC) | operations_of(admin_document(""), ADMIN)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_answers_are_those_that_are_described(name: str, server: KnownServer) -> None:
    @seed(SEED)
    @settings(
        max_examples=share(name),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases(ALL[name], server), credential=st.sampled_from(CREDENTIALS))
    def ask(case: Case, credential: str) -> None:
        response = send(server, case, credential)
        tried[name, response.status_code] += 1
        case.validate_response(response, checks=DEMANDS)

    ask()
    server.restore()


@pytest.mark.parametrize("left_out", ["status", "member"])
def test_what_is_not_described_is_noticed(left_out: str, server: KnownServer) -> None:
    document = copy.deepcopy(admin_document(""))
    if left_out == "status":
        del document["paths"]["/api/v1/adapters/{name}"]["get"]["responses"]["404"]
    else:
        adapter = document["components"]["schemas"]["Adapter"]
        del adapter["properties"]["pinned"]
        adapter["required"].remove("pinned")
    operation = operations_of(document, ADMIN)["GET /api/v1/adapters/{name}"]
    case = operation.Case(path_parameters={"name": "absent" if left_out == "status" else "known"}, media_type=None)
    with pytest.raises(FailureGroup):
        case.validate_response(send(server, case, "operator"), checks=DEMANDS[:-1])


def test_enough_was_tried() -> None:
    """And not only what is refused."""
    assert sum(tried.values()) >= CASES
    succeeded = {name for name, status in tried if status < 300}
    assert len(succeeded) > 0.8 * len(OPERATIONS), sorted(OPERATIONS.keys() - succeeded)


def share(name: str) -> int:
    """Of a few more than all cases, for routes that take only so many; operations with a body get more."""
    weights = {each: 3 if row.body or row.raw else 1 for each, row in OPERATIONS.items()}
    return -(-CASES * 21 // 20 * weights[name] // sum(weights.values()))


def cases(operation: Operation, server: KnownServer) -> st.SearchStrategy[Case]:
    """By the schemas, against them, and such as mean what is there."""
    good, bad = (operation.as_strategy(mode) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE))
    return st.one_of(good, bad, operation.as_strategy(GenerationMode.POSITIVE, **server.known(operation)))


def send(server: KnownServer, case: Case, credential: str) -> Any:
    """With this credential in place of the random one that the strategy has made."""
    sent = requests.Request(**case.as_transport_kwargs(base_url="http://test")).prepare()
    own = {name: value for name, value in sent.headers.items() if name.lower() not in CREDENTIAL_HEADERS}
    return server.send(sent.method, sent.url, own | server.credentials[credential], sent.body)
