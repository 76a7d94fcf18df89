"""`loraplex calibrate-kv`: static scales of the KV cache, of the base and all registered adapters."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from loraplex.engine.device.threads import prepare_environment
from loraplex.engine.model.folder import resolve_model_folder
from loraplex.registry.snapshot import Snapshot

from ...observability.engine_metrics import adapter_names
from ...settings.settings import Settings
from ..flags import settings_flags
from ..opened import opened_registry
from ..settings_here import settings_here

if TYPE_CHECKING:
    from loraplex.engine.offline.calibrate_kv import Calibration, Reader

TOKENS = 4096


@partial(settings_flags, read=settings_here)
def calibrate_kv(
    settings: Settings,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Text like the adapters' work (default: built-in text).")
    ] = None,
    calibration_tokens: Annotated[
        int, typer.Option(min=1, metavar="NUMBER", help="How much of it the base and each adapter process.")
    ] = TOKENS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the base and all enabled adapters on a text, and write static scales for an 8-bit KV cache that clip
    nothing. `serve` uses them at its next start."""
    found = _calibrate(settings, calibration, calibration_tokens)
    from loraplex.engine.startup.scales_file import write_scales_file

    write_scales_file(settings.kv_scales_file, found.file)
    if as_json:
        print(json.dumps(_as_json(settings, found), indent=2))
        return
    _print(settings, found)


def _calibrate(settings: Settings, text: Path | None, tokens: int) -> "Calibration":
    """The bar goes to standard error, so that JSON can be piped."""
    prepare_environment()
    from loraplex.engine.offline.calibrate_kv import calibrate_kv

    with opened_registry(settings) as (registry, base):
        config = settings.engine_config(resolve_model_folder(settings.model))
        readers = _readers(base.name, registry.snapshots.current)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task("sequences", total=None, visible=False)

            def tell(done: int, total: int) -> None:
                progress.update(task, completed=done, total=total, visible=True)

            return calibrate_kv(config, readers, None if text is None else text.expanduser(), tokens, tell)


def _readers(base: str, snapshot: Snapshot) -> "list[Reader]":
    """The base, and each adapter that a request can name, once per digest."""
    from loraplex.engine.offline.calibrate_kv import Reader

    names = adapter_names(snapshot)
    adapters = [adapter for tenant in snapshot.adapters.values() for adapter in tenant.values()]
    invoked_by = {version.digest: version.invocation_tokens for adapter in adapters for version in adapter.versions}
    return [
        Reader(base),
        *(
            Reader(names[adapter.digest], adapter.digest, str(adapter.folder), invoked_by[adapter.digest])
            for adapter in snapshot.desired()
        ),
    ]


def _as_json(settings: Settings, found: "Calibration") -> dict[str, Any]:
    names = [reader.name for reader in found.readers]
    parts = ("keys", "values")
    return {
        "output": str(settings.kv_scales_file),
        "kv_cache_dtype": found.file.kv_cache_dtype,
        "readers": names,
        "tokens": found.tokens,
        "layers": [
            {
                part: [{"scale": scale, "set_by": names[reader]} for scale, reader in zip(scales, readers, strict=True)]
                for part, scales, readers in zip(parts, *layer, strict=True)
            }
            for layer in ((scales.tolist(), found.set_by[number].tolist()) for number, scales in found.scales.items())
        ],
    }


def _print(settings: Settings, found: "Calibration") -> None:
    console = Console(highlight=False)
    table = Table("layer", "largest scale of keys", "set by", "largest scale of values", "set by")
    for layer, scales in found.scales.items():
        readers = found.set_by[layer]
        cells = []
        for part in range(2):
            head = int(scales[part].argmax())
            cells += [f"{float(scales[part, head]):.4g}", found.readers[int(readers[part, head])].name]
        table.add_row(str(layer), *cells)
    console.print(table)
    adapters = len(found.readers) - 1
    console.print(
        f"maxima over {found.tokens:,} tokens, read by the base and {adapters} adapter{'s' * (adapters != 1)}"
    )
    console.print(f"[green]✓[/] {settings.kv_scales_file} written; the server uses it from its next start with")
    console.print(f"  --kv-cache-dtype {found.file.kv_cache_dtype}")
