"""The commands of `loraplex`, assembled. Each lives in a file of its own and imports what it needs when it runs."""

import sys
from ssl import SSLError

import typer
from pydantic import ValidationError
from rich.console import Console
from sqlalchemy.exc import DBAPIError

import loraplex

from ..setting_words import in_words
from . import (
    adapters,
    aliases,
    audit,
    backup,
    bench,
    calibrate_kv,
    certify,
    config,
    database,
    doctor,
    keys,
    push,
    quantize,
    serve,
    tenants,
    usage,
    users,
)

app = typer.Typer(
    help="Serve one base model and many LoRA adapters, with an OpenAI API and a dashboard.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(epilog="Example: loraplex serve --model ./my-model --port 9000")(serve.serve)
adapters.app.command(epilog="Example: loraplex adapters push ./runs/support --name support --progress")(push.push)
app.add_typer(adapters.app, name="adapters")
app.add_typer(aliases.app, name="aliases")
app.add_typer(keys.app, name="keys")
app.add_typer(users.app, name="users")
app.add_typer(tenants.app, name="tenants")
app.command(epilog="Example: loraplex usage --from 2026-11-01 --by adapter")(usage.usage)
app.add_typer(audit.app, name="audit")
app.add_typer(database.app, name="db")
app.command(epilog="Example: loraplex backup ./loraplex-monday.tar")(backup.backup)
app.command()(backup.restore)
app.command()(doctor.doctor)
app.command()(config.config)
app.command()(bench.bench)
app.command(
    "calibrate-kv", epilog="Example: loraplex calibrate-kv --kv-cache-dtype fp8_e4m3 --calibration ./questions.txt"
)(calibrate_kv.calibrate_kv)
app.command(epilog="Example: loraplex quantize ./my-model --scheme gptq --output ./my-model-4bit")(quantize.quantize)
app.command(epilog="Example: loraplex certify support --quantization int8 --kv-cache-dtype fp8_e4m3")(certify.certify)


@app.callback(invoke_without_command=True)
def version(version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True)) -> None:
    if version:
        print(loraplex.__version__)
        raise typer.Exit


def main() -> None:
    """Run the command; what a user did wrong is said in words on standard error, with exit code 2."""
    try:
        app()
    except ValidationError as error:
        for words in in_words(error):
            _complain(words)
        sys.exit(2)
    except ValueError as error:
        _complain(str(error))
        sys.exit(2)
    except (DBAPIError, SSLError) as error:
        _complain(f"the database cannot be used: {getattr(error, 'orig', error)}. Check database_url: loraplex doctor")
        sys.exit(2)


def _complain(text: str) -> None:
    Console(stderr=True, highlight=False, markup=False).print(f"loraplex: {text}", soft_wrap=True)
