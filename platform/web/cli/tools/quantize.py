"""`loraplex quantize`: a quantized copy of a checkpoint, with what it cost in a table."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from loraplex.engine.model.folder import resolve_model_folder
from loraplex.engine.quantize.options import CALIBRATION_TOKENS, QuantizeOptions
from loraplex.engine.quantize.report import QuantizationReport

from ...units import size_words

Scheme = Literal["awq", "gptq", "int8", "fp8"]
Switch = bool | None
UNSEEN_SHOWN = 6
"""Names in a warning."""


def quantize(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The unquantized model: a folder or a hub id.")],
    scheme: Annotated[Scheme, typer.Option(help="awq and gptq: 4 bits in groups; int8 and fp8: 8 bits, no search.")],
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A new folder (default: MODEL's name plus the scheme).")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Text like the model's work (default: built-in text).")
    ] = None,
    calibration_tokens: Annotated[
        int,
        typer.Option(
            min=1, metavar="NUMBER", help="How much of the text to use; an eighth is held out for evaluation."
        ),
    ] = CALIBRATION_TOKENS,
    group_size: Annotated[
        int | None, typer.Option(min=1, metavar="NUMBER", help="awq, gptq: inputs that share a scale (default: 128).")
    ] = None,
    symmetric: Annotated[
        Switch, typer.Option("--symmetric/--asymmetric", help="awq, gptq: without or with zero points.")
    ] = None,
    fold: Annotated[
        Switch,
        typer.Option(
            "--fold/--no-fold",
            help="awq: also scale inputs (default: on). With it, only loraplex can serve adapters.",
        ),
    ] = None,
    activation_order: Annotated[
        Switch,
        typer.Option(
            "--activation-order/--no-activation-order", help="gptq: quantize the most important columns first."
        ),
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to compute.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a quantized copy of MODEL that loraplex, vLLM and transformers read (compressed-tensors)."""
    folder = resolve_model_folder(model)
    name = Path(model).expanduser().resolve().name  # a hub id's folder is named after a commit
    output = Path(f"{name}-{scheme}") if output is None else output.expanduser()
    options = QuantizeOptions(
        scheme=scheme,
        group_size=group_size,
        symmetric=symmetric,
        fold=fold,
        activation_order=activation_order,
        calibration=None if calibration is None else calibration.expanduser(),
        calibration_tokens=calibration_tokens,
        device=device,
    )
    report = _quantize(folder, output, options)
    if as_json:
        print(json.dumps(dataclasses.asdict(report), indent=2))
        return
    _print(report)


def _quantize(folder: Path, output: Path, options: QuantizeOptions) -> QuantizationReport:
    """The bar goes to standard error, so that JSON can be piped."""
    from loraplex.engine.quantize.run import quantize_checkpoint

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("layers", total=None, visible=False)

        def tell(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=True)

        return quantize_checkpoint(folder, output, options, tell)


def _print(report: QuantizationReport) -> None:
    console = Console(highlight=False)
    searched = any(layer.nearest != layer.chosen for layer in report.layers)
    table = Table("layer", *(["rounded to nearest"] if searched else []), f"error with {report.scheme}")
    for layer in report.layers:
        nearest = [f"{layer.nearest:.2%}"] if searched else []
        table.add_row(str(layer.layer), *nearest, f"{layer.chosen:.2%}")
    console.print(table)
    before, after = report.perplexity_before, report.perplexity_after
    change = f"{after / before - 1:+.2%}"
    console.print(f"perplexity  {before:.3f} -> {after:.3f} ({change}) on {report.held_out_tokens:,} held-out tokens")
    console.print(f"size        {size_words(report.bytes_before)} -> {size_words(report.bytes_after)}")
    if report.unseen:
        first = ", ".join(report.unseen[:UNSEEN_SHOWN]) + (", …" if len(report.unseen) > UNSEEN_SHOWN else "")
        console.print(
            f"[yellow]![/] {len(report.unseen):,} linears of experts are rounded to nearest, as too few tokens of the "
            f"text were routed to them ({first}). Give more --calibration text, like the model's work",
            soft_wrap=True,
        )
    console.print(f"[green]✓[/] {report.output} written in {report.seconds:.0f} s", soft_wrap=True)
