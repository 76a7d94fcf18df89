"""Adapters with rows of the embedding and of the head, and norms: what their files must say, and what they take."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from loraplex.lora.apply.batch import TOKENS_PER_PAGE
from loraplex.lora.files.manifest import EMBEDDING, HEAD, BaseSignature
from loraplex.lora.files.values import Bits
from loraplex.lora.inspection.inspection import inspect_adapter
from loraplex.lora.residency.pool import AdapterPool
from loraplex.lora.residency.row_pages import index_bytes
from tests.lora.signatures import LINEARS, with_linears

from ..adapters import BASE as WIDE
from ..adapters import Tensors, make_config, make_tensors, read_manifest, write_adapter
from ..house import held_slot

BASE = with_linears(WIDE, WIDE.linears, vocab_size=50)
TIED = replace(BASE, tied=True)
VOCABULARY, SIZE = BASE.vocab_size, BASE.hidden_size
EMBED, LM_HEAD = "base_model.model.model.embed_tokens.", "base_model.model.lm_head."
TRAINED = "token_adapter.trainable_tokens_delta"


class RandomEnds:
    """A base whose embedding and head are known."""

    def __init__(self) -> None:
        random = np.random.default_rng(7)
        self.rows = {kind: random.normal(size=(VOCABULARY, SIZE)).astype(np.float32) for kind in (EMBEDDING, HEAD)}

    def stored_rows(self, kind: str) -> tuple[Bits, str]:
        return self.rows[kind].view(np.uint32), "F32"

    def columns(self, layer: int, kind: str, first: int, last: int) -> torch.Tensor:
        raise AssertionError("no adapter here is DoRA")

    def bias(self, layer: int, kind: str) -> torch.Tensor:
        raise AssertionError("no adapter here has biases")

    def norm(self, layer: int, kind: str) -> torch.Tensor:
        return torch.full((SIZE,), 10.0 + layer)


BASE_ENDS = RandomEnds()


def matrix(rows: int, columns: int = SIZE) -> Any:
    return np.random.default_rng(rows).normal(size=(rows, columns)).astype(np.float32)


def tokens(**changes: Any) -> dict[str, Any]:
    return make_config(trainable_token_indices=[3, 5]) | changes


SAVED_ENDS = make_config(modules_to_save=["embed_tokens", "lm_head"])
BOTH_ENDS = {LM_HEAD + "weight": matrix(VOCABULARY), EMBED + "weight": matrix(VOCABULARY)}
NORM = "base_model.model.model.layers.1.input_layernorm.weight"
SAVED_TWICE = {
    EMBED + "modules_to_save.weight": matrix(VOCABULARY),
    EMBED + "original_module.weight": matrix(VOCABULARY),
}
REFUSED: dict[str, tuple[str, dict[str, Any], Tensors]] = {
    "tokens-unannounced": ("has trained tokens", make_config(), {EMBED + TRAINED: matrix(2)}),
    "tokens-missing": ("has 2 tokens of embed_tokens, which are not in the file", tokens(), {}),
    "too-few-rows": ("trainable_tokens_delta is [1, 16], not [2, 16]", tokens(), {EMBED + TRAINED: matrix(1)}),
    "narrow-rows": ("trainable_tokens_delta is [2, 15], not [2, 16]", tokens(), {EMBED + TRAINED: matrix(2, 15)}),
    "same-token-twice": ("different token ids", tokens(trainable_token_indices=[3, 3]), {EMBED + TRAINED: matrix(2)}),
    "negative-token": ("different token ids", tokens(trainable_token_indices=[3, -1]), {EMBED + TRAINED: matrix(2)}),
    "no-ids": ("different token ids", tokens(trainable_token_indices=[3, True]), {EMBED + TRAINED: matrix(2)}),
    "a-dream": ("it must be token ids", tokens(trainable_token_indices={"q_proj": [3]}), {}),
    "alone-elsewhere": (
        "token_indices is {'q_proj': [3]}; it must be token ids, or ids by embed_tokens, lm_head",
        {"peft_type": "TRAINABLE_TOKENS", "target_modules": ["q_proj"], "token_indices": [3]},
        {EMBED + "trainable_tokens_delta": matrix(1)},
    ),
    "alone-without-ids": (
        "different token ids",
        {"peft_type": "TRAINABLE_TOKENS", "target_modules": None},
        {EMBED + "trainable_tokens_delta": matrix(1)},
    ),
    "alone-without-rows": (
        "has 1 tokens of lm_head, which are not in the file",
        {"peft_type": "TRAINABLE_TOKENS", "target_modules": ["lm_head"], "token_indices": [3]},
        {EMBED + "weight": matrix(VOCABULARY)},
    ),
    "alone-with-a-lora": (
        "has lora_A, which adapter_config.json does not mention",
        {"peft_type": "TRAINABLE_TOKENS", "target_modules": ["embed_tokens"], "token_indices": [3]},
        {EMBED + "trainable_tokens_delta": matrix(1)},
    ),
    "gap": ("token 52, but there are 50", tokens(trainable_token_indices=[3, 52]), {EMBED + TRAINED: matrix(2)}),
    "one-end-grows": ("embed_tokens has 51 rows and lm_head 50", make_config(), {EMBED + "weight": matrix(51)}),
    "grows-too-much": (
        "70,000 tokens are added",
        make_config(),
        {EMBED + "weight": matrix(VOCABULARY + 70000), LM_HEAD + "weight": matrix(VOCABULARY + 70000)},
    ),
    "narrow-embedding": ("weight is [50, 15], not [tokens, 16]", make_config(), {EMBED + "weight": matrix(50, 15)}),
    "head-not-saved": (
        "names modules that are not in the file: lm_head",
        make_config(modules_to_save=["lm_head", "embed_tokens"]),
        {EMBED + "weight": matrix(VOCABULARY)},
    ),
    "saved-linear": ("names linear layers", make_config(modules_to_save=["v_proj"]), {}),
    "norm-unannounced": ("has a trained norm", make_config(), {NORM: np.ones(SIZE, np.float32)}),
    "norm-missing": (
        "not in the file: input_layernorm of layer 0",
        make_config(modules_to_save=["input_layernorm"]),
        {NORM: np.ones(SIZE, np.float32)},
    ),
    "norm-too-long": (
        "weight is [17], not [16]",
        make_config(modules_to_save=["layers.1.input_layernorm"]),
        {NORM: np.ones(17, np.float32)},
    ),
    "another-copy": (
        "modules_to_save.weight' differs from the weight it is a copy of",
        SAVED_ENDS,
        BOTH_ENDS | {EMBED + "modules_to_save.weight": 2 * matrix(VOCABULARY)},
    ),
    "a-longer-copy": (
        "modules_to_save.weight' differs from the weight it is a copy of",
        SAVED_ENDS,
        BOTH_ENDS | {EMBED + "modules_to_save.weight": matrix(VOCABULARY + 1)},
    ),
    "copy-unannounced": ("embed_tokens has a copy of its weight", make_config(), BOTH_ENDS | SAVED_TWICE),
    "copy-of-nothing": ("but not the trained weight itself", SAVED_ENDS, SAVED_TWICE),
    "head-of-rank-1": ("lm_head has rank 1, adapter_config.json says 4", make_config(target_modules=["lm_head"]), {
        LM_HEAD + "lora_A.weight": matrix(1), LM_HEAD + "lora_B.weight": matrix(VOCABULARY, 1),
    }),
    "activated-embedding": (
        "embed_tokens is adapted beside alora_invocation_tokens",
        make_config(target_modules=["q_proj", "down_proj", "embed_tokens"], alora_invocation_tokens=[5]),
        {EMBED + "lora_embedding_A": matrix(4, VOCABULARY), EMBED + "lora_embedding_B": matrix(SIZE, 4)},
    ),
    "activated-added-tokens": (
        "3 tokens are added beside alora_invocation_tokens: their rows would act everywhere",
        make_config(alora_invocation_tokens=[5]),
        {EMBED + "weight": matrix(53), LM_HEAD + "weight": matrix(53)},
    ),
    "head-resized": (
        "lm_head has a LoRA and 53 rows, the base 50",
        make_config(target_modules=["lm_head"]),
        {
            EMBED + "weight": matrix(53),
            LM_HEAD + "base_layer.weight": matrix(53),
            LM_HEAD + "lora_A.weight": matrix(4),
            LM_HEAD + "lora_B.weight": matrix(53, 4),
        },
    ),
    "embedding-untargeted": ("target_modules does not name: embed_tokens", make_config(), {
        EMBED + "lora_embedding_A": matrix(4, VOCABULARY), EMBED + "lora_embedding_B": matrix(SIZE, 4),
    }),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_for_its_own_reason(case: str, tmp_path: Path) -> None:
    reason, config, extra = REFUSED[case]
    untargeted = config["target_modules"] == ["lm_head"]
    folder = write_adapter(tmp_path, config, extra if untargeted else make_tensors() | extra)
    failures = inspect_adapter(
        (folder / "adapter_config.json").read_bytes(), folder / "adapter_model.safetensors", BASE
    ).failures()
    assert any(reason in failure.message for failure in failures), failures
    assert not any("no effect" in failure.message for failure in failures), failures


@pytest.mark.parametrize("base", [BASE, TIED], ids=["untied", "tied"])
def test_a_resized_end_with_a_lora_is_refused_for_that_alone(base: BaseSignature, tmp_path: Path) -> None:
    """Of a tied head PEFT saves the embedding's rows alone."""
    reason, config, tensors = REFUSED["head-resized"]
    kept = {name: value for name, value in tensors.items() if not (base.tied and "base_layer" in name)}
    folder = write_adapter(tmp_path, config, kept)
    config_text, weights = (folder / "adapter_config.json").read_bytes(), folder / "adapter_model.safetensors"
    [failure] = inspect_adapter(config_text, weights, base).failures()
    assert reason in failure.message
    assert failure.remedy is not None and "trainable_token_indices" in failure.remedy


TYING: dict[str, tuple[dict[str, Any], Tensors]] = {
    "adapted": (
        make_config(target_modules=["q_proj", "down_proj", "model.embed_tokens"]),
        {
            EMBED + "lora_embedding_A": matrix(4, VOCABULARY),
            EMBED + "lora_embedding_B": matrix(SIZE, 4),
            LM_HEAD + "lora_A.weight": matrix(4),
            LM_HEAD + "lora_B.weight": matrix(VOCABULARY, 4),
        },
    ),
    "saved": (
        make_config(modules_to_save=["model.embed_tokens"]),
        BOTH_ENDS | {name.replace(EMBED, end): rows for end in (EMBED, LM_HEAD) for name, rows in SAVED_TWICE.items()},
    ),
}


@pytest.mark.parametrize("case", TYING)
def test_the_head_goes_with_the_embedding_where_weight_tying_is_ensured(case: str, tmp_path: Path) -> None:
    config, extra = TYING[case]
    for number, (base, ensured) in enumerate(((TIED, True), (TIED, False), (BASE, True))):
        tying = config | {"ensure_weight_tying": ensured}
        folder = write_adapter(tmp_path / str(number), tying, make_tensors() | extra)
        config_text, weights = (folder / "adapter_config.json").read_bytes(), folder / "adapter_model.safetensors"
        failures = [failure.message for failure in inspect_adapter(config_text, weights, base).failures()]
        assert ["lm_head" in failure for failure in failures] == ([] if base.tied and ensured else [True]), failures


def open_pool(base: BaseSignature = BASE) -> AdapterPool:
    return AdapterPool(
        base, memory=1 << 21, slots=4, dtype=torch.float32, device=torch.device("cpu"), modules=BASE_ENDS
    )


def load(folder: Path, config: dict[str, Any], extra: Tensors, base: BaseSignature = BASE) -> tuple[AdapterPool, str]:
    digest = read_manifest(write_adapter(folder, config, make_tensors() | extra), base).digest
    pool = open_pool(base)
    pool.register(digest, str(folder))
    while not pool.acquire((digest,)):
        pool.poll()
        assert pool.failure(digest) is None
    return pool, digest


def rows_of(pool: AdapterPool, digest: str, kind: str) -> dict[int, torch.Tensor]:
    pages = pool.table.extras[held_slot(pool, digest)].rows[kind]
    starts = [int(pages.offsets[i // TOKENS_PER_PAGE]) + i % TOKENS_PER_PAGE * SIZE for i in range(len(pages.tokens))]
    return {
        token: pool.table.arena[start : start + SIZE]
        for token, start in zip(pages.tokens.tolist(), starts, strict=True)
    }


def test_copies_of_the_base_take_no_room(tmp_path: Path) -> None:
    plain, digest = load(tmp_path / "plain", make_config(), {})
    nothing = plain.bytes_used
    copies = {
        EMBED + "base_layer.weight": BASE_ENDS.rows[EMBEDDING],
        LM_HEAD + "base_layer.weight": BASE_ENDS.rows[HEAD],
    }
    pool, digest = load(tmp_path / "copies", make_config(), copies)
    assert pool.bytes_used == nothing and held_slot(pool, digest) not in pool.table.extras
    assert pool.is_additive(digest)
    grown = {name: np.concatenate([rows, matrix(3)]) for name, rows in copies.items()}
    grown[EMBED + "base_layer.weight"][40] += 1
    pool, digest = load(tmp_path / "grown", make_config(), grown)
    assert list(rows_of(pool, digest, EMBEDDING)) == [40, 50, 51, 52]
    assert list(rows_of(pool, digest, HEAD)) == [50, 51, 52]
    assert pool.vocab_size(digest) == 53 and not pool.is_additive(digest)
    assert pool.bytes_used == nothing + 2 * (
        TOKENS_PER_PAGE * (SIZE * 4 + 4) + -(-index_bytes(VOCABULARY) // 128) * 128
    )
    assert pool.check_integrity() == []


def test_a_trained_token_stands_instead_of_the_whole_matrix(tmp_path: Path) -> None:
    whole, single = matrix(VOCABULARY + 2), matrix(2)
    extra = {
        EMBED + "token_adapter.base_layer.weight": whole,
        EMBED + TRAINED: single,
        LM_HEAD + "weight": whole,
    }
    pool, digest = load(tmp_path, tokens(trainable_token_indices=[51, 3]), extra)
    rows = rows_of(pool, digest, EMBEDDING)
    assert len(rows) == VOCABULARY + 2
    expected = whole.copy()
    expected[[51, 3]] = single
    assert (torch.stack([rows[token] for token in range(VOCABULARY + 2)]).numpy() == expected).all()
    assert (torch.stack(list(rows_of(pool, digest, HEAD).values())).numpy() == whole).all()


def test_what_peft_saves_twice_is_served_once(tmp_path: Path) -> None:
    """As it does whenever the vocabulary was resized."""
    twice = BOTH_ENDS | SAVED_TWICE
    manifests = [
        read_manifest(write_adapter(tmp_path / name, SAVED_ENDS, make_tensors() | extra), BASE)
        for name, extra in (("once", BOTH_ENDS), ("twice", twice))
    ]
    assert manifests[0].digest == manifests[1].digest and manifests[0].parameters == manifests[1].parameters
    pool, digest = load(tmp_path / "served", SAVED_ENDS, twice)
    assert (torch.stack(list(rows_of(pool, digest, EMBEDDING).values())).numpy() == matrix(VOCABULARY)).all()


def test_a_tied_head_follows_the_embedding_but_not_a_copy_of_it(tmp_path: Path) -> None:
    pool, digest = load(tmp_path / "tokens", tokens(), {EMBED + TRAINED: matrix(2)}, TIED)
    assert list(rows_of(pool, digest, HEAD)) == [3, 5]
    config = make_config(modules_to_save=["embed_tokens"])
    pool, digest = load(tmp_path / "saved", config, {EMBED + "weight": matrix(VOCABULARY)}, TIED)
    assert HEAD not in pool.table.extras[held_slot(pool, digest)].rows
    pool, digest = load(tmp_path / "written", make_config(), {EMBED + "weight": matrix(VOCABULARY)}, TIED)
    assert len(rows_of(pool, digest, HEAD)) == VOCABULARY
    pool, digest = load(tmp_path / "untied", tokens(), {EMBED + TRAINED: matrix(2)})
    assert HEAD not in pool.table.extras[held_slot(pool, digest)].rows


def test_the_embedding_follows_no_tokens_that_are_trained_of_a_tied_head_alone(tmp_path: Path) -> None:
    config = tokens(trainable_token_indices={"lm_head": [3, 5]})
    pool, digest = load(tmp_path, config, {LM_HEAD + TRAINED: matrix(2)}, TIED)
    assert list(pool.table.extras[held_slot(pool, digest)].rows) == [HEAD]
    assert list(rows_of(pool, digest, HEAD)) == [3, 5]


def test_layers_without_a_norm_of_their_own_keep_the_base_s(tmp_path: Path) -> None:
    own = np.arange(SIZE, dtype=np.float32)
    pool, digest = load(tmp_path, make_config(modules_to_save=["layers.1.input_layernorm"]), {NORM: own})
    page = int(pool.table.vectors[held_slot(pool, digest), len(LINEARS) + 2])
    weights = pool.table.floats[page : page + 4 * SIZE].view(2, 2, SIZE)[:, 0]
    assert (weights[0] == 10).all() and (weights[1].numpy() == own).all()


def test_which_tokens_are_trained_is_part_of_the_identity(tmp_path: Path) -> None:
    digests = [
        read_manifest(
            write_adapter(
                tmp_path / str(number),
                tokens(trainable_token_indices=ids),
                make_tensors() | {EMBED + TRAINED: matrix(2)},
            ),
            BASE,
        ).digest
        for number, ids in enumerate(([3, 5], [3, 6], [5, 3]))
    ]
    assert len(set(digests)) == 3


def test_dora_does_not_go_with_rows_of_its_own(tmp_path: Path) -> None:
    extra = {
        LM_HEAD + "base_layer.weight": matrix(VOCABULARY),
        LM_HEAD + "lora_A.weight": matrix(4),
        LM_HEAD + "lora_B.weight": matrix(VOCABULARY, 4),
        LM_HEAD + "lora_magnitude_vector": np.ones(VOCABULARY, np.float32),
    }
    config = make_config(target_modules=["lm_head"], use_dora=True)
    digest = read_manifest(write_adapter(tmp_path, config, extra), BASE).digest
    pool = AdapterPool(
        BASE, memory=1 << 21, slots=1, dtype=torch.float32, device=torch.device("cpu"), modules=BASE_ENDS
    )
    pool.register(digest, str(tmp_path))
    while pool.failure(digest) is None:
        assert not pool.acquire((digest,))
        pool.poll()
    assert "DoRA on lm_head with rows of its own for 50 tokens" in str(pool.failure(digest)) and pool.is_unfit(digest)
