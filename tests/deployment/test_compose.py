"""docker-compose.yml without a container engine: against the schema of the Compose specification, the Dockerfile, the
settings that it sets, and the rules that docs/deploy.md promises."""

import json
import os
import re
import stat
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from loraplex.web.server import GRACE_SECONDS
from loraplex.web.settings.settings import Settings

from .dockerfile import ROOT, environment_of, read

ENGINE_STOP_SECONDS = 5
SERVERS = ("loraplex", "loraplex-gpu")
PASSWORD_CHECKS = ("postgres-password", "grafana-password")
Service = dict[str, Any]


def load(path: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / path).read_text())
    return document


def variables(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return load("docker-compose.yml")


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Service]:
    return dict(compose["services"])


@pytest.mark.parametrize("path", ["docker-compose.yml", "deploy/grafana-port.yml"])
def test_it_is_compose(path: str) -> None:
    schema = json.loads((files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(load(path))


def test_everything_is_contained(services: dict[str, Service]) -> None:
    for name, service in services.items():
        user = str(service["user"]).partition(":")[0]
        assert user.isdigit() and user != "0", f"{name}: a number, so that nothing is looked up in the image"
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"] and service["init"] is True
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "cap_add", "pid", "ipc"} & service.keys(), name
        assert service.get("network_mode", "none") == "none", name
        assert {"cpus", "memory", "pids"} <= service["deploy"]["resources"]["limits"].keys(), name
        assert {"max-size", "max-file"} <= service["logging"]["options"].keys(), name
        assert name.startswith("loraplex") or re.search(r":v?\d+\.\d+", str(service["image"])) or "build" in service


def test_only_the_api_is_published_and_only_here(services: dict[str, Service]) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {name: ["127.0.0.1:${PORT:-8000}:8000"] for name in SERVERS}
    inside = read()
    for target in ("cpu", "gpu"):
        assert environment_of(inside, target)["LORAPLEX_PORT"] == "8000"
    assert load("deploy/grafana-port.yml")["services"]["grafana"]["ports"][0].startswith("127.0.0.1:")


def test_what_is_not_published_reaches_nothing_outside(compose: dict[str, Any], services: dict[str, Service]) -> None:
    assert compose["networks"]["back"]["internal"] is True
    for name, service in services.items():
        if name in PASSWORD_CHECKS:
            assert service["network_mode"] == "none" and "networks" not in service
        else:
            assert name in SERVERS or service["networks"] == ["back"]


def test_profiles_never_start_two_servers(services: dict[str, Service]) -> None:
    assert {name: service["profiles"] for name, service in services.items()} == {
        "loraplex": ["cpu"],
        "loraplex-gpu": ["gpu"],
        "migrate": ["postgres"],
        "postgres-password": ["postgres"],
        "postgres": ["postgres"],
        "prometheus": ["observability"],
        "grafana-password": ["observability"],
        "grafana": ["observability"],
    }
    chosen = variables(ROOT / ".env")
    assert chosen["COMPOSE_PROFILES"] == "cpu" and chosen["DATABASE"] == "sqlite"
    device = services["loraplex-gpu"]["deploy"]["resources"]["reservations"]["devices"][0]
    assert device["driver"] == "nvidia" and "gpu" in device["capabilities"]
    assert "reservations" not in services["loraplex"]["deploy"]["resources"]


def test_servers_are_built_from_targets_that_exist(services: dict[str, Service]) -> None:
    stages = read()
    for name in (*SERVERS, "migrate", *PASSWORD_CHECKS):
        build = services[name]["build"]
        assert build["target"] in stages
        used = {word.partition("=")[0] for stage in stages.values() for step in stage.all("ARG") for word in step.words}
        assert build["args"].keys() <= used
        owner = stages[build["target"]].all("USER")[0].text
        assert services[name]["user"] == owner
        mounts = {volume.split(":")[1] for volume in services[name].get("volumes", ())}
        mounts |= {folder.split(":")[0] for folder in services[name]["tmpfs"]}
        volumes = {word for step in stages["runtime"].all("VOLUME") for word in step.words}
        assert volumes <= mounts, "nothing is written outside"


def test_services_that_start_together_build_no_tag_twice(services: dict[str, Service]) -> None:
    """Compose builds them side by side, and the second of two images with one tag is refused."""
    built = [service["image"] for service in services.values() if "build" in service]
    assert len(built) == len(set(built)) == 5


def test_the_database_is_healthy_only_for_the_network(services: dict[str, Service]) -> None:
    """As its image makes the database, a server answers on the socket alone and goes again."""
    kind, program, *options = services["postgres"]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "pg_isready") and "--host=127.0.0.1" in options


def test_health_checks_leave_time_to_start(services: dict[str, Service]) -> None:
    """Prometheus reads its log first; nobody who waits for it may be told meanwhile that it failed."""
    checks = {name: service["healthcheck"] for name, service in services.items() if "healthcheck" in service}
    given = {name: check["start_period"] for name, check in checks.items() if not check.get("disable")}
    assert given == {"postgres": "60s", "prometheus": "300s"}


def test_every_variable_is_a_setting(
    services: dict[str, Service], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server is set up as the container would be, and takes each value."""
    secret = tmp_path / "postgres_password"
    secret.write_text("b49ad1f07c5e2d68")
    secret.chmod(0o600)
    for name in [name for name in os.environ if name.startswith("LORAPLEX_")]:
        monkeypatch.delenv(name)
    for target, server in zip(("cpu", "gpu"), SERVERS, strict=True):
        for database in ("sqlite", "postgres"):
            given = environment_of(read(), target) | variables(ROOT / "deploy" / f"{database}.env")
            given |= services[server]["environment"] | {"LORAPLEX_DATA_DIR": str(tmp_path)}
            with monkeypatch.context() as patch:
                for name, value in given.items():
                    if name.startswith("LORAPLEX_"):
                        patch.setenv(name, value.replace("/run/secrets", str(tmp_path)))
                settings = Settings()
            assert settings.host == "0.0.0.0" and settings.device in ("cpu", "cuda")
            assert settings.database.startswith("sqlite" if database == "sqlite" else "postgresql")
            told = [record.message for record in caplog.records if record.name.startswith("loraplex")]
            assert told == [], "an unknown variable is told"


def test_secrets_are_files_that_someone_makes(compose: dict[str, Any], services: dict[str, Service]) -> None:
    made = (ROOT / "deploy" / "make_secrets.sh").read_text()
    for name, secret in compose["secrets"].items():
        assert str(secret["file"]).removeprefix("./deploy/secrets/") in made
        assert any(name in service.get("secrets", ()) for service in services.values())
    for name, service in services.items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|TOKEN|KEY", variable):
                assert variable.endswith("_FILE") and value.startswith("/run/secrets/"), f"{name}: {variable}"


def test_nobody_takes_a_password_that_was_not_judged(services: dict[str, Service]) -> None:
    """What the command says of which file: test_password_checks.py."""
    takers = {name: service for name, service in services.items() if "secrets" in service}
    for name in takers.keys() - set(PASSWORD_CHECKS):
        [password] = takers[name]["secrets"]
        check = services[f"{name}-password"]
        assert takers[name]["depends_on"][f"{name}-password"] == {"condition": "service_completed_successfully"}
        assert check["secrets"] == [password] and check["profiles"] == takers[name]["profiles"]
        assert check["command"] == ["secrets", "check", f"/run/secrets/{password}"]
        assert check["restart"] == "no" and check["healthcheck"] == {"disable": True}
        assert not {"volumes", "env_file", "environment"} & check.keys(), "it sees the password and nothing else"
    assert len(takers) == 2 * len(PASSWORD_CHECKS)


def test_secrets_are_made_once_and_are_strong(tmp_path: Path) -> None:
    folder = tmp_path / "deploy"
    (folder / "secrets" / "server").mkdir(parents=True)
    (folder / "prometheus").mkdir(mode=0o700)
    (folder / "grafana" / "dashboards").mkdir(parents=True)
    (folder / "grafana" / "dashboards" / "server.json").touch(mode=0o600)
    script = folder / "make_secrets.sh"
    script.write_bytes((ROOT / "deploy" / "make_secrets.sh").read_bytes())
    subprocess.run(["sh", script], check=True, stdout=subprocess.DEVNULL)
    files = [folder / "secrets" / "server" / "postgres_password", folder / "secrets" / "grafana_password"]
    first = [file.read_text() for file in files]
    assert len(set(first)) == 2 and all(re.fullmatch("[0-9a-f]{48}", secret) for secret in first)
    assert mode(folder / "secrets") == 0o700
    assert {mode(file) for file in files} == {0o444}, "each container reads its own, as a user of its own"
    assert mode(folder / "prometheus") == 0o755, "what other containers mount, their users read"
    assert mode(folder / "grafana" / "dashboards" / "server.json") == 0o644
    subprocess.run(["sh", script], check=True, stdout=subprocess.DEVNULL)
    assert [file.read_text() for file in files] == first


def test_the_grace_period_fits_the_drain(services: dict[str, Service]) -> None:
    drain = Settings.model_fields["drain_seconds"].default
    needed = drain + ENGINE_STOP_SECONDS + 2 * GRACE_SECONDS
    for name in SERVERS:
        assert int(services[name]["stop_grace_period"].removesuffix("s")) >= needed
        assert services[name]["depends_on"]["migrate"] == {
            "condition": "service_completed_successfully",
            "required": False,
        }


def test_the_log_of_the_database_quotes_no_rows(services: dict[str, Service]) -> None:
    assert services["postgres"]["command"] == ["postgres", "-c", "log_error_verbosity=terse"]


def test_what_is_mounted_exists(compose: dict[str, Any], services: dict[str, Service]) -> None:
    for name, service in services.items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            known = (ROOT / source).exists() if source.startswith("./") else source in compose["volumes"]
            assert known, f"{name}: {source}"
