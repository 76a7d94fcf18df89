"""Encoders: BERT, RoBERTa with what is built like it, and ModernBERT. Tokens see those behind them too."""

from dataclasses import replace
from typing import Final, Literal

from ..description.config_fields import FULL, SLIDING, Raw, activation, flag, layer_types, number, positive, rope
from ..description.spec import (
    AttentionSpec,
    ClassifierSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    LayerSpec,
    LinearSpec,
    ModelSpec,
    NormSpec,
    RopeConfig,
    token_classifier,
)
from .family import ENCODERS, Family

GLOBAL_THETA, LOCAL_THETA = 160_000.0, 10_000.0
"""Of ModernBERT's layers that see all tokens, and of those that see near ones."""
PREDICTS: Final = "the head that predicts masked tokens"
POOLER: Final = "a pooler that no answer needs"


def _describe(raw: Raw, name: str) -> ModelSpec:
    for field in ("is_decoder", "add_cross_attention"):
        if flag(raw, field):
            raise ValueError(f"{field} is not supported: of this family only encoders are served")
    return _modern(raw) if name == "ModernBert" else _bert(raw, "bert" if name == "Bert" else "roberta")


def _bert(raw: Raw, body: str) -> ModelSpec:
    """`body`: what the names of its tensors begin with."""
    if raw.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError(f"position_embedding_type {raw['position_embedding_type']!r} is not supported; absolute is")
    size, positions = positive(raw, "hidden_size"), positive(raw, "max_position_embeddings")
    offset = 0 if body == "bert" else int(number(raw, "pad_token_id", 1)) + 1
    segments = positive(raw, "type_vocab_size", 2)
    return ModelSpec(
        hidden_size=size,
        embedding=EmbeddingSpec(
            path=f"{body}.embeddings.word_embeddings",
            vocab_size=positive(raw, "vocab_size"),
            size=size,
            positions=f"{body}.embeddings.position_embeddings",
            position_offset=offset,
            segments=f"{body}.embeddings.token_type_embeddings",
            num_segments=segments,
            norm=_norm(f"{body}.embeddings.LayerNorm", size, number(raw, "layer_norm_eps", 1e-12)),
        ),
        layers=(_bert_layer(raw, size),) * positive(raw, "num_hidden_layers"),
        norm=None,
        head=None,
        classifier=_bert_classifier(body, size),
        token_classifier=token_classifier("classifier", size),
        length=positions - offset,
        layers_path=f"{body}.encoder.layer",
        left_out={"cls.": PREDICTS, "lm_head.": PREDICTS}
        | ({} if body == "bert" else {f"{body}.pooler.": POOLER, "pooler.": POOLER}),
        derived=("embeddings.position_ids", "embeddings.token_type_ids"),
        renamed_ends={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    )


def _bert_layer(raw: Raw, size: int) -> LayerSpec:
    inner, eps = positive(raw, "intermediate_size"), number(raw, "layer_norm_eps", 1e-12)
    inputs = tuple(LinearSpec(f"attention.self.{part}", size, size, True) for part in ("query", "key", "value"))
    output = LinearSpec("attention.output.dense", size, size, True)
    return LayerSpec(
        mixer=_attention(raw, size, inputs, output),
        feed_forward=FeedForwardSpec(
            inputs=(LinearSpec("intermediate.dense", size, inner, True),),
            output=LinearSpec("output.dense", inner, size, True),
            activation=activation(raw, "hidden_act", "gelu"),
            is_gated=False,
        ),
        mixer_norm=_norm("attention.output.LayerNorm", size, eps),
        feed_forward_norm=_norm("output.LayerNorm", size, eps),
        norms_follow_sum=True,
    )


def _bert_classifier(body: str, size: int) -> ClassifierSpec:
    """BERT's has the pooler before it, RoBERTa's a linear of its own."""
    paths = ("bert.pooler.dense", "classifier") if body == "bert" else ("classifier.dense", "classifier.out_proj")
    first, last = (LinearSpec(path, size, outputs, True) for path, outputs in zip(paths, (size, 0), strict=True))
    return ClassifierSpec(linears=(first, last), pooling="cls", owned="classifier")


def _modern(raw: Raw) -> ModelSpec:
    size, eps, has_bias = positive(raw, "hidden_size"), number(raw, "norm_eps", 1e-5), flag(raw, "norm_bias")
    every = positive(raw, "global_attn_every_n_layers", 3)
    usual = [SLIDING if number % every else FULL for number in range(positive(raw, "num_hidden_layers"))]
    kinds = layer_types(raw, (FULL, SLIDING), usual)
    classifier = _modern_classifier(raw, size, eps, has_bias)
    return ModelSpec(
        hidden_size=size,
        embedding=EmbeddingSpec(
            path="model.embeddings.tok_embeddings",
            vocab_size=positive(raw, "vocab_size"),
            size=size,
            norm=_norm("model.embeddings.norm", size, eps, has_bias),
        ),
        layers=tuple(_modern_layer(raw, size, eps, number, kind) for number, kind in enumerate(kinds)),
        norm=_norm("model.final_norm", size, eps, has_bias),
        head=None,
        classifier=classifier,
        token_classifier=replace(classifier, pooling="all"),
        left_out={"decoder.": PREDICTS},
    )


def _modern_classifier(raw: Raw, size: int, eps: float, has_bias: bool) -> ClassifierSpec:
    dense = LinearSpec("head.dense", size, size, flag(raw, "classifier_bias"))
    return ClassifierSpec(
        linears=(dense, LinearSpec("classifier", size, 0, True)),
        activation=activation(raw, "classifier_activation", "gelu"),
        norm=_norm("head.norm", size, eps, has_bias),
        pooling=_pooling(raw.get("classifier_pooling") or "cls"),
        owned="classifier",
    )


def _pooling(said: str) -> Literal["cls", "mean"]:
    match said:
        case "cls" | "mean":
            return said
    raise ValueError(f"classifier_pooling {said!r} is not supported; supported: cls, mean")


def _modern_layer(raw: Raw, size: int, eps: float, number: int, kind: str) -> LayerSpec:
    """The first has no norm before its attention: that of the embedding is there already."""
    inner, in_attention, in_mlp = positive(raw, "intermediate_size"), flag(raw, "attention_bias"), flag(raw, "mlp_bias")
    has_bias = flag(raw, "norm_bias")
    return LayerSpec(
        mixer=_attention(
            raw,
            size,
            (LinearSpec("attn.Wqkv", size, 3 * size, in_attention),),
            LinearSpec("attn.Wo", size, size, in_attention),
            rotary=_modern_rope(raw, size // positive(raw, "num_attention_heads"), kind),
            window=positive(raw, "local_attention", 128) // 2 + 1 if kind == SLIDING else None,
        ),
        feed_forward=FeedForwardSpec(
            inputs=(LinearSpec("mlp.Wi", size, 2 * inner, in_mlp),),
            output=LinearSpec("mlp.Wo", inner, size, in_mlp),
            activation=activation(raw, "hidden_activation", "gelu"),
            is_gated=True,
        ),
        mixer_norm=_norm("attn_norm", size, eps, has_bias) if number else None,
        feed_forward_norm=_norm("mlp_norm", size, eps, has_bias),
    )


def _modern_rope(raw: Raw, head_dim: int, kind: str) -> RopeConfig:
    """transformers 4 writes a theta of each kind of layer, transformers 5 rope parameters of each."""
    field, usual = ("local_rope_theta", LOCAL_THETA) if kind == SLIDING else ("global_rope_theta", GLOBAL_THETA)
    said = (raw.get("rope_parameters") or {}).get(kind) or {}
    return rope(raw, head_dim, said={"rope_theta": number(raw, field, usual)} | dict(said))


def _attention(
    raw: Raw,
    size: int,
    inputs: tuple[LinearSpec, ...],
    output: LinearSpec,
    rotary: RopeConfig | None = None,
    window: int | None = None,
) -> AttentionSpec:
    num_heads = positive(raw, "num_attention_heads")
    if size % num_heads:
        raise ValueError(f"hidden_size {size} is not a multiple of num_attention_heads {num_heads}")
    return AttentionSpec(
        inputs=inputs,
        output=output,
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=size // num_heads,
        scale=(size // num_heads) ** -0.5,
        rope=rotary,
        is_causal=False,
        window=window,
    )


def _norm(path: str, size: int, eps: float, has_bias: bool = True) -> NormSpec:
    return NormSpec(path, size, eps, is_layer_norm=True, lacks_bias=not has_bias)


FAMILY: Final = Family(
    names=("Bert", "Roberta", "XLMRoberta", "Camembert", "ModernBert"),
    describe=_describe,
    tasks=ENCODERS,
    hub={
        "Bert": ("sentence-transformers/all-MiniLM-L6-v2", "cross-encoder/ms-marco-MiniLM-L6-v2"),
        "XLMRoberta": ("BAAI/bge-m3", "BAAI/bge-reranker-v2-m3"),
        "ModernBert": ("answerdotai/ModernBERT-base",),
    },
)
