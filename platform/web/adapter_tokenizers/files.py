"""The files that may lie beside an adapter, as transformers saves them, and how large each may be."""

from typing import Final

TOKENIZER_FILE: Final = "tokenizer.json"
SETTINGS_FILE: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
TOKENIZER_LIMITS: Final = {TOKENIZER_FILE: 64 << 20, SETTINGS_FILE: 4 << 20, TEMPLATE_FILE: 128 << 10}
"""File -> most bytes."""
