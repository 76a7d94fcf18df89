"""Settings: all that an operator may set, by flag, environment (LORAPLEX_*), TOML file or these defaults."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ByteSize, Field, PrivateAttr, SecretStr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from loraplex.engine.config import ADAPTER_SHARE, EngineConfig, check_block_size, check_step
from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.folder import is_hub_id
from loraplex.engine.vllm_arguments import agreed_quantization
from loraplex.registry.access.key_format import check_token
from loraplex.registry.access.passwords import check_password

from ..reasoning.marks import ReasoningParser
from ..tool_calls.formats.known import ToolCallParser
from .loopback import check_keys, check_open
from .lora_modules import LoraModules
from .secrets import MASK, SECRETS, is_weak, mask_url, refuse_open_file, refuse_weak, with_secrets_of_files
from .sources import (
    DEFAULT,
    DEFAULT_DATA_DIR,
    PREFIX,
    ROOT,
    Source,
    config_file,
    read_file,
    refuse_unknown,
    sources_of,
    warn_of_unknown_variables,
)
from .template import read_template
from .types import Bytes, Count, Folders, Fraction, Names, Origins, Port, RootPath, Share, Tokens, WholePath

DEMO_MODEL = ROOT / "examples" / "demo" / "model"


class Settings(BaseSettings):
    """Read once at start. Each field's description is what `loraplex config` and the docs show."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True
    )

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on")
    port: Port = Field(8000, description="Port to listen on")
    allowed_origins: Origins = Field(
        (), description="Origins whose pages may call the API from a browser (CORS), with commas; *: any; none: no page"
    )
    root_path: RootPath = Field(
        "", description="Path prefix that a proxy strips before forwarding requests, such as /loraplex"
    )
    data_dir: WholePath = Field(DEFAULT_DATA_DIR, description="Folder for the database, adapter files and credentials")
    model: str = Field(str(DEMO_MODEL), description="Base model: a local folder in Hugging Face layout, or a hub id")
    served_name: str = Field("", description="Name of the base model in the API; empty: the last part of `model`")
    also_served_as: Names = Field(
        (), description="More names of the base model in the API, separated by commas; its hub id always is one"
    )
    classifier_from_token: Names = Field(
        (), description="The false and the true token, as no,yes, of a reranker that judges by them without saying so"
    )
    database_url: str = Field("", description="SQLAlchemy URL; empty: SQLite in the data folder")
    database_password: SecretStr | None = Field(None, description="Password of the database, if its URL has none")
    database_password_file: WholePath | None = Field(None, description="File that holds the database's password")
    admin_password: SecretStr | None = Field(
        None, description="Password of the dashboard; none: generated at the first start"
    )
    admin_password_file: WholePath | None = Field(None, description="File that holds the admin password")
    api_key: SecretStr | None = Field(
        None,
        description="First inference key, or several with a space between (clients read theirs from LORAPLEX_KEY); "
        "none: generated at the first start",
    )
    api_key_file: WholePath | None = Field(None, description="File that holds the first inference key")

    no_api_key: bool = Field(
        False, description="Serve the models without a key, on a loopback address alone; the dashboard keeps its login"
    )

    lora_modules: LoraModules = Field(
        (), description="Adapters to register at the start: name=path or JSON objects; a bad one refuses the start"
    )
    adapter_folders: Folders = Field(
        (),
        description="Folders that adapters may be loaded from (/v1/load_lora_adapter, upload page); none: not allowed",
    )
    adapter_hub: bool = Field(
        False, description="Allow adapters to be downloaded from the Hugging Face Hub by commit (the same two ways)"
    )

    adapter_tokenizers: bool = Field(
        False,
        description="Allow adapters to bring added tokens and a chat template; templates run in a sandboxed process",
    )

    preflight_logits: bool = Field(
        True,
        description="Refuse uploaded adapters that do not change the logits: the engine runs a short prompt with each",
    )

    chat_template: str = Field(
        "", description="File of a chat template, or the template itself; empty: the template of the checkpoint"
    )
    tool_call_parser: ToolCallParser = Field(
        "auto",
        description="Tool call format. An adapter's profile overrides it. auto: from the chat template",
    )
    reasoning_parser: ReasoningParser = Field(
        "auto",
        description="Marks around reasoning. An adapter's profile overrides it. auto: from the chat template",
    )

    certify_uploads: bool = Field(
        False, description="Measure parity certificates of the base and of each uploaded adapter, at low priority"
    )
    certificate_reference: WholePath | None = Field(
        None, description="Unquantized checkpoint for certificates to compare with; none: the base as stored"
    )
    promotion_min_agreement: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="Token agreement a certificate must show before an alias may point to a version; none: no rule",
    )

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the engine runs")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field("auto", description="How weights are stored")
    quantization: Literal["none", "int4", "int8", "fp8", "awq", "gptq", "compressed-tensors", "mxfp4"] = Field(
        "none",
        description="Quantization of a float checkpoint's linear layers at load (awq: quantized once), or the method "
        "that the checkpoint has",
    )
    head_quantization: Literal["none", "int8"] = Field("none", description="Quantization of the output head")
    weights_cache_bytes: Bytes = Field(
        ByteSize(32 << 30),
        description="Disk space in the data folder for packed and AWQ weights, which speed up the next start; 0: none",
    )
    max_model_len: Tokens | None = Field(
        None, description="Tokens of prompt plus output; none: the checkpoint's, with longrope its original length"
    )
    max_num_seqs: Count = Field(64, description="Maximum sequences in one step")
    max_num_batched_tokens: Tokens | None = Field(
        None, description="Maximum tokens in one engine step; none: 512, on a GPU 2048, no fewer than max_num_seqs"
    )
    block_size: Count = Field(16, description="Tokens in one KV-cache block; on a CPU a multiple of 16")
    gpu_memory_utilization: Share = Field(
        0.9, description="Share of GPU memory for the engine; the KV cache gets the rest of it"
    )
    kv_cache_memory: Bytes | None = Field(
        None, description="Size of the KV cache; none: a share of free memory, or on a GPU all that is left"
    )
    kv_cache_dtype: Literal["auto", "fp8_e4m3", "fp8_e5m2", "int8"] = Field(
        "auto", description="Data type of keys and values; 8 bits hold nearly twice the tokens of bfloat16"
    )
    kv_cache_scales: Literal["auto", "static", "dynamic"] = Field(
        "auto",
        description="Scales of an 8-bit KV cache: static (from `loraplex calibrate-kv`, else the checkpoint), "
        "dynamic (per token), or auto (static if available)",
    )
    num_kv_blocks: Count | None = Field(None, description="Exact number of KV blocks; overrides kv_cache_memory")
    num_state_slots: Count | None = Field(
        None, description="Exact number of states of recurrent layers; none: two per sequence, in half the KV cache"
    )
    enable_prefix_caching: bool = Field(True, description="Reuse the KV cache of shared prompt prefixes")
    adapter_memory: Bytes | None = Field(
        None, description="Memory for the weights of loaded adapters; none: 512 MiB, or adapter_memory_share of a GPU's"
    )
    adapter_memory_share: Share = Field(
        ADAPTER_SHARE,
        description="Share of the GPU memory left by the model for adapters, if adapter_memory is not set",
    )
    adapter_host_memory: Bytes = Field(
        ByteSize(512 << 20), description="Host memory for the weights of evicted adapters; 0: none"
    )
    max_loaded_adapters: Count = Field(256, description="Maximum adapters in memory")
    max_queue: Count = Field(
        512, description="Maximum waiting requests over all tenants; beyond it the tenant with the most gets 503"
    )
    seed: int | None = Field(
        None, description="Seed from which requests without one draw theirs, in order; none: random"
    )
    num_threads: Count | None = Field(None, description="CPU threads of the engine; none: all cores")

    max_body_bytes: Bytes = Field(ByteSize(1 << 20), description="Largest JSON body of a request")
    max_prompt_chars: Count = Field(500_000, description="Longest prompt in characters, before it is tokenized")
    max_prompts: Count = Field(256, description="Maximum prompts in one /v1/completions request")
    max_inputs: Count = Field(2048, description="Maximum inputs in one request for embeddings")
    max_concurrent_requests: Count = Field(1024, description="Maximum requests in flight; more are refused with 503")
    max_unknown_connections: Count = Field(
        2048,
        description="Maximum open connections without a valid key or session; a new one replaces the oldest idle one",
    )
    max_unknown_per_address: Count = Field(
        512, description="Maximum of these from one address, except from trusted proxies"
    )
    max_adapter_bytes: Bytes = Field(ByteSize(1 << 30), description="Largest adapter weights file")
    min_free_bytes: Bytes = Field(ByteSize(1 << 30), description="Disk space that an upload must leave free")
    max_waiting_certificates: Count = Field(64, description="Maximum waiting certificates per tenant")
    max_batch_file_bytes: Bytes = Field(ByteSize(200 << 20), description="Largest input file of a batch")
    max_files_bytes: Bytes = Field(
        ByteSize(10 << 30), description="Bytes that the files of one tenant may have together"
    )
    file_days: Annotated[float, Field(gt=0, le=3650)] = Field(
        30.0, description="Days for which files of batches are kept, unless their expires_after says less"
    )
    max_batch_lines: Count = Field(50_000, description="Maximum lines of one batch")
    max_waiting_batches: Count = Field(100, description="Maximum batches of one tenant that have not ended")
    batch_concurrency: Count = Field(16, description="Lines of batches that run at the same time while users are quiet")
    response_days: Annotated[float, Field(ge=0, le=36500)] = Field(
        30.0, description="Days after their last use that responses (/v1/responses) are kept; 0: none are kept"
    )
    max_stored_responses: Count = Field(100_000, description="Maximum responses kept per tenant; the oldest go first")
    max_stored_response_bytes: Bytes = Field(ByteSize(1 << 30), description="Maximum size of these per tenant")
    max_concurrent_uploads: Count = Field(8, description="Maximum concurrent uploads")
    body_timeout: Fraction = Field(30.0, description="Seconds a client may take to send a JSON body")
    upload_timeout: Fraction = Field(1800.0, description="Seconds a client may take to send an adapter file")
    upload_stall_timeout: Fraction = Field(
        60.0,
        description="Seconds in which each MiB of an upload must arrive; a slower one is cut off and can be resumed",
    )
    hub_timeout: Fraction = Field(1800.0, description="Seconds that downloading an adapter from the hub may take")
    certificate_timeout: Fraction = Field(21600.0, description="Seconds that measuring one certificate may take")
    ping_seconds: Fraction = Field(
        10.0, description="Seconds of silence after which a stream gets a keep-alive comment"
    )
    drain_seconds: Fraction = Field(20.0, description="Seconds for running requests to finish when the server stops")
    session_hours: Fraction = Field(12.0, description="Hours until a dashboard login expires")
    public_metrics: bool = Field(True, description="Serve /metrics without a key to clients on this machine")
    metrics_port: Port | None = Field(
        None, description="Extra port that serves only /metrics and the probes, without a key; none: no extra port"
    )
    metrics_host: str = Field("127.0.0.1", min_length=1, description="Address that metrics_port listens on")
    otlp_traces_endpoint: str = Field(
        "", description="OTLP collector that gets a span for each request (extra otel); empty: no traces"
    )
    grpc_port: Port | None = Field(
        None, description="Extra port of the gRPC API, on the same address (extra grpc); none: no gRPC"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Minimum log level")
    log_probes: bool = Field(
        False, description="Also log requests for /health, /ready and /metrics, which arrive every few seconds"
    )
    log_json: bool = Field(False, description="One JSON object per log line")

    _flags: dict[str, Any] = PrivateAttr(default_factory=dict)
    _sources: dict[str, Source] = PrivateAttr(default_factory=dict)

    def __init__(self, **flags: Any) -> None:
        super().__init__(**flags)
        self._flags, self._sources = flags, sources_of(flags, read_file(config_file(flags)))

    def read_again(self) -> Self:
        """What a restart with the same flags would read. Raises as the first reading."""
        return type(self)(**self._flags)

    def source_of(self, name: str) -> Source:
        """Of a secret that is in a file of its own, where that is named."""
        in_file = self._sources.get(f"{name}_file", DEFAULT)
        return self._sources.get(name, in_file)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = config_file(init_settings())
        in_file = TomlConfigSettingsSource(settings_cls, toml_file=file)
        refuse_unknown(file, in_file.toml_data, settings_cls)
        refuse_open_file(file, in_file.toml_data)
        warn_of_unknown_variables(settings_cls)
        return init_settings, env_settings, in_file

    @model_validator(mode="before")
    @classmethod
    def _read_secret_files(cls, values: dict[str, Any]) -> dict[str, Any]:
        return with_secrets_of_files(values)

    @model_validator(mode="after")
    def _refuse_weak_secrets(self) -> Self:
        refuse_weak("admin_password", self.admin_password, check_password)
        check_keys(self)
        check_open(self)
        if self.database_url or self.database_password is not None:
            from .database import check_database  # SQLAlchemy takes a while, and our own file needs no check

            check_database(self.database_url or self._own_database, _text(self.database_password))
        return self

    @model_validator(mode="after")
    def _refuse_one_port_twice(self) -> Self:
        if self.metrics_port == self.port:
            raise ValueError(f"metrics_port and port are both {self.port}: set metrics_port to another port")
        if self.grpc_port is not None and self.grpc_port in (self.port, self.metrics_port):
            raise ValueError(f"grpc_port {self.grpc_port} is taken by HTTP: set grpc_port to another port")
        return self

    @model_validator(mode="after")
    def _refuse_steps_without_room(self) -> Self:
        if self.max_num_batched_tokens is not None:
            check_step(self.max_num_batched_tokens, self.max_num_seqs)
        return self

    @model_validator(mode="after")
    def _refuse_blocks_of_no_tiles(self) -> Self:
        """Without `device cuda` it may become a CPU. To know takes seconds, and nobody needs other sizes."""
        if self.device != "cuda":
            check_block_size(self.block_size)
        return self

    @property
    def base_name(self) -> str:
        """What clients call the base model."""
        if self.served_name:
            return self.served_name
        return "demo" if self.model == str(DEMO_MODEL) else self.model.rstrip("/").rsplit("/", 1)[-1]

    @property
    def other_names(self) -> tuple[str, ...]:
        """What else clients may call the base model."""
        hub_id = (self.model,) if is_hub_id(self.model) else ()
        return tuple(dict.fromkeys(name for name in (*self.also_served_as, *hub_id) if name != self.base_name))

    @property
    def trained_name(self) -> str:
        """What adapters call the base model in their configuration."""
        return "loraplex-demo" if self.model == str(DEMO_MODEL) else self.model

    @property
    def database(self) -> str:
        """The database URL in force."""
        password = _text(self.database_password)
        if password is None:
            return self.database_url or self._own_database
        from .database import with_password

        return with_password(self.database_url, password)

    @property
    def _own_database(self) -> str:
        return f"sqlite:///{self.data_dir / 'loraplex.db'}"

    @property
    def admin_password_text(self) -> str | None:
        return _text(self.admin_password)

    @property
    def api_keys(self) -> tuple[str, ...]:
        """The operator's; none: one is made."""
        return tuple((_text(self.api_key) or "").split())

    @property
    def has_weak_key(self) -> bool:
        return any(is_weak(key, check_token) for key in self.api_keys)

    @property
    def template_source(self) -> str | None:
        """The operator's chat template; None: the checkpoint's. ValueError where it is neither file nor template."""
        return read_template(self.chat_template) if self.chat_template else None

    def engine_config(self, model_folder: Path) -> EngineConfig:
        """What the engine is started with; `model_folder` is where `model` lies on this machine."""
        shared = set(EngineConfig.__struct_fields__) - {
            "model",
            "tokenizer",
            "served_name",
            "kv_scales_file",
            "weights_cache",
        }
        values = {name: _plain(getattr(self, name)) for name in sorted(shared)}
        if self.quantization != "none":
            values["quantization"] = agreed_quantization(self.quantization, ModelConfig.from_folder(model_folder))
        values["weights_cache"] = str(self.weights_folder)
        if self.adapter_memory is None:
            del values["adapter_memory"]
        else:
            values["adapter_memory_share"] = None
        values["max_num_batched_tokens"] = self.max_num_batched_tokens or 0
        scales = str(self.kv_scales_file) if self.kv_scales_file.is_file() else ""
        return EngineConfig(model=str(model_folder), served_name=self.base_name, kv_scales_file=scales, **values)

    @property
    def weights_folder(self) -> Path:
        """Where packed and AWQ weights are kept."""
        return self.data_dir / "weights"

    @property
    def kv_scales_file(self) -> Path:
        """Where `loraplex calibrate-kv` puts its scales, and the engine looks for them."""
        return self.data_dir / "kv_scales.safetensors"

    def masked(self) -> dict[str, object]:
        """The settings in force, fit for a screen: secrets are replaced by asterisks."""
        values = self.model_dump(mode="json")
        for name in SECRETS:
            values[name] = MASK if values[name] else None
        return values | {"database_url": mask_url(self.database), "served_name": self.base_name}


def _plain(value: object) -> Any:
    """As JSON has it."""
    if isinstance(value, tuple):
        return [*value]
    return int(value) if isinstance(value, ByteSize) else value


def _text(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
