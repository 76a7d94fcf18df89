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
    hidden: int = 256
    intermediate: int = 512
    layers: int = 5
    base_steps: int = 1400
    base_batch: int = 16
    row_length: int = 128
    """Tokens in one row of packed documents."""
    drill_steps: int = 150
    """Copy drills before the first document."""
    drill_every: int = 10
    drill_batch: int = 64
    base_learning_rate: float = 3e-3
    adapter_batch: int = 32
    adapter_share: float = 1.0
    """Share of each job's training examples that is used."""
    heldout: int = 300
    threads: int = 2


def llama_config(recipe: Recipe, vocabulary: int) -> LlamaConfig:
    pad, begin, end = (SPECIAL_TOKENS.index(token) for token in SPECIAL_TOKENS[:3])
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.intermediate,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.hidden // 32,
        num_key_value_heads=recipe.hidden // 64,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        tie_word_embeddings=True,
        pad_token_id=pad,
        bos_token_id=begin,
        eos_token_id=end,
    )
