"""`loraplex certify`: how near the served path comes to the unquantized model, with an adapter or not, in a table."""

import json
import re
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from loraplex.engine.certify.certificate import Certificate, CertifyJob, runtime_words
from loraplex.engine.certify.child import run_certify
from loraplex.engine.device.arithmetic import computing_here
from loraplex.engine.model.folder import resolve_model_folder
from loraplex.registry.certificates.certificates import Subject
from loraplex.registry.database.database import AWAY
from loraplex.registry.names import parse_reference

from ...certificates.served import ServedPath
from ...settings.running_server import ACTOR
from ...settings.settings import Settings
from ..flags import settings_flags
from ..opened import opened_registry
from ..settings_here import settings_here
from .certified import Target, check_tokens, find_certificate, find_target, keep_certificate

JSON_LIST = re.compile(r'\s*\[\s*["\]]')
"""Lines may begin with a bracket too: [INST]."""
ROUNDINGS = ("quantization", "head_quantization", "kv_cache_dtype", "kv_cache_scales", "dtype")
FLAGS = ("model", "device", *ROUNDINGS, "max_model_len", "data_dir", "database_url")
ROWS = {"weights": "weights only", "kv_cache": "KV cache only", "both": "both"}


@partial(settings_flags, names=FLAGS, read=settings_here)
def certify(
    settings: Settings,
    adapter: Annotated[
        str | None,
        typer.Argument(metavar="NAME[@VERSION]|FOLDER", help="A registered adapter, or a folder (with a /)."),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="FOLDER|HUB-ID", help="The unquantized model (default: the model before quantization)."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="One prompt per line, or a JSON list (default: the adapter's own, else built-in prompts).",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Make FILE the adapter's own prompts, for this and all future certificates.")
    ] = False,
    anew: Annotated[bool, typer.Option("--anew", help="Measure even if the registry has a valid certificate.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the served model (quantized weights and KV cache) with the unquantized one on the same prompts.

    The certificate of a registered adapter, or of the base, is stored in the registry and shown on its page; while it
    holds, it is the answer.
    """
    given = None if prompts is None else read_prompt_file(prompts.expanduser())
    if keep:
        _keep_prompts(settings, adapter, given)
    target = find_target(settings, adapter)
    served = _served_path(settings, reference)
    on_own_prompts = given in (None, target.prompts)
    found = find_certificate(settings, target, served) if on_own_prompts and not anew else None
    texts = target.prompts if given is None else given
    if target.subject is not None and found is None:
        check_tokens(settings, target.subject, served, texts)
    job = served.job(target.subject or Subject(None), target.folder, texts)
    certificate = found or _computed(job)
    if as_json:
        print(json.dumps({"digest": certificate.coverage.digest(), **certificate.to_json()}, indent=2))
    else:
        _print(adapter or f"the base {settings.base_name}", certificate)
    words = _kept(settings, target, certificate, found is not None, on_own_prompts)
    if words and not as_json:
        Console(highlight=False).print(words)


def read_prompt_file(path: Path) -> list[str]:
    """ValueError for a file that cannot be read or holds anything else than texts."""
    try:
        text = path.read_text("utf-8")
        prompts = json.loads(text) if JSON_LIST.match(text) else text.splitlines()
    except (OSError, ValueError) as error:
        raise ValueError(f"the prompts in {path} cannot be read: {error}") from None
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise ValueError(f"{path} must be a JSON list of strings, or one prompt per line")
    return [prompt for prompt in prompts if prompt.strip()]


def _kept(settings: Settings, target: Target, certificate: Certificate, is_there: bool, on_own_prompts: bool) -> str:
    """Keep it, and say so; exit code 1 where it cannot be kept: what was measured is on the screen by now."""
    if target.subject is None:
        return ""
    if is_there:
        return "The existing certificate is still valid (--anew measures again)."
    if not on_own_prompts:
        return "Not stored: the registry takes certificates on the adapter's own prompts only (--keep stores these)."
    try:
        keep_certificate(settings, target.subject, certificate)
    except (ValueError, *AWAY) as error:
        Console(stderr=True).print(f"The certificate could not be stored in the registry: {error}", markup=False)
        raise typer.Exit(1) from None
    return "[green]✓[/] stored in the registry and shown on its page"


def _keep_prompts(settings: Settings, adapter: str | None, prompts: list[str] | None) -> None:
    if adapter is None or "/" in adapter or prompts is None:
        raise ValueError("--keep needs the name of a registered adapter and --prompts FILE")
    with opened_registry(settings) as (registry, _):
        registry.adapters.set_prompts(parse_reference(adapter).name, prompts, actor=ACTOR)


def _served_path(settings: Settings, reference: str | None) -> ServedPath:
    """With the reference that is named here, else with the operator's."""
    if reference is not None:
        settings = settings.model_copy(update={"certificate_reference": resolve_model_folder(reference)})
    folder = resolve_model_folder(settings.model)
    return ServedPath(settings, folder, cache(partial(computing_here, settings.engine_config(folder))))


def _computed(job: CertifyJob) -> Certificate:
    """The bar goes to standard error, so that JSON can be piped."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("starting", total=1.0)
        certificate = run_certify(job, lambda share, stage: progress.update(task, completed=share, description=stage))
        progress.update(task, completed=1.0, description="certified")
        return certificate


def _print(subject: str, certificate: Certificate) -> None:
    console, coverage = Console(highlight=False), certificate.coverage
    before = certificate.reference_perplexity
    console.print(
        f"[bold]{subject}[/] compared with the unquantized model: {certificate.num_tokens:,} tokens of "
        f"{certificate.num_prompts} prompts, perplexity {before:.3f} there",
        soft_wrap=True,
    )
    table = Table("as served", "same top-1", "mean KL", "max KL", "perplexity", "change")
    for name, words in ROWS.items():
        found = getattr(certificate, name)
        divergence = f"{found.mean_kl:.5f}", f"{found.max_kl:.4f}"
        change = f"{found.perplexity_delta / before:+.2%}"
        table.add_row(words, f"{found.top1_agreement:.2%}", *divergence, f"{found.perplexity:.3f}", change)
    console.print(table)
    console.print(f"weights   {coverage.quantization or 'as in the checkpoint'}")
    console.print(f"KV cache  {coverage.kv_cache_dtype}")
    if coverage.positions:
        console.print(f"positions {coverage.positions}")
    console.print(f"computes  by {coverage.arithmetic}; {runtime_words(coverage.runtime)}", soft_wrap=True)
    console.print(f"[green]✓[/] certificate {coverage.digest()[:12]} in {certificate.seconds:.0f} s")
