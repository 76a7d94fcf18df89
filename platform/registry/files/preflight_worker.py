"""The child process that reads uploaded files: a Task on standard input, a Report on standard output, then it ends."""

import sys
from pathlib import Path

import msgspec

from loraplex.lora.files.manifest import AdapterManifest, Inspection
from loraplex.lora.inspection.inspection import inspect_adapter

from ..report import Finding, Report, Summary
from .child import limit_child
from .preflight import Task


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    limit_child(task.cpu_seconds, task.memory, file_bytes=0)
    folder = None if task.base_folder is None else Path(task.base_folder)
    inspection = inspect_adapter(Path(task.config).read_bytes(), Path(task.weights), task.base, folder)
    sys.stdout.buffer.write(msgspec.json.encode(_report(inspection)))


def _report(inspection: Inspection) -> Report:
    findings = [Finding(found.check, found.level, found.message, found.remedy) for found in inspection.findings]
    return Report(findings, None if inspection.manifest is None else _summary(inspection.manifest))


def _summary(manifest: AdapterManifest) -> Summary:
    return Summary(
        digest=manifest.digest,
        peft_type=manifest.peft_type,
        rank=manifest.rank,
        alpha=manifest.alpha,
        target_modules=list(manifest.target_modules),
        parameters=manifest.parameters,
        base_model=_shown(manifest.base_model),
        invocation_tokens=list(manifest.invocation_tokens),
        vocab_size=manifest.vocab_size,
        probe_tokens=list(manifest.probe_tokens),
    )


def _shown(text: str) -> str:
    """User text that any database can hold and any page can show."""
    return "".join(character if character.isprintable() else "?" for character in text[:200])


if __name__ == "__main__":
    main()
