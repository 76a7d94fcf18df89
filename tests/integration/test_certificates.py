"""An uploaded adapter is certified by the real computation, whatever happens to the server meanwhile."""

import time
from pathlib import Path
from typing import Any

import httpx

from loraplex.engine.certify.certificate import Certificate

from .live_server import START_SECONDS, LiveServer
from .talk import upload

WAY = {"quantization": "int4", "kv_cache_dtype": "fp8_e4m3", "certify_uploads": True}


def until(client: httpx.Client, path: str, *states: str) -> dict[str, Any]:
    """How it stands once it is in one of these states."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        standing: dict[str, Any] = client.get(f"{path}/certificate").json()
        assert standing["state"] != "failed", standing
        if standing["state"] in states:
            return standing
        assert time.monotonic() < deadline, standing
        time.sleep(0.1)


def test_an_upload_is_certified_though_the_server_stops_meanwhile(
    checkpoint: Path, adapter_folders: dict[str, Path], tmp_path: Path
) -> None:
    server = LiveServer(tmp_path, checkpoint, num_kv_blocks=200, promotion_min_agreement=0.01, **WAY)
    path = "/api/v1/adapters/eight"
    try:
        server.start()
        with server.client() as client:
            digest = upload(client, "eight", adapter_folders["eight"])["version"]["digest"]
            assert client.put(f"{path}/aliases/prod", json={"version": 1}).status_code == 409
            until(client, path, "waiting", "running", "valid")
        server.signal_stop()
        assert server.wait_stopped(60) == 0
        assert server.processes() == []
        server.start()
        with server.client() as client:
            standing = until(client, path, "valid")
            certificate = Certificate.from_json(standing["certificate"])
            assert standing["digest"] == certificate.coverage.digest()
            assert certificate.coverage.adapter == digest
            assert certificate.coverage.quantization.startswith("int4 rounded at load")
            assert certificate.coverage.kv_cache_dtype == "fp8_e4m3"
            assert 0 < certificate.kv_cache.mean_kl < certificate.both.mean_kl
            assert certificate.weights.mean_kl > 0
            assert until(client, "/api/v1/engine", "valid")["certificate"]["coverage"]["adapter"] is None
            page = client.get("/adapters/eight", headers={"accept": "text/html"}).text
            assert f"{int(certificate.both.top1_agreement * 10_000) / 100:.2f} %" in page
            assert client.put(f"{path}/aliases/prod", json={"version": 1}).status_code == 200
        assert "Traceback" not in server.log()
    finally:
        server.end()
