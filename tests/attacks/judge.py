"""Inspects adapters one after another under an audit hook, and prints what each did as one line of JSON.

Runs as a process of its own: an audit hook cannot be taken off again, and memory is measured for the process.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from loraplex.lora.conversion import factors
from loraplex.lora.conversion.convert import convert_adapter
from loraplex.lora.conversion.kinds import is_converted
from loraplex.lora.files.manifest import BaseSignature
from loraplex.lora.inspection.inspection import inspect_adapter

LARGEST = 1 << 30
"""Bytes of what a conversion may write."""


class Watch:
    """Audit events since it was last asked, while it is on: everything that reaches out of the interpreter."""

    def __init__(self) -> None:
        self.on = False
        self.events: list[str] = []
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on:
            self.events.append(f"open {arguments[0]} {arguments[1]}" if event == "open" else event)


class Decompositions:
    """How many were made since it was last asked."""

    def __init__(self) -> None:
        self.made = 0
        self._decompose, factors.decompose = factors.decompose, self

    def __call__(self, matrix: factors.Matrix) -> factors.Singular:
        self.made += 1
        return self._decompose(matrix)

    def take(self) -> int:
        made, self.made = self.made, 0
        return made


def judge(folder: Path, base: BaseSignature, watch: Watch, decompositions: Decompositions) -> dict[str, Any]:
    config, modules = (folder / "adapter_config.json").read_bytes(), set(sys.modules)
    started = time.process_time()
    watch.on = True
    failures, served = judge_files(config, folder / "adapter_model.safetensors", base)
    watch.on = False
    seconds, events, watch.events = time.process_time() - started, watch.events, []
    return {"failures": failures, "served": served, "seconds": seconds, "events": events,
            "imported": sorted(set(sys.modules) - modules), "memory": peak_memory(),
            "decompositions": decompositions.take()}  # fmt: skip


def judge_files(config: bytes, weights: Path, base: BaseSignature) -> tuple[list[str], bool]:
    """Messages of failures, and whether it would be served; as an upload is judged, converted first where need be."""
    if is_converted(config, weights, base):
        made = weights.with_name("converted.json"), weights.with_name("converted.safetensors")
        findings = convert_adapter(config, weights, base, *made, LARGEST)
        failures = [finding.message for finding in findings if finding.level == "fail"]
        if failures:
            return failures, False
        config, weights = made[0].read_bytes(), made[1]
    inspection = inspect_adapter(config, weights, base)
    return [finding.message for finding in inspection.failures()], inspection.manifest is not None


def peak_memory(process: int | str = "self") -> int:
    """Bytes; getrusage would count what the process that started this one had used."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    base, watch = msgspec.json.decode(sys.argv[1], type=BaseSignature), Watch()
    decompositions = Decompositions()
    for line in sys.stdin:
        print(json.dumps(judge(Path(line.rstrip("\n")), base, watch, decompositions)))


if __name__ == "__main__":
    main()
