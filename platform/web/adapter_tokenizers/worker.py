"""The child process that reads tokenizer files: a CheckTask on standard input, a Verdict on standard output."""

import sys
from pathlib import Path

import msgspec

from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.files.child import limit_child

from .read import Base, read_tokenizer
from .task import CheckTask, Verdict
from .unfit import Unfit


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=CheckTask)
    limit_child(task.cpu_seconds, task.memory, file_bytes=0)
    sys.stdout.buffer.write(msgspec.json.encode(_verdict(task)))


def _verdict(task: CheckTask) -> Verdict:
    base = Base(Path(task.base), Tokenizer(task.base), task.vocab_size)
    try:
        found = read_tokenizer({name: Path(path) for name, path in task.files.items()}, base)
        named = {**base.tokenizer.named_tokens, **(found.named_tokens if found else {})}
        return Verdict(found, named_tokens=named)
    except Unfit as error:
        return Verdict(None, str(error), error.remedy)


if __name__ == "__main__":
    main()
