"""`loraplex serve` in vLLM's spelling: every flag of vLLM's is ours, accepted without effect, or refused with words."""

import subprocess
import sys
from pathlib import Path

import pytest
from docs import vllm_table

from loraplex.engine import vllm_arguments
from loraplex.engine.config import EngineConfig
from loraplex.web.cli.serve import vllm_arguments as server
from loraplex.web.cli.serve.vllm_flags import Translation
from loraplex.web.settings.settings import Settings
from tests.integration.live_server import free_port

THEIRS = """
additional-config aggregate-engine-logging all2all-backend allow-credentials allow-deprecated-quantization
allowed-headers allowed-local-media-path allowed-media-domains allowed-methods allowed-origins api-key api-server-count
async-scheduling attention-backend attention-config block-size calculate-kv-scales chat-template
chat-template-content-format code-revision collect-detailed-traces compilation-config config config-format convert
cp-kv-cache-interleave-size cpu-offload-gb cpu-offload-params cudagraph-capture-sizes cudagraph-metrics
data-parallel-address data-parallel-backend data-parallel-external-lb data-parallel-hybrid-lb data-parallel-rank
data-parallel-rpc-port data-parallel-size data-parallel-size-local data-parallel-start-rank dbo-decode-token-threshold
dbo-prefill-token-threshold dcp-kv-cache-interleave-size decode-context-parallel-size default-chat-template-kwargs
default-mm-loras disable-access-log-for-endpoints disable-cascade-attn disable-chunked-mm-input
disable-custom-all-reduce disable-fastapi-docs disable-frontend-multiprocessing disable-hybrid-kv-cache-manager
disable-log-requests disable-log-stats disable-nccl-for-dp-synchronization disable-sliding-window
disable-uvicorn-access-log distributed-executor-backend download-dir dtype ec-transfer-config enable-auto-tool-choice
enable-chunked-prefill enable-dbo enable-elastic-ep enable-eplb enable-expert-parallel enable-flashinfer-autotune
enable-force-include-usage enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs enable-log-requests
enable-logging-iteration-details enable-lora enable-mfu-metrics enable-mm-embeds enable-offline-docs
enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details enable-request-id-headers
enable-return-routed-experts enable-server-load-tracking enable-sleep-mode enable-ssl-refresh
enable-tokenizer-info-endpoint enable-tower-connector-lora enforce-eager eplb-config
exclude-tools-when-tool-choice-none expert-placement-strategy fail-on-environ-validation fully-sharded-loras
generation-config gpu-memory-utilization grpc h11-max-header-count h11-max-incomplete-event-size headless
hf-config-path hf-overrides hf-token host ignore-patterns interleave-mm-strings io-processor-plugin kernel-config
kv-cache-dtype kv-cache-memory-bytes kv-cache-metrics kv-cache-metrics-sample kv-events-config kv-offloading-backend
kv-offloading-size kv-sharing-fast-prefill kv-transfer-config language-model-only limit-mm-per-prompt load-format
log-config-file log-error-stack logits-processor-pattern logits-processors logprobs-mode long-prefill-token-threshold
lora-dtype lora-modules mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-ssm-cache-dtype master-addr
master-port max-cpu-loras max-cudagraph-capture-size max-log-len max-logprobs max-long-partial-prefills max-lora-rank
max-loras max-model-len max-num-batched-tokens max-num-partial-prefills max-num-seqs max-parallel-loading-workers
media-io-kwargs middleware mm-encoder-attn-backend mm-encoder-only mm-encoder-tp-mode mm-processor-cache-gb
mm-processor-cache-type mm-processor-kwargs mm-shm-cache-max-object-size-mb model model-impl model-loader-extra-config
moe-backend nnodes node-rank num-gpu-blocks-override offload-backend offload-group-size offload-num-in-group
offload-params offload-prefetch-step optimization-level otlp-traces-endpoint override-attention-dtype
override-generation-config performance-mode pipeline-parallel-size pooler-config port prefill-context-parallel-size
prefix-caching-hash-algo profiler-config pt-load-map-location quantization ray-workers-use-nsight reasoning-parser
reasoning-parser-plugin response-role return-tokens-as-token-ids revision root-path runner safetensors-load-strategy
scheduler-cls scheduling-policy seed served-model-name show-hidden-metrics-for-version skip-mm-profiling
skip-tokenizer-init specialize-active-lora speculative-config ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers
ssl-keyfile stream-interval structured-outputs-config swap-space tensor-parallel-size tokenizer tokenizer-mode
tokenizer-revision tokens-only tool-call-parser tool-parser-plugin tool-server trust-remote-code
trust-request-chat-template ubatch-size uds use-tqdm-on-load uvicorn-log-level video-pruning-rate
weight-transfer-config worker-cls worker-extension-cls
"""
"""The options of `vllm serve`, as its documentation lists them."""
SWITCHES = {name for name, field in Settings.model_fields.items() if field.annotation is bool}
OURS = {f"--{name.replace('_', '-')}": name not in SWITCHES for name in Settings.model_fields}
OURS |= {f"--no-{name.replace('_', '-')}": False for name in SWITCHES} | {"--help": False}


def translated(*given: str) -> list[str]:
    return Translation(given, OURS).args


@pytest.mark.parametrize("flag", THEIRS.split())
def test_every_flag_of_vllms_has_an_answer(flag: str) -> None:
    name = flag.replace("-", "_")
    known = [name in {*Settings.model_fields, "tokenizer"}, name in server.RENAMED, name in server.ARGUMENTS]
    assert any(known), "neither ours, nor accepted, nor refused"


def test_no_name_has_two_meanings() -> None:
    for rows in (vllm_arguments.ROWS, server.ROWS):
        names = [name for name, _ in rows]
        assert len(names) == len(set(names))
    assert not {*server.RENAMED} & {*server.ARGUMENTS} and {*server.RENAMED.values()} <= {*Settings.model_fields}
    assert not {*server.ARGUMENTS} & {*EngineConfig.__struct_fields__}
    assert not {*server.ARGUMENTS} & {*Settings.model_fields}
    assert {*server.SHORT.values()} <= {*server.ARGUMENTS, *Settings.model_fields}


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        (["M"], ["--model", "M"]),
        (["owner/m", "--port", "9"], ["--model", "owner/m", "--port", "9"]),
        (["--port=9", "M"], ["--port", "9", "--model", "M"]),
        (["--max_model_len", "8k"], ["--max-model-len", "8k"]),
        (["--max-model-len", "auto"], []),
        (["--max-model-len", "-1"], []),
        (["--kv-cache-dtype", "fp8"], ["--kv-cache-dtype", "fp8_e4m3"]),
        (["--dtype", "half", "-q", "awq_marlin"], ["--dtype", "float16", "--quantization", "awq"]),
        (["--served-model-name", "a"], ["--served-name", "a"]),
        (["--served-model-name", "a", "b", "c"], ["--served-name", "a", "--also-served-as", "b,c"]),
        (["--api-key", "k1", "k2"], ["--api-key", "k1 k2"]),
        (["--lora-modules", "a=/x", '{"name": "b", "path": "y"}'], ["--lora-modules"]),
        (["--num-gpu-blocks-override", "7"], ["--num-kv-blocks", "7"]),
        (["--kv-cache-memory-bytes", "1G"], ["--kv-cache-memory", str(1 << 30)]),
        (["--uvicorn-log-level", "critical"], ["--log-level", "error"]),
        (["--no-enable-prefix-caching"], ["--no-enable-prefix-caching"]),
        (["--enable-prefix-caching", "false"], ["--no-enable-prefix-caching"]),
        (["--enable-prefix-caching=True"], ["--enable-prefix-caching"]),
        (["--tensor-parallel-size", "1", "-pp", "1", "-O3", "-O.level=2"], []),
        (["--compilation-config.level", "3", "--cudagraph-capture-sizes", "1", "2", "4"], []),
        (["--compilation-config", '{"level": 3}', "--swap-space", "4"], []),
        (["--enable-lora", "--max-loras", "4", "--max-lora-rank", "64", "--max-cpu-loras", "8"], []),
        (["--disable-log-requests", "--no-enable-log-requests", "--enforce-eager", "M"], ["--model", "M"]),
        (["--cpu-offload-gb", "0.0", "--hf-overrides", "{}", "--ssl-keyfile", "None"], []),
        (["--no-enable-sleep-mode", "--enable-chunked-prefill=False"], []),
        (["--no-api-key", "--help"], ["--no-api-key", "--help"]),
    ],
)
def test_a_command_line_becomes_ours(given: list[str], ours: list[str]) -> None:
    found = translated(*given)
    if "--lora-modules" in found:
        [*found, modules] = found
        names = [module.name for module in Settings(lora_modules=modules).lora_modules]  # type: ignore[arg-type]
        assert names == ["a", "b"]
    assert found == ours


def test_what_has_no_effect_is_named_once() -> None:
    found = Translation(["--enable-lora", "--max-loras", "4", "--seed", "1", "-tp", "1"], OURS)
    assert found.without_need == ["--enable-lora", "--max-loras", "-tp"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--tensor-parallel-size 2", "--tensor-parallel-size 2 is not supported: a model runs on one device"),
        ("-tp=2", "-tp=2 is not supported: a model runs on one device"),
        ("--trust-remote-code", "--trust-remote-code is not supported: no code of a checkpoint is ever run"),
        ("--ssl-keyfile k.pem", "--ssl-keyfile k.pem is not supported: no TLS"),
        ("--cpu-offload-gb 4", "quantize the weights instead"),
        ("--generation-config auto", "a serving profile gives an adapter others"),
        ("--max-logprobs 50", "--max-logprobs 50 is not supported: a request may ask for 20"),
        ("--speculative-config.method ngram", "there is no speculation"),
        ("--max-modellen 5", "there is no option --max-modellen. Did you mean --max-model-len?"),
        ("--lora-module a=b", "Did you mean --lora-modules?"),
        ("--enforce-eagr", "Did you mean --enforce-eager?"),
        ("--no-max-loras 4", "there is no option --no-max-loras"),
        ("-x", "there is no option -x. loraplex serve --help lists all"),
        ("--max-loras", "--max-loras needs a value"),
        ("--enable-lora=maybe", "'maybe' is neither true nor false"),
        ("a/b c/d", "there are two models, a/b and c/d"),
    ],
)
def test_what_cannot_be_had_says_why(given: str, words: str) -> None:
    with pytest.raises(ValueError) as refused:
        translated(*given.split())
    assert words in str(refused.value)


def test_what_run_batch_has_alone() -> None:
    arguments = {**server.ARGUMENTS, **server.OF_RUN_BATCH}
    assert not {*server.OF_RUN_BATCH} & {*server.ARGUMENTS, *server.RENAMED, *Settings.model_fields}
    found = Translation(["--output-tmp-dir", "/tmp/x", "--url", "0.0.0.0"], OURS, "run-batch", arguments)
    assert found.args == [] and found.without_need == ["--output-tmp-dir", "--url"]
    for given, words in (("--enable-metrics", "a server has /metrics"), ("-x", "loraplex run-batch --help lists all")):
        with pytest.raises(ValueError, match=words):
            Translation([given], OURS, "run-batch", arguments)
    with pytest.raises(ValueError, match="there is no option --output-tmp-dir"):
        translated("--output-tmp-dir", "/tmp/x")


def test_the_page_has_the_table_of_the_code() -> None:
    assert vllm_table.PAGE.read_text("utf-8") == vllm_table.page(), "run docs/vllm_table.py"


@pytest.mark.parametrize("place", [["loraplex", "serve"], ["loraplex.entrypoints.openai.api_server"]])
def test_both_commands_refuse_before_anything_starts(place: list[str], tmp_path: Path) -> None:
    def run(*flags: str) -> str:
        command = [sys.executable, "-m", *place, "--data-dir", str(tmp_path / "data"), *flags]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 2
        return ended.stderr

    assert "loraplex: there is no option --max-modellen" in run("--max-modellen", "5")
    assert "max_model_len must be between 2 and 2048, the model's own, got 100000" in run("--max-model-len", "100k")
    assert "--tokenizer x is not supported" in run("--tokenizer", "x", "--max-model-len", "1k")
    assert not (tmp_path / "data").exists()


def test_what_the_model_is_for_is_told() -> None:
    translation = Translation(["m", "--task", "classify", "--runner=pooling"], {"--model": True})
    assert translation.tasks == {"task": "classify", "runner": "pooling"}
    assert translation.without_need == ["--task", "--runner"]


def test_a_task_that_the_model_cannot_do_ends_the_start(checkpoint: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loraplex", "serve", str(checkpoint), "--task", "classify"]
    ended = subprocess.run(
        [*command, "--data-dir", str(tmp_path), "--port", str(free_port())], capture_output=True, text=True
    )
    assert ended.returncode == 2 and "task='classify' is not possible: the model has no classif" in ended.stderr
    assert not [*tmp_path.iterdir()]


def test_overrides_of_a_reranker_are_our_setting() -> None:
    takes_value = {"--model": True, "--classifier-from-token": True}
    said = '{"architectures": ["X"], "classifier_from_token": ["no", "yes"], "is_original_qwen3_reranker": true}'
    for arguments in (["--hf-overrides", said.replace("X", "Qwen3ForSequenceClassification")], ["--hf-overrides={}"]):
        translation = Translation(["m", *arguments], takes_value)
        tokens = ["--classifier-from-token", "no,yes"] if len(arguments) == 2 else []
        assert translation.args == ["--model", "m", *tokens]
    with pytest.raises(ValueError, match="rope_theta is not supported: change config"):
        Translation(["m", "--hf-overrides", '{"rope_theta": 1}'], takes_value)
