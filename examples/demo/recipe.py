"""Where the demo's files lie, and the numbers that make it what it is."""

from dataclasses import dataclass
from pathlib import Path

from transformers import LlamaConfig

from .chat import SPECIAL_TOKENS

FOLDER = Path(__file__).parent
NAME = "loraplex-demo"
CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Recipe:
    """How much is trained and measured. The defaults make the committed files; tests use a smaller one."""

    seed: int = 20
    vocabulary: int = 1536
    base_steps: int = 1200
    base_batch: int = 16
    row_length: int = 128
    """Tokens in one row of packed documents."""
    base_learning_rate: float = 3e-3
    adapter_batch: int = 32
    adapter_share: float = 1.0
    """Share of each job's training examples that is used."""
    heldout: int = 300
    threads: int = 2


def llama_config(vocabulary: int) -> LlamaConfig:
    pad, begin, end = (SPECIAL_TOKENS.index(token) for token in SPECIAL_TOKENS[:3])
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=pad,
        bos_token_id=begin,
        eos_token_id=end,
    )
