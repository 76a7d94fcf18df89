"""Adapters that bring tokens: prompts that these would read otherwise are not certified by the base's token ids."""

from collections.abc import Sequence

from loraplex.engine.certify.prompts import generated_prompts
from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.certificates.certificates import Subject
from loraplex.registry.files.adapter_tokenizer import AdapterTokenizer
from loraplex.registry.files.tokenizers import Tokenizers

from ..adapter_tokenizers.added_tokens import as_library_token


def refuse_own_tokens(tokenizers: Tokenizers, base: Tokenizer, subject: Subject, prompts: Sequence[str] | None) -> None:
    """ValueError where every version of this content reads one of the prompts (None: the generated ones) as other
    tokens than the base, with which certificates are measured. Blocks on the database."""
    if subject.adapter is None:
        return
    texts = generated_prompts() if prompts is None else prompts
    differing = [_first_read_otherwise(base, own, texts) for own in tokenizers.of_content(subject.adapter)]
    if differing and None not in differing:
        raise ValueError(
            f"prompt {differing[0]} contains tokens that the adapter adds, but certificates are measured on the "
            "base's tokens. Give the adapter golden prompts without them."
        )


def _first_read_otherwise(base: Tokenizer, own: AdapterTokenizer | None, texts: Sequence[str]) -> int | None:
    """The number of the first such text, from 1; `own` None: the base's tokenizer."""
    if own is None or not own.added_tokens:
        return None
    extended = base.extended([as_library_token(token) for token in own.added_tokens], own.named_tokens)
    return next((number for number, text in enumerate(texts, 1) if extended.encode(text) != base.encode(text)), None)
