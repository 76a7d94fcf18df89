"""What vLLM's arguments of a server mean here: those of its HTTP side, beside those of an engine."""

from collections.abc import Mapping
from typing import Final

from loraplex.engine import vllm_arguments as engine
from loraplex.engine.vllm_arguments import ANYTHING, NOTHING, OFF, ONE, Argument, arguments

_PROXY = "a proxy in front does that (docs/deploy.md)"
_LOG = "the log has one line a request, without texts; log_level and log_json set it"
_TEMPLATE = "the server's template alone is used: chat_template, or that of a serving profile"
_TOOLS = "formats of tool calls are part of the server (docs/tools.md)"

RENAMED: Final[Mapping[str, str]] = {
    **engine.RENAMED,
    "served_model_name": "served_name",
    "uvicorn_log_level": "log_level",
}
VALUES: Final[Mapping[str, Mapping[str, str]]] = {
    **engine.VALUES,
    "log_level": {"trace": "debug", "critical": "error"},
    "tool_call_parser": {"qwen": "hermes", "llama4_json": "llama3_json", "openai": "harmony"},
    "reasoning_parser": {"deepseek_r1": "think", "qwen3": "think", "openai_gptoss": "harmony"},
}
SHORT: Final[Mapping[str, str]] = {
    "q": "quantization",
    "O": "optimization_level",
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "dpn": "data_parallel_rank",
    "dpr": "data_parallel_start_rank",
    "dpl": "data_parallel_size_local",
    "dpa": "data_parallel_address",
    "dpp": "data_parallel_rpc_port",
    "dpb": "data_parallel_backend",
    "dph": "data_parallel_hybrid_lb",
    "dpe": "data_parallel_external_lb",
    "dcp": "decode_context_parallel_size",
    "pcp": "prefill_context_parallel_size",
    "ep": "enable_expert_parallel",
    "n": "nnodes",
    "r": "node_rank",
    "ac": "attention_config",
    "cc": "compilation_config",
    "asc": "api_server_count",
}
SEVERAL: Final = frozenset(
    {
        "served_name",
        "api_key",
        "lora_modules",
        "cudagraph_capture_sizes",
        "long_lora_scaling_factors",
        "logits_processors",
    }
)
"""Followed by one value or more."""

ROWS: Final = (
    *arguments(ANYTHING, "tools of a request are always read", switches="enable_auto_tool_choice"),
    *arguments(ANYTHING, "tools are left out with tool_choice none", switches="exclude_tools_when_tool_choice_none"),
    *arguments(NOTHING, _TOOLS, "tool_parser_plugin tool_server"),
    *arguments(
        ("auto", "string"), "templates get texts; parts of a message are joined", "chat_template_content_format"
    ),
    *arguments(OFF, _TEMPLATE, switches="trust_request_chat_template"),
    *arguments(NOTHING, "give chat_template_kwargs in each request", "default_chat_template_kwargs"),
    *arguments(("assistant",), "answers are the assistant's", "response_role"),
    *arguments(
        ("vllm",),
        "requests have OpenAI's defaults; a serving profile gives an adapter others (docs/adapters.md)",
        "generation_config",
    ),
    *arguments(NOTHING, "a serving profile gives an adapter defaults (docs/adapters.md)", "override_generation_config"),
    *arguments(
        OFF,
        "no code of a checkpoint is ever run, and served families need none; leave it out",
        switches="trust_remote_code",
    ),
    *arguments(NOTHING, "the server listens on an address; use --host and --port", "uds"),
    *arguments(
        NOTHING,
        f"no TLS: {_PROXY}",
        "ssl_keyfile ssl_certfile ssl_ca_certs ssl_cert_reqs ssl_ciphers",
        "enable_ssl_refresh",
    ),
    *arguments(NOTHING, f"no code from elsewhere is loaded; {_PROXY}", "middleware"),
    *arguments(
        NOTHING, "--allowed-origins takes the origins; methods and headers follow", "allowed_methods allowed_headers"
    ),
    *arguments(OFF, "pages of other sites send a key, no cookies", switches="allow_credentials"),
    *arguments(
        ANYTHING,
        "heads of requests have fixed limits (docs/deploy.md)",
        "h11_max_incomplete_event_size h11_max_header_count",
    ),
    *arguments(ANYTHING, "every response has x-request-id", switches="enable_request_id_headers"),
    *arguments(ANYTHING, "the engine is a process of its own", switches="disable_frontend_multiprocessing"),
    *arguments(ANYTHING, "usage always has cached tokens", switches="enable_prompt_tokens_details"),
    *arguments(ANYTHING, "/load and /metrics have the load", switches="enable_server_load_tracking"),
    *arguments(ANYTHING, "/tokenizer_info is there for every key", switches="enable_tokenizer_info_endpoint"),
    *arguments(OFF, "clients ask for it with stream_options.include_usage", switches="enable_force_include_usage"),
    *arguments(OFF, "ask for logprobs; each entry has its token", switches="return_tokens_as_token_ids"),
    *arguments(
        ANYTHING, _LOG, "max_log_len disable_access_log_for_endpoints", "disable_uvicorn_access_log log_error_stack"
    ),
    *arguments(NOTHING, _LOG, "log_config_file"),
    *arguments(OFF, _LOG, switches="enable_log_outputs enable_log_deltas"),
    *arguments(ANYTHING, "unknown LORAPLEX_ variables are named in the log", switches="fail_on_environ_validation"),
    *arguments(OFF, f"/docs names routes alone; to hide it, {_PROXY}", switches="disable_fastapi_docs"),
    *arguments(ANYTHING, "/docs needs no other host", switches="enable_offline_docs"),
    *arguments(OFF, "a model runs on one machine", switches="headless"),
    *arguments(ONE, "one process answers; start several servers behind a proxy", "api_server_count"),
    *arguments(
        NOTHING, "settings are read from loraplex.toml in the data folder, or the file LORAPLEX_CONFIG", "config"
    ),
    *arguments(OFF, "--grpc-port P serves gRPC beside HTTP", switches="grpc"),
)
ARGUMENTS: Final[Mapping[str, Argument]] = {**engine.ARGUMENTS, **dict(ROWS)}
"""A name that stands in both tables has the server's meaning."""

OF_RUN_BATCH: Final[Mapping[str, Argument]] = dict(
    (
        *arguments(ANYTHING, "answers are written beside the output file", "output_tmp_dir"),
        *arguments(OFF, "a server has /metrics, and runs batches too (docs/batches.md)", switches="enable_metrics"),
        *arguments(ANYTHING, "it only matters with metrics", "url"),
    )
)
"""What `vllm run-batch` has beside them."""
