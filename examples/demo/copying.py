"""Plants the circuit a language model copies with, so that training need not find it.

To repeat a phrase, one head notes at each token which token came before it, and a head of the next layer looks for
the place whose note is the current token and says what stands there. Training finds this pair by itself only after
millions of tokens; planted, it works after a few hundred steps, and training shapes it on.
"""

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

CONSTANT = 10.0
"""The first entry of every embedding, in standard deviations of the others: what a head without content reads."""
STEP_PAIRS = 4
"""Fast-turning rotary pairs, which tell a step of one position from others."""
STEP_GAIN, NOTE_GAIN, MATCH_GAIN, SAY_GAIN = 1.05, 0.28, 2.0, 0.6


@torch.no_grad()
def plant_copying(model: LlamaForCausalLM) -> None:
    """Overwrites head 0 of the first two layers and the first entry of the embeddings."""
    size, hidden = model.config.head_dim, model.config.hidden_size
    note_in, note_out, said = (_directions(size, hidden) for _ in range(3))
    turns = model.model.rotary_emb.inv_freq
    model.model.embed_tokens.weight[:, 0] = CONSTANT * model.config.initializer_range
    before, match = (model.model.layers[index].self_attn for index in range(2))

    before.q_proj.weight[:size] = _constant_rows(torch.ones_like(turns), torch.zeros_like(turns), hidden)
    before.k_proj.weight[:size] = _constant_rows(turns.cos(), turns.sin(), hidden)
    before.v_proj.weight[:size] = NOTE_GAIN * note_in
    before.o_proj.weight[:, :size] = NOTE_GAIN * note_out.T

    slow = (turns < turns[STEP_PAIRS + 1]).repeat(2).unsqueeze(1)
    match.q_proj.weight[:size] = MATCH_GAIN * slow * note_in
    match.k_proj.weight[:size] = MATCH_GAIN * slow * note_out
    match.v_proj.weight[:size] = SAY_GAIN * said
    match.o_proj.weight[:, :size] = SAY_GAIN * said.T


def _directions(count: int, hidden: int) -> Tensor:
    """[count, hidden] random orthonormal rows that do not read the constant."""
    rows: Tensor = torch.linalg.qr(torch.randn(hidden, count))[0].T.contiguous()
    rows[:, 0] = 0
    return rows


def _constant_rows(cosines: Tensor, sines: Tensor, hidden: int) -> Tensor:
    """[2 * pairs, hidden] rows that make of the constant a vector with these parts in the fast-turning pairs."""
    rows = torch.zeros(2 * len(cosines), hidden)
    fast = torch.arange(len(cosines)) < STEP_PAIRS
    rows[:, 0] = STEP_GAIN * torch.cat([cosines * fast, sines * fast])
    return rows
