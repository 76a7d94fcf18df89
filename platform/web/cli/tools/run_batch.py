"""`loraplex run-batch`: a file of requests, answered in this process without a server."""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from loraplex.engine.ipc.client import EngineStartError, EngineUnavailable
from loraplex.engine.vllm_arguments import Argument

from ...observability.logs import configure_logs
from ...settings.settings import Settings
from ..flags import settings_flags
from ..serve import serve, vllm_arguments
from .answer_file import STANDARD_OUTPUT, check_files, opened_for_answers
from .request_file import requests_of

SHORT: Final = {"-i": "--input-file", "-o": "--output-file"}

console = Console(highlight=False, stderr=True)


class Command(serve.Command):
    """Flags as `serve` reads them, vLLM's of its own run-batch, and two short ones."""

    word = "run-batch"
    arguments: ClassVar[Mapping[str, Argument]] = {**vllm_arguments.ARGUMENTS, **vllm_arguments.OF_RUN_BATCH}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [SHORT.get(arg, arg) for arg in args])


@settings_flags
def run_batch(
    settings: Settings,
    context: typer.Context,
    input_file: Annotated[
        str,
        typer.Option(
            "--input-file", "-i", metavar="FILE", help="JSON lines, as /v1/batches takes them; - is standard input."
        ),
    ],
    output_file: Annotated[
        str,
        typer.Option(
            "--output-file", "-o", metavar="FILE", help="One line for each, in the same order; - is standard output."
        ),
    ],
) -> None:
    """Answer each line of a file, without a server. The file is as for /v1/batches."""
    configure_logs("warning" if settings.log_level == "info" else settings.log_level, settings.log_json)
    serve.tell_translation(settings, context.meta[serve.TRANSLATION])
    check_files(input_file, output_file)
    from ...server import run_in_loop

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with requests_of(input_file) as source, opened_for_answers(output_file) as file:
        told = run_in_loop(_run(settings, source, file))
    where = "standard output" if output_file in STANDARD_OUTPUT else output_file
    console.print(f"{where}: {told[True]:,} lines answered, {told[False]:,} refused", markup=False, soft_wrap=True)


async def _run(settings: Settings, source: Path, file: BinaryIO) -> Counter[bool]:
    from loraplex.engine.model.folder import resolve_model_folder

    from ...app import create_app
    from ...batches.file_run import check_file, run_file
    from ...management.start_modules import register_modules
    from ...state import open_state

    # Nobody else asks this engine: as many lines run as a step takes.
    at_once = max(settings.batch_concurrency, settings.max_num_seqs)
    own = settings.model_copy(update={"batch_concurrency": at_once, "certify_uploads": False})
    state = open_state(own, resolve_model_folder(settings.model))
    try:
        total = check_file(source, state)
        await state.engine.start()
        await state.reconciler.reconcile()
        try:
            await register_modules(state)
        except EngineStartError as error:
            raise ValueError(str(error)) from None
        with _bar() as bar:
            task = bar.add_task("", total=total)
            return await run_file(create_app(state), state, source, file, lambda _: bar.advance(task))
    except (EngineStartError, EngineUnavailable) as error:
        raise ValueError(f"the engine could not start: {error}") from None
    finally:
        await state.engine.stop()
        state.passwords.close()
        await asyncio.to_thread(state.text_processors.close)
        await asyncio.to_thread(state.bookkeeper.end)
        state.registry.close()


def _bar() -> Progress:
    columns = TextColumn("lines"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
