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
    hidden: int = 192
    intermediate: int = 512
    layers: int = 4
    base_steps: int = 1800
    base_batch: int = 12
    row_length: int = 128
    """Tokens in one row of packed documents."""
    jobs_per_document: int = 4
    """Batches of instructed jobs between two of documents, while the base is trained."""
    base_learning_rate: float = 3e-3
    adapter_batch: int = 32
    adapter_learning_rate: float = 3e-3
    adapter_share: float = 1.0
    """Share of each job's training steps that is made."""
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
        tie_word_embeddings=True,
        pad_token_id=pad,
        bos_token_id=begin,
        eos_token_id=end,
    )
