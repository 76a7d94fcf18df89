"""The files that LLM's adapters are served from: the user's own, or the LoRA that they are converted to."""

import logging
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from loraplex.lora.conversion.convert import convert_adapter
from loraplex.lora.conversion.kinds import is_converted
from loraplex.lora.files.manifest import AdapterManifest, BaseSignature, Finding
from loraplex.lora.inspection.inspection import CONFIG_FILE, WEIGHTS_FILE, inspect_adapter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    manifest: AdapterManifest
    folder: Path


def prepare_adapter(
    name: str, folder: Path, base: BaseSignature, scratch: ExitStack, base_folder: Path | None = None
) -> AdapterFiles:
    """The adapter in `folder`, or the LoRA made of it, in a temporary folder that goes when `scratch` closes.

    With the `base_folder`, one that repeats what the base has is refused too.
    ValueError has every reason why it cannot be used.
    """
    missing = [file for file in (CONFIG_FILE, WEIGHTS_FILE) if not (folder / file).is_file()]
    if missing:
        raise ValueError(f"adapter {name!r}: {folder} has no {' and no '.join(missing)}")
    if is_converted((folder / CONFIG_FILE).read_bytes(), folder / WEIGHTS_FILE, base):
        folder = _convert(name, folder, base, scratch)
    inspection = inspect_adapter((folder / CONFIG_FILE).read_bytes(), folder / WEIGHTS_FILE, base, base_folder)
    if inspection.manifest is None:
        raise ValueError(_refusal(name, inspection.failures()))
    return AdapterFiles(inspection.manifest, folder)


def _convert(name: str, folder: Path, base: BaseSignature, scratch: ExitStack) -> Path:
    target = Path(scratch.enter_context(tempfile.TemporaryDirectory(prefix="loraplex-")))
    config, room = (folder / CONFIG_FILE).read_bytes(), shutil.disk_usage(target).free // 2
    findings = convert_adapter(config, folder / WEIGHTS_FILE, base, target / CONFIG_FILE, target / WEIGHTS_FILE, room)
    failures = [finding for finding in findings if finding.level == "fail"]
    if failures:
        raise ValueError(_refusal(name, failures))
    for finding in findings:
        level = logging.WARNING if finding.level == "warn" else logging.INFO
        logger.log(level, "adapter %r: %s", name, finding.message)
    return target


def _refusal(name: str, failures: Iterable[Finding]) -> str:
    reasons = [f"{found.message} ({found.remedy})" if found.remedy else found.message for found in failures]
    return f"adapter {name!r}: " + "; ".join(reasons)
