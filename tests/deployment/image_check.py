"""Build both images and run them as docs/deploy.md says: `make image-check`, half an hour.

Podman builds and runs; podman-compose reads docker-compose.yml. No container registry is asked: debootstrap makes the
base, and a stand-in for PostgreSQL's image is built on it. Left out are Prometheus, Grafana, and the GPU itself.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

import httpx

from .dockerfile import ROOT
from .image.base import make_base
from .image.engine import Engine, require_packages
from .image.packages import mounts
from .image.stack import Stack, container, start, stop, wait_healthy

BASE = "localhost/base:python"
MODEL = "/opt/loraplex/examples/demo/model"
SERVER = container("loraplex")
BUILD_ARGUMENTS = {"cpu": [], "gpu": ["--build-arg=TORCH=torch===2.13.0"]}
"""=== takes no build for CPUs that this machine may have in a folder: that one has a longer version."""


def build(engine: Engine, image: str, folder: Path, *options: str) -> None:
    started = time.monotonic()
    fixed = ["--isolation=chroot", "--format=docker", "--layers=false", "--pull=never", "--quiet"]
    engine.show("build", *fixed, *options, f"--build-arg=PYTHON_IMAGE={BASE}", f"--tag={image}", str(folder))
    size, base = engine.size(image) / 1e9, engine.size(BASE) / 1e9
    tell(f"{image}: built in {time.monotonic() - started:.0f} s, {size:.2f} GB, {base:.2f} GB of it the base")


def check_compose(engine: Engine, stack: Stack) -> None:
    """The profile `cpu`: contained, answering, stopped in order, and back from its backup."""
    stack.create("cpu")
    tell(f"compose: healthy after {start(engine, SERVER):.0f} s")
    check_contained(engine)
    key = generated_key(engine, SERVER)
    assert key in engine.text("exec", SERVER, "loraplex", "credentials", "show")
    answer = ask(stack.port, key)
    later = json.loads(engine.text("exec", SERVER, "loraplex", "keys", "create", "later", "--json"))["token"]
    saved = engine.run("exec", SERVER, "loraplex", "backup", "-").stdout
    tell(f"compose: SIGTERM ended it in {stop(engine, SERVER):.0f} s")
    tell(f"compose: the second start took {start(engine, SERVER):.0f} s")
    assert ask(stack.port, later) == answer
    stop(engine, SERVER)
    stack.remove("cpu")
    engine.run("volume", "rm", "loraplex_data")
    stack.run("loraplex", "restore", "-", input=saved)
    assert "/data" in stack.run("loraplex", "config") and "ok " in stack.run("loraplex", "doctor")
    stack.create("cpu")
    start(engine, SERVER)
    assert ask(stack.port, later) == answer
    stack.remove("cpu")
    engine.run("volume", "rm", "loraplex_data")
    tell(f"compose: restored from a backup of {len(saved) / 1e6:.1f} MB; config and doctor run")


def check_contained(engine: Engine) -> None:
    status = engine.text("exec", SERVER, "cat", "/proc/1/status")
    for line in ("Uid:\t10001\t10001\t10001\t10001", "CapEff:\t0000000000000000", "NoNewPrivs:\t1"):
        assert line in status, status
    for folder in ("/opt/loraplex", "/etc", "/cache", "/data", "/tmp"):
        code = engine.run("exec", SERVER, "touch", f"{folder}/written", check=False).returncode
        assert (code == 0) == (folder in ("/cache", "/data", "/tmp")), folder
    ports = json.loads(engine.text("inspect", "--format", "{{json .HostConfig.PortBindings}}", SERVER))
    assert [bound["HostIp"] for bindings in ports.values() for bound in bindings] == ["127.0.0.1"], ports


def check_passwords(engine: Engine, stack: Stack) -> None:
    """A weak one is refused by the service that judges it."""
    for service, secret in (
        ("postgres-password", "server/postgres_password"),
        ("grafana-password", "grafana_password"),
    ):
        stack.create("postgres,observability", service)
        code, said = stack.run_to_end(service)
        assert code == 0, said
        file = stack.secret(secret)
        good = file.read_text()
        file.write_text("changeme")
        code, said = stack.run_to_end(service)
        assert code == 2 and "easily guessed" in said, said
        file.write_text(good)
    stack.remove("postgres,observability")
    tell("compose: both services that judge passwords refuse a weak one")


def check_postgres(engine: Engine, stack: Stack) -> None:
    """The profiles `cpu` and `postgres`, in the order of `depends_on`."""
    stack.create("cpu,postgres", database="postgres")
    start(engine, container("postgres"))
    code, said = stack.run_to_end("migrate")
    assert code == 0, said
    stack.start_all()
    wait_healthy(engine, SERVER)
    ask(stack.port, generated_key(engine, SERVER))
    assert "loraplex.db" not in engine.text("exec", SERVER, "ls", "/data")
    stop(engine, SERVER)
    stack.remove("cpu,postgres")
    tell("compose: migrated and served on PostgreSQL")


def check_licences(engine: Engine, target: str) -> None:
    for name in ("LICENSE", "THIRD_PARTY.md"):
        read = engine.run("run", "--rm", "--entrypoint=cat", f"localhost/loraplex:{target}", f"/opt/loraplex/{name}")
        assert read.stdout == (ROOT / name).read_bytes(), name
    tell(f"{target}: LICENSE and THIRD_PARTY.md are in the image")


def check_run(engine: Engine, target: str, port: int) -> None:
    """`docker run IMAGE --model M` and no more than a port: the server is process 1, on volumes without a name."""
    name = f"alone-{target}"
    engine.run("network", "create", name)
    words = [f"--network={name}", f"--publish=127.0.0.1:{port}:8000", "--volume=loraplex_cache:/cache"]
    words.append(f"localhost/loraplex:{target}")
    engine.run(
        "run", "--detach", f"--name={name}", *words, "--model", MODEL, "--served-name", "mine", "--device", "cpu"
    )
    wait_healthy(engine, name)
    ask(port, generated_key(engine, name), "mine")
    tell(f"run {target} --model M: answers; SIGTERM ended it in {stop(engine, name):.0f} s")


def check_gpu(engine: Engine) -> None:
    """What can be known without a GPU: the packages are CUDA's, the compiler is there, and the lack of one is said."""
    program = "import torch, triton; assert torch.version.cuda; print(torch.__version__, triton.__version__)"
    image = "localhost/loraplex:gpu"
    versions = engine.text("run", "--rm", "--entrypoint=python", image, "-c", program)
    compiled = engine.text(
        "run", "--rm", "--entrypoint=sh", image, "-c", "cd /tmp; echo 'int f;' >f.c; gcc -shared f.c; ls"
    )
    assert "a.out" in compiled, compiled
    ended = engine.run("run", "--rm", image, check=False)
    assert ended.returncode == 1 and b"no CUDA device" in ended.stderr, ended.stderr.decode()
    tell(f"gpu: torch and triton {versions}; without a GPU it says so and ends")


def generated_key(engine: Engine, name: str) -> str:
    return str(json.loads(engine.text("exec", name, "cat", "/data/credentials.json"))["api_key"])


def ask(port: int, key: str, model: str | None = None) -> str:
    """Of the model, or the first that is offered."""
    with httpx.Client(
        base_url=f"http://127.0.0.1:{port}/v1", headers={"authorization": f"Bearer {key}"}, trust_env=False
    ) as http:
        chosen = model or http.get("/models").raise_for_status().json()["data"][0]["id"]
        asked = {
            "model": chosen,
            "messages": [{"role": "user", "content": "Hello"}],
            "temperature": 0,
            "max_tokens": 16,
        }
        answer = http.post("/chat/completions", json=asked, timeout=60).raise_for_status().json()
    return str(answer["choices"][0]["message"]["content"])


def tell(line: str) -> None:
    print(f"  {line}", flush=True)


def check(engine: Engine, folder: Path, targets: list[str]) -> None:
    make_base(engine, BASE, folder / "base")
    options = mounts(folder)
    for target in targets:
        build(engine, f"localhost/loraplex:{target}", ROOT, *options, f"--target={target}", *BUILD_ARGUMENTS[target])
    stack = Stack(engine, folder / "project")
    if "cpu" in targets:
        build(engine, "docker.io/library/postgres:17.7", Path(__file__).parent / "image" / "postgres", *options)
        for tag in ("migrate", "postgres-password", "grafana-password"):
            engine.run("tag", "localhost/loraplex:cpu", f"localhost/loraplex:{tag}")
        check_compose(engine, stack)
        check_passwords(engine, stack)
        check_postgres(engine, stack)
    if "gpu" in targets:
        check_gpu(engine)
    for target in targets:
        check_licences(engine, target)
        check_run(engine, target, stack.port)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=BUILD_ARGUMENTS, help="this image alone")
    given = parser.parse_args()
    require_packages()
    folder = Path(tempfile.mkdtemp(prefix="loraplex-image-"))
    engine = Engine(folder)
    try:
        check(engine, folder, [given.target] if given.target else list(BUILD_ARGUMENTS))
    finally:
        engine.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
