"""`loraplex serve`: settings and ports are judged before anything slow is imported. Then the engine process starts, so
that it imports torch and reads the weights while this one imports the web server."""

import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import FrameType
from typing import Any, ClassVar, Final

import typer
from typer.core import TyperCommand, TyperOption

from loraplex.engine.model.config import ModelConfig
from loraplex.engine.model.folder import resolve_model_folder
from loraplex.engine.processes.spawn import EngineProcess
from loraplex.engine.vllm_arguments import Argument, check_tasks

from ...grpc_entry.packages import check_grpc
from ...observability.logs import configure_logs
from ...observability.tracing import check_tracing
from ...settings.data_folder import prepare_data_folder
from ...settings.loopback import warn_of_open
from ...settings.settings import Settings
from ..ending import end_at_once
from ..flags import settings_flags
from ..port import listen
from ..steps import step
from .vllm_arguments import ARGUMENTS
from .vllm_flags import Translation

TRANSLATION: Final = "loraplex.translation"
"""Among the context's: what became of flags in vLLM's spelling."""

logger = logging.getLogger(__name__)


class Command(TyperCommand):
    """Also reads flags as vLLM spells them, and the model without a flag."""

    word = "serve"
    arguments: ClassVar[Mapping[str, Argument]] = ARGUMENTS

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [one for one in self.get_params(ctx) if isinstance(one, TyperOption)]
        takes_value = {flag: not one.is_flag for one in options for flag in (*one.opts, *one.secondary_opts)}
        ctx.meta[TRANSLATION] = translation = Translation(args, takes_value, self.word, self.arguments)
        return super().parse_args(ctx, translation.args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[MODEL]", *super().collect_usage_pieces(ctx)]


@settings_flags
def serve(settings: Settings, context: typer.Context) -> None:
    """Serve the base model and its adapters."""
    started = time.perf_counter()
    # Until the server listens to signals: what it has begun by then, any crash may interrupt.
    _listen_to_signals(end_at_once)
    configure_logs(settings.log_level, settings.log_json)
    warn_of_open(settings)
    check_tracing(settings.otlp_traces_endpoint)
    check_grpc(settings)
    tell_translation(settings, context.meta[TRANSLATION])
    with listen(settings.host, settings.port) as listener, _monitoring_listener(settings) as other:
        engine = _start_engine(settings, context.meta[TRANSLATION])
        _listen_to_signals(partial(_end_with, engine))
        from .start import run_server

        sys.exit(run_server(settings, engine, started, listener, other))


def tell_translation(settings: Settings, translation: Translation) -> None:
    """Of flags without an effect. ValueError for a tokenizer that is not the model's."""
    if translation.tokenizer not in (None, settings.model):
        raise ValueError(
            f"--tokenizer {translation.tokenizer} is not supported: the model's own tokenizer is read. Put its files "
            "into the model's folder"
        )
    if translation.without_need:
        logger.info("accepted without effect (docs/vllm.md): %s", " ".join(translation.without_need))


def _listen_to_signals(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _end_with(engine: EngineProcess, number: int, frame: FrameType | None) -> None:
    engine.kill()
    end_at_once(number, frame)


def _start_engine(settings: Settings, translation: Translation) -> EngineProcess:
    with step("model found"):
        folder = resolve_model_folder(settings.model)
        model = ModelConfig.from_folder(folder)
        model.length(settings.max_model_len)
        check_tasks(translation.tasks, folder, model, settings.classifier_from_token)
    prepare_data_folder(settings.data_dir)
    try:
        return EngineProcess(settings.engine_config(folder))
    except OSError as error:
        raise ValueError(f"the engine process could not be started: {error}") from error


def _monitoring_listener(settings: Settings) -> AbstractContextManager[socket.socket | None]:
    if settings.metrics_port is None:
        return nullcontext()
    return listen(settings.metrics_host, settings.metrics_port, "--metrics-port")
