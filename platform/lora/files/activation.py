"""Activated LoRA (Greenewald et al. 2025): an adapter that acts from the last invocation tokens of a prompt on.

What stands before them computes as the base alone does, so the base's keys and values serve there.
"""

from collections.abc import Iterable
from typing import Any, Final, TypeGuard

from .manifest import EMBEDDING, BaseSignature, ModuleLora
from .report import Report, quote

KEY: Final = "alora_invocation_tokens"
MOST_TOKENS: Final = 64
LARGEST_TOKEN: Final = (1 << 31) - 1

_ACT_EVERYWHERE: Final = ("use_dora", "bias", "modules_to_save", "trainable_token_indices")
"""What PEFT cannot switch on in the middle of a prompt. A bias of lora_B it can."""
_OFF: Final[tuple[object, ...]] = (None, False, "none", [], {})


def read_invocation_tokens(raw: dict[str, Any], report: Report) -> tuple[int, ...]:
    """Token ids; none where the adapter acts on every token. What cannot be is a failure in `report`."""
    value = raw.get(KEY)
    if value is None:
        return ()
    if not _are_token_ids(value):
        message = f"{KEY} is {quote(value)}; it must be a list of 1 to {MOST_TOKENS} token ids"
        report.fail("config", message, f"set {KEY} to null if it is a plain LoRA")
        return ()
    for key in _ACT_EVERYWHERE:
        if raw.get(key) not in _OFF:
            message = f"{key} is {quote(raw[key])} beside {KEY}: it would act before the invocation tokens too"
            report.fail("features", message, f"train without {key}, or as a plain LoRA")
    return tuple(value)


def refuse_invocation_tokens(raw: dict[str, Any], report: Report) -> None:
    """For a kind of adapter that always acts on every token."""
    if raw.get(KEY) is not None:
        report.fail("features", f"{KEY} is set: only LoRA can be activated within a prompt", f"remove {KEY}")


def judge_invocation_tokens(
    tokens: tuple[int, ...], modules: Iterable[ModuleLora], vocab_size: int, base: BaseSignature, report: Report
) -> None:
    """A prompt can hold tokens of the base's vocabulary only; what adapts the embedding does so for all of it, as do
    tokens that the base lacks. `vocab_size`: as in AdapterManifest."""
    if tokens and vocab_size > base.vocab_size:
        message = f"{vocab_size - base.vocab_size:,} tokens are added beside {KEY}: their rows would act everywhere"
        report.fail("features", message, "train on the base's own vocabulary, or as a plain LoRA")
    if tokens and any(module.kind == EMBEDDING and module.rank for module in modules):
        message = f"embed_tokens is adapted beside {KEY}: it would act before the invocation tokens too"
        report.fail("features", message, "train without embed_tokens in target_modules")
    strange = [token for token in tokens if base.vocab_size and token >= base.vocab_size]
    if strange:
        message = f"{KEY} holds {strange[0]}, outside the base's vocabulary of {base.vocab_size}"
        report.fail("activation", message, "was this adapter trained with another tokenizer?")
    elif tokens:
        report.settle("activation", f"it acts on a prompt from the last occurrence of {list(tokens)}")


def _are_token_ids(value: object) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and 1 <= len(value) <= MOST_TOKENS
        and all(type(token) is int and 0 <= token <= LARGEST_TOKEN for token in value)
    )
