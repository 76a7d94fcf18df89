"""What the API process asks the child that reads tokenizer files, and what it hears."""

import msgspec

from loraplex.registry.files.adapter_tokenizer import AdapterTokenizer


class CheckTask(msgspec.Struct, frozen=True):
    """What the child reads from its standard input. `files`: name -> path; `base`: folder of the base."""

    files: dict[str, str]
    base: str
    vocab_size: int
    cpu_seconds: int
    memory: int


class Verdict(msgspec.Struct, frozen=True):
    """`problem` says why the files cannot be used. Without one, `tokenizer` None means that they change nothing."""

    tokenizer: AdapterTokenizer | None
    problem: str | None = None
    remedy: str | None = None
    named_tokens: dict[str, str] = {}
    """All of them, for the chat template."""
