"""KnownServer: a whole app in this process, with one of everything that has a name, and a credential of every kind."""

import asyncio
import hashlib
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from schemathesis.schemas import APIOperation

from loraplex.registry.adapters.views import Adapter
from loraplex.registry.batches.batches import NewBatch
from loraplex.registry.database.tables import DEFAULT_TENANT, utc_now
from loraplex.registry.files.artifacts import CONFIG_FILE, WEIGHTS_FILE
from loraplex.web.access.sessions import COOKIE
from loraplex.web.management.registration import FIELDS
from loraplex.web.state import State

from .conftest import ADMIN_PASSWORD, served
from .test_adapters_api import add

ADAPTER, ALIAS, USER, TENANT = "known", "stable", "mia", "guests"
BY = {"actor": "system", "tenant": DEFAULT_TENANT}


class KnownServer:
    """Asked from code that is not async. `restore` brings back what a request has removed or changed."""

    def __init__(self, state: State, folders: list[Path]) -> None:
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._state, self._folders = state, folders
        self._client = self._run(self._stack.enter_async_context(served(state)))
        del self._client.headers["authorization"]
        self.credentials = {name: self._key(name) for name in ("operator", "adapters", "inference")}
        self.credentials |= {"session": self._log_in(), "nobody": {}, "stranger": {"authorization": "Bearer x" * 9}}
        self._key_prefix, self._versions = "", (0, 0)
        self._file = self._batch = self._response_id = ""
        self.restore()

    def close(self) -> None:
        self._run(self._stack.aclose())
        self._loop.close()

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> httpx.Response:
        return self._run(self._client.request(method, url, headers=dict(headers), content=body))

    def known(self, operation: APIOperation[Any, Any, Any, Any]) -> dict[str, Any]:
        """Parameters and body of a request that means what is there."""
        names = {
            "name": ADAPTER,
            "reference": f"{ADAPTER}@{self._versions[0]}",
            "alias": ALIAS,
            "filename": CONFIG_FILE,
        }
        names |= {"user": USER, "tenant": TENANT, "prefix": self._key_prefix}
        names |= {"file_id": self._file, "batch_id": self._batch, "response_id": self._response_id}
        given: dict[str, Any] = {
            "path_parameters": {each.name: names[each.name] for each in operation.path_parameters},
            "query": {each.name: "" for each in operation.query if each.name == "tenant"},
        }
        body = self._bodies().get(f"{operation.method.upper()} {operation.path}")
        if isinstance(body, bytes):
            sha256 = hashlib.sha256(body).hexdigest()
            given |= {"body": body, "media_type": "application/octet-stream", "headers": {"x-content-sha256": sha256}}
        elif body is not None:
            given |= {"body": body, "media_type": "application/json"}
        return given

    def _bodies(self) -> dict[str, Any]:
        config, weights = ((self._folders[0] / file).read_bytes() for file in (CONFIG_FILE, WEIGHTS_FILE))
        digests = [hashlib.sha256(file).hexdigest() for file in (config, weights)]
        stable, candidate = self._versions
        load = {"lora_name": ADAPTER, "lora_path": str(self._folders[0]), "load_inplace": True}
        pair, ranked = {"text_1": "a", "text_2": ["b", "c"]}, {"query": "a", "documents": ["b", "c"]}
        return {
            "POST /v1/embeddings": {"model": "tiny", "input": ["a", "b"]},
            "POST /pooling": {"input": [5, 6]},
            "POST /api/chat": {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "stream": False},
            "POST /api/generate": {"model": "tiny", "prompt": "a", "stream": False},
            "POST /api/embed": {"model": "tiny", "input": ["a", "b"]},
            "POST /api/embeddings": {"model": "tiny", "prompt": "a"},
            "POST /api/show": {"model": "tiny"},
            **dict.fromkeys(("POST /score", "POST /v1/score"), pair),
            **dict.fromkeys(("POST /rerank", "POST /v1/rerank", "POST /v2/rerank"), ranked),
            "POST /api/v1/adapters/{name}/versions": dict(zip(FIELDS.values(), digests, strict=False)),
            "PUT /api/v1/adapters/{name}/files/{filename}": config,
            "PUT /api/v1/adapters/{name}/aliases/{alias}": {"weights": {str(stable): 90, str(candidate): 10}},
            "POST /api/v1/adapters/{name}/aliases/{alias}/promote": {"version": candidate},
            "PUT /api/v1/adapters/{name}/aliases/{alias}/guard": {"max_error_rate": 0.1},
            "PUT /api/v1/adapters/{name}/aliases/{alias}/shadow": {"version": candidate, "percent": 10},
            "PUT /api/v1/adapters/{reference}/profile": {"temperature": 0.5},
            "PUT /api/v1/me/password": {"current": ADMIN_PASSWORD, "new": ADMIN_PASSWORD},
            "POST /v1/load_lora_adapter": load,
            "POST /load_lora_adapter": load,
        }

    def restore(self) -> None:
        registry = self._state.registry
        registry.snapshots.refresh()
        adapter = registry.snapshots.current.adapters.get(DEFAULT_TENANT, {}).get(ADAPTER)
        if adapter is None or not self._is_whole(adapter):
            self._add_adapter(adapter)
        stable, candidate = self._versions
        registry.adapters.routes.set(ADAPTER, ALIAS, stable, {stable: 90, candidate: 10}, **BY)
        if TENANT not in registry.snapshots.current.tenants:
            registry.tenants.create(TENANT, actor="system")
        if registry.users.get(USER) is None:
            registry.users.create(USER, ADMIN_PASSWORD, "editor", **BY)
        if self._key_prefix not in {key.prefix for key in registry.keys.list() if key.revoked_at is None}:
            self._key_prefix = registry.keys.create("known", ["inference"], **BY).key.prefix
        if self._file not in {file.id for file in registry.files.list(DEFAULT_TENANT).items}:
            self._file = self._add_file()
        if self._batch not in {batch.id for batch in registry.batches.list(DEFAULT_TENANT, limit=1000).items}:
            new = NewBatch("/v1/completions", self._file)
            self._batch = registry.batches.create(new, **BY, most_waiting=10_000).id
        if self._state.sessions.read(self.credentials["session"]["cookie"].removeprefix(f"{COOKIE}=")) is None:
            self.credentials["session"] = self._log_in()
        registry.snapshots.refresh()
        self._run(self._become_ready())
        self._response_id = self._ask_for_response()

    def _add_file(self) -> str:
        files = self._state.registry.files
        with files.begin(DEFAULT_TENANT, 0, most_bytes=1 << 40) as writer:
            writer.write(b"{}")
            return files.add(writer, "known.jsonl", **BY, expires_at=utc_now() + timedelta(days=1)).id

    async def _become_ready(self) -> None:
        """The engine knows what was restored."""
        await self._state.reconciler.reconcile()
        (await self._client.get("/ready")).raise_for_status()

    def _ask_for_response(self) -> str:
        """The id of one that is kept."""
        body, headers = {"model": "tiny", "input": "Hello"}, self.credentials["operator"]
        answer: dict[str, str] = self._run(self._client.post("/v1/responses", json=body, headers=headers)).json()
        return answer["id"]

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def _key(self, name: str) -> dict[str, str]:
        scope = "admin" if name == "operator" else name
        token = self._state.registry.keys.create(name, [scope], **BY).token
        self._state.registry.snapshots.refresh()
        return {"authorization": f"Bearer {token}"}

    def _log_in(self) -> dict[str, str]:
        cookie = self._state.sessions.log_in("admin", ADMIN_PASSWORD, "127.0.0.1")
        assert cookie is not None
        session = self._state.sessions.read(cookie)
        assert session is not None
        return {"cookie": f"{COOKIE}={cookie}", "x-csrf-token": session.csrf_token, "origin": "http://test"}

    def _is_whole(self, adapter: Adapter) -> bool:
        enabled = {version.number for version in adapter.versions if version.enabled}
        return adapter.enabled and enabled.issuperset(self._versions)

    def _add_adapter(self, instead_of: Adapter | None) -> None:
        """In two versions, whose numbers go on counting from those of one that was removed."""
        if instead_of is not None:
            self._state.registry.adapters.remove(ADAPTER, **BY)
        self._client.headers.update(self.credentials["operator"])
        added = [self._run(add(self._client, ADAPTER, folder)) for folder in self._folders]
        first, second = (response.json()["version"]["number"] for response in added)
        self._versions = first, second
        del self._client.headers["authorization"]
