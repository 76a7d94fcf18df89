"""The prompts that an adapter's certificates are measured on: checked, and kept by their content."""

import hashlib
import json
from collections.abc import Sequence

from sqlalchemy.orm import Session

from ..database import tables
from ..errors import InvalidPrompts

MAX_PROMPTS = 64
MAX_PROMPT_BYTES = 16 << 10


def check_prompts(prompts: Sequence[str]) -> list[str]:
    """The prompts themselves; raises InvalidPrompts when there are none, too many, empty or too long ones."""
    if not prompts:
        raise InvalidPrompts("Give at least one prompt, or remove the prompts to have some generated.")
    if len(prompts) > MAX_PROMPTS:
        raise InvalidPrompts(f"{len(prompts)} prompts are too many: the limit is {MAX_PROMPTS}.")
    for number, prompt in enumerate(prompts, 1):
        size = len(prompt.encode("utf-8", "surrogatepass"))
        if not prompt.strip():
            raise InvalidPrompts(f"Prompt {number} is empty. Fill it in, or leave it out.")
        if size > MAX_PROMPT_BYTES or size != len(prompt.encode("utf-8", "replace")):
            raise InvalidPrompts(f"Prompt {number} is not text of at most {MAX_PROMPT_BYTES:,} bytes of UTF-8.")
    return list(prompts)


def digest_of(prompts: Sequence[str]) -> str:
    """SHA-256 of the canonical JSON, as the engine takes it (`engine/certify/certificate.py: prompts_digest`)."""
    return hashlib.sha256(json.dumps(list(prompts), separators=(",", ":")).encode()).hexdigest()


def keep_prompts(session: Session, prompts: Sequence[str] | None) -> str | None:
    """Their digest, once their row is in the session; None for none."""
    if prompts is None:
        return None
    checked, digest = check_prompts(prompts), digest_of(prompts)
    if session.get(tables.GoldenPrompts, digest) is None:
        session.add(tables.GoldenPrompts(digest=digest, prompts=checked))
        session.flush()
    return digest


def read_prompts(session: Session, digest: str | None) -> list[str] | None:
    return None if digest is None else list(session.get_one(tables.GoldenPrompts, digest).prompts)
