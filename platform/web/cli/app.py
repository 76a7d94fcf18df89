"""The words of `loraplex`, assembled. Each lives in a file of its own, which is imported when the word is typed."""

import sys

import typer
from rich.console import Console

import loraplex

from .later import add_word

app = typer.Typer(
    help="Serve one base model and many LoRA adapters, with an OpenAI API and a dashboard.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
add_word(
    app,
    "serve",
    "serve.serve",
    "Serve the base model and its adapters.",
    "Example: loraplex serve --model ./my-model --port 9000",
)
add_word(
    app,
    "usage",
    "access.usage",
    "Print requests and tokens by day, key and adapter version.",
    "Example: loraplex usage --from 2026-11-01 --by adapter",
)
add_word(
    app,
    "backup",
    "tools.backup",
    "Write database, adapters and credentials to one file; the server may be running.",
    "Example: loraplex backup ./loraplex-monday.tar",
)
add_word(app, "restore", "tools.backup", "Unpack a backup into the data folder, which must be empty.")
add_word(
    app,
    "doctor",
    "serve.doctor",
    "Check the machine and the settings: compute path, memory, model, database, data folder, dashboard, port.",
)
add_word(
    app,
    "config",
    "serve.config",
    "Print the settings in force and the source of each, of the running server or else of the next start.",
)
add_word(
    app,
    "bench",
    "tools.bench",
    "Measure the running server: first all streams on the base, then spread over the adapters.",
)
add_word(
    app,
    "run-batch",
    "tools.run_batch",
    "Answer each line of a file, without a server. The file is as for /v1/batches.",
    "Example: loraplex run-batch -i requests.jsonl -o answers.jsonl --model ./my-model",
)
add_word(
    app,
    "calibrate-kv",
    "tools.calibrate_kv",
    "Measure the base and all enabled adapters on a text, and write static scales for an 8-bit KV cache that clip\n"
    "nothing. `serve` uses them at its next start.",
    "Example: loraplex calibrate-kv --kv-cache-dtype fp8_e4m3 --calibration ./questions.txt",
)
add_word(
    app,
    "quantize",
    "tools.quantize",
    "Write a quantized copy of MODEL that loraplex, vLLM and transformers read (compressed-tensors).",
    "Example: loraplex quantize ./my-model --scheme gptq --output ./my-model-4bit",
    on_folder=False,
)
add_word(
    app,
    "certify",
    "adapters.certify",
    "Compare the served model (quantized weights and KV cache) with the unquantized one on the same prompts.",
    "Example: loraplex certify support --quantization int8 --kv-cache-dtype fp8_e4m3",
)
add_word(
    app,
    "adapters",
    "adapters.adapters",
    "Add, list, show, alias and remove adapters. A running server follows within a second.",
)
add_word(
    app,
    "aliases",
    "adapters.aliases",
    "Split an alias's callers among versions. A running server follows within a second.",
)
add_word(app, "credentials", "access.credentials", "Show the first login and the first API key.")
add_word(
    app, "keys", "access.keys", "Create, list, limit and revoke API keys. A running server follows within a second."
)
add_word(app, "users", "access.users", "Create, list and remove users, and set their roles and passwords.")
add_word(
    app,
    "tenants",
    "access.tenants",
    "Create, list, limit and disable tenants. A running server follows within a second.",
)
add_word(app, "audit", "access.audit", "The audit log.")
add_word(app, "db", "tools.database", "The database.")
add_word(app, "secrets", "tools.secrets", "Secrets in files.", on_folder=False)


@app.callback(invoke_without_command=True)
def version(version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True)) -> None:
    if version:
        print(loraplex.__version__)
        raise typer.Exit


def main() -> None:
    """Run the command; what a user did wrong is said in words on standard error, with exit code 2."""
    try:
        app(prog_name="loraplex")
    except Exception as error:
        lines = _error_lines(error)
        if not lines:
            raise
        console = Console(stderr=True, highlight=False, markup=False)
        for line in lines:
            console.print(f"loraplex: {line}", soft_wrap=True)
        sys.exit(2)


def _error_lines(error: Exception) -> list[str]:
    """A line for each problem; none: it is no user's doing. Imports what only some words have imported by then."""
    if isinstance(error, ValueError):
        from pydantic import ValidationError

        if not isinstance(error, ValidationError):
            return [str(error)]
        from ..settings.words import error_lines

        return list(error_lines(error))
    from sqlalchemy.exc import DBAPIError

    if isinstance(error, DBAPIError):
        return [f"the database is not usable: {error.orig}. Check database_url: loraplex doctor"]
    return []
