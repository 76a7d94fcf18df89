import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from loraplex.engine.config import ADAPTER_SHARE, EngineConfig
from loraplex.web.settings.loopback import warn_of_open
from loraplex.web.settings.secrets import MASK, mask_url
from loraplex.web.settings.settings import Settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("LORAPLEX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LORAPLEX_DATA_DIR", str(tmp_path))


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().port == 8000
    (tmp_path / "loraplex.toml").write_text('port = 1\nhost = "0.0.0.0"\nadapter_memory = "2MiB"\n')
    assert (Settings().port, Settings().host, Settings().adapter_memory) == (1, "0.0.0.0", 2 << 20)
    monkeypatch.setenv("LORAPLEX_PORT", "2")
    assert Settings().port == 2
    assert Settings(port=3).port == 3


def test_a_named_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "other.toml"
    monkeypatch.setenv("LORAPLEX_CONFIG", str(file))
    with pytest.raises(ValueError, match="not a file"):
        Settings()
    file.write_text("port = 9")
    assert Settings().port == 9


def test_a_file_in_a_data_folder_given_by_flag(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "loraplex.toml").write_text("port = 7")
    assert Settings(data_dir=other).port == 7


def test_steps_without_room_for_all_sequences_are_refused(tmp_path: Path) -> None:
    """At once, and not by the engine after a minute of compiling."""
    words = "max_num_batched_tokens 37 is below max_num_seqs 64, but each running sequence needs a token"
    with pytest.raises(ValidationError, match=words):
        Settings(data_dir=tmp_path, max_num_batched_tokens=37)
    assert Settings(data_dir=tmp_path, max_num_batched_tokens=64).max_num_seqs == 64


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_block_that_a_cpu_cannot_lay_out(tmp_path: Path, device: Any) -> None:
    with pytest.raises(ValidationError, match="block_size is 7; on a CPU it must be a multiple of 16"):
        Settings(data_dir=tmp_path, block_size=7, device=device)
    assert Settings(data_dir=tmp_path, block_size=32, device=device).block_size == 32
    assert Settings(data_dir=tmp_path, block_size=8, device="cuda").block_size == 8


def test_unknown_settings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loraplex.toml").write_text("prot = 1")
    with pytest.raises(ValueError, match=r"loraplex\.toml sets 'prot', which is not a setting\. Did you mean port\?"):
        Settings()


def test_an_unknown_variable_is_told_and_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "empty.toml").touch()
    monkeypatch.setenv("LORAPLEX_CONFIG", str(tmp_path / "empty.toml"))
    Settings()
    assert not caplog.messages
    monkeypatch.setenv("LORAPLEX_PROT", "9")
    assert Settings().port == 8000
    assert caplog.messages == ["LORAPLEX_PROT is ignored: it is not a setting. Did you mean LORAPLEX_PORT?"]


@pytest.mark.parametrize(
    "field, value",
    [
        ("port", 0),
        ("port", 70000),
        ("max_num_seqs", 0),
        ("adapter_memory", 1.5),
        ("ping_seconds", 0),
        ("device", "tpu"),
        ("kv_cache_dtype", "fp8"),
        ("kv_cache_scales", "fixed"),
        ("quantization", "awq4"),
        ("weights_cache_bytes", 1.5),
        ("promotion_min_agreement", 0),
        ("promotion_min_agreement", 98),
        ("gpu_memory_utilization", 0),
        ("gpu_memory_utilization", 1.1),
    ],
)
def test_bounds(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        Settings(**{field: value})


def test_everything_of_the_engine_can_be_set() -> None:
    settings = Settings(served_name="n")
    folders = {"weights_cache": str(settings.data_dir / "weights")}
    defaults = EngineConfig(model="m", served_name="n", adapter_memory_share=ADAPTER_SHARE, **folders)
    config = settings.engine_config(Path("m"))
    assert msgspec.structs.asdict(config) == msgspec.structs.asdict(defaults)
    assert Settings().engine_config(Path("m")).adapter_memory_share == ADAPTER_SHARE
    explicit = Settings(adapter_memory="1GiB", gpu_memory_utilization=0.5).engine_config(Path("m"))
    assert (explicit.adapter_memory, explicit.adapter_memory_share) == (1 << 30, None)
    assert explicit.gpu_memory_utilization == 0.5
    assert Settings(kv_cache_scales="static").engine_config(Path("m")).kv_cache_scales == "static"
    assert Settings(kv_cache_memory="1GiB", num_threads=3).engine_config(Path("m")).kv_cache_memory == 1 << 30


def test_every_setting_is_described() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


@pytest.mark.parametrize("password", ["short", "password", "Password1234", "changeme123", "loraplex!", "aaaaaaaaaa"])
def test_weak_passwords_are_refused_with_a_hint(password: str) -> None:
    with pytest.raises(ValidationError, match=r"longer|openssl rand"):
        Settings(admin_password=password)


@pytest.mark.parametrize("key", ["sk-1234", "sk-1234567890123", "changeme-changeme"])
def test_weak_keys_are_refused_with_a_hint(key: str) -> None:
    with pytest.raises(ValidationError, match=r"longer|openssl rand"):
        Settings(api_key=key, host="0.0.0.0")
    with pytest.raises(ValidationError, match=r"longer|openssl rand"):
        Settings(api_key=f"lp-some-inference-key {key}", host="::")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.0.9", "::1", "localhost", "LocalHost."])
def test_a_weak_key_is_taken_with_a_warning_where_only_this_machine_reaches_it(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(api_key="EMPTY token-abc123", host=host)
    assert settings.api_keys == ("EMPTY", "token-abc123")
    warn_of_open(settings)
    assert "api_key is easily guessed" in caplog.text and "EMPTY" not in caplog.text
    caplog.clear()
    warn_of_open(Settings(api_key="lp-some-inference-key", host=host))
    assert not caplog.messages


def test_no_key_is_asked_for_on_a_loopback_address_alone(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_open(Settings(no_api_key=True))
    assert "every program of this machine can use the models" in caplog.text
    for host in ("0.0.0.0", "::", "192.168.1.7", "example.org"):
        with pytest.raises(ValidationError, match=f"everybody who reaches {host} could use the server"):
            Settings(no_api_key=True, host=host)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("2m", 2_000_000), ("1M", 1 << 20), ("512", 512), (77, 77)],
)
def test_tokens_may_have_a_unit(given: object, meant: int) -> None:
    settings = Settings(max_model_len=given, max_num_batched_tokens=given)  # type: ignore[arg-type]
    assert settings.max_model_len == settings.max_num_batched_tokens == meant


@pytest.mark.parametrize("given", ["1.5K", "k", "8q", "0", "-1k"])
def test_tokens_with_another_unit_are_refused(given: str) -> None:
    with pytest.raises(ValidationError, match="max_model_len"):
        Settings(max_model_len=given)  # type: ignore[arg-type]


def test_the_base_has_several_names(tmp_path: Path) -> None:
    settings = Settings(model="Qwen/Qwen3-0.6B", also_served_as="a, b")  # type: ignore[arg-type]
    assert (settings.base_name, settings.other_names) == ("Qwen3-0.6B", ("a", "b", "Qwen/Qwen3-0.6B"))
    assert Settings(model=str(tmp_path)).other_names == ()
    assert Settings(model="Qwen/Qwen3-0.6B", served_name="Qwen/Qwen3-0.6B").other_names == ()


@pytest.mark.parametrize(
    "given",
    [
        "a=/x",
        '{"name": "a", "path": "/x"}',
        '["a=/x"]',
        '[{"name": "a", "path": "/x", "base_model_name": "m"}]',
        ["a=/x"],
        [{"name": "a", "path": "/x"}],
    ],
)
def test_lora_modules_in_each_form(given: object) -> None:
    [module] = Settings(lora_modules=given).lora_modules  # type: ignore[arg-type]
    assert (module.name, module.path) == ("a", "/x")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("a", "'a' is no adapter; write name=path"),
        ("=/x", "is no adapter"),
        ('{"name": "a"}', "path: Field required"),
        ('{"name": "a", "path": "/x", "rank": 4}', "rank: Extra inputs are not permitted"),
        ("{name}", "is no JSON"),
        ('["a=/x", "a=/y"]', "the name a stands twice"),
    ],
)
def test_lora_modules_that_say_nothing_clear_are_refused(given: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Settings(lora_modules=given)  # type: ignore[arg-type]


def test_a_chat_template_is_a_file_or_the_text_itself(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    assert Settings(chat_template=str(file)).template_source == "{{ messages }}"
    assert Settings(chat_template="{{ one }}").template_source == "{{ one }}"
    assert Settings().template_source is None
    with pytest.raises(ValueError, match="chat_template: there is no file nowhere"):
        assert Settings(chat_template="nowhere.jinja").template_source


def test_secrets_from_files_and_never_on_a_screen(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("correct horse battery\n")
    (tmp_path / "secret").chmod(0o600)
    settings = Settings(
        admin_password_file=tmp_path / "secret",
        api_key="lp-some-inference-key",
        database_url="postgresql://me:hunter2@db/loraplex",
    )
    assert settings.admin_password_text == "correct horse battery"
    shown = repr(settings.masked()) + repr(settings)
    assert "horse" not in shown
    assert "some-inference" not in shown
    masked = settings.masked()
    assert masked["admin_password"] == MASK
    assert masked["database_url"] == f"postgresql://me:{MASK}@db/loraplex"
    with pytest.raises(ValidationError, match="both set"):
        Settings(admin_password_file=tmp_path / "secret", admin_password="correct horse battery")


def test_the_api_process_never_imports_torch() -> None:
    code = "import sys; import loraplex.web.server; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=240).returncode == 0


def test_passwords_among_the_options_of_a_database_url_are_masked() -> None:
    url = "postgresql://user:secret@host/db?password=other@secret&sslmode=require"
    assert mask_url(url) == f"postgresql://user:{MASK}@host/db?password={MASK}&sslmode=require"
    assert mask_url("sqlite:////data/loraplex.db") == "sqlite:////data/loraplex.db"


def test_folders_are_a_list_or_a_path_like_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().adapter_folders == ()
    (tmp_path / "loraplex.toml").write_text('adapter_folders = ["/a", "/b c"]\n')
    assert Settings().adapter_folders == (Path("/a"), Path("/b c"))
    monkeypatch.setenv("LORAPLEX_ADAPTER_FOLDERS", "/c:/d")
    assert Settings().adapter_folders == (Path("/c"), Path("/d"))
    monkeypatch.setenv("LORAPLEX_ADAPTER_FOLDERS", "")
    assert Settings().adapter_folders == ()
    with pytest.raises(ValidationError, match="runs is not an absolute path"):
        Settings(adapter_folders="runs")


def test_what_the_engine_is_told_is_the_same_as_json(tmp_path: Path) -> None:
    """A certificate's job carries it, and refuses what is not exactly what it wrote."""
    config = Settings(data_dir=tmp_path, classifier_from_token="no,yes").engine_config(tmp_path)  # type: ignore[arg-type]
    assert config.classifier_from_token == ["no", "yes"]
    for one in (config, EngineConfig(model="m")):
        assert msgspec.to_builtins(one) == msgspec.json.decode(msgspec.json.encode(one))
