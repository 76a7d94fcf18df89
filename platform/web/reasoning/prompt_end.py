"""How a prompt ends, as text."""

from collections.abc import Sequence

from loraplex.engine.text.tokenizer import Tokenizer


def prompt_end(token_ids: Sequence[int], chars: int, tokenizer: Tokenizer) -> str:
    """Its last `chars` characters at least, without white space behind them; all of a shorter prompt. Special tokens
    are text too. The rest of a long prompt is not decoded."""
    count = chars
    while True:
        text = tokenizer.decode(list(token_ids[-count:]), skip_special_tokens=False).rstrip()
        if len(text) >= chars or count >= len(token_ids):
            return text
        count *= 2
