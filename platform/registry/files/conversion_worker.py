"""The child process that converts uploaded files: a ConversionTask on standard input, findings on standard output."""

import sys
from pathlib import Path

import msgspec

from loraplex.lora.conversion.convert import convert_adapter

from ..report import Finding
from .artifacts import CONFIG_FILE, WEIGHTS_FILE
from .child import limit_child
from .conversion import ConversionTask


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=ConversionTask)
    limit_child(task.cpu_seconds, task.memory, task.largest)
    folder = Path(task.folder)
    findings = convert_adapter(
        Path(task.config).read_bytes(),
        Path(task.weights),
        task.base,
        folder / CONFIG_FILE,
        folder / WEIGHTS_FILE,
        task.largest,
    )
    shown = [Finding(found.check, found.level, found.message, found.remedy) for found in findings]
    sys.stdout.buffer.write(msgspec.json.encode(shown))


if __name__ == "__main__":
    main()
