"""Adapters made to harm: to run code, to eat memory or time, or to be served wrong.

`python -m tests.attacks.hostile_adapters FOLDER` writes each into a folder of its own, to try on any server.
"""

import json
import pickle
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from tests.lora.adapters import Tensors, encode, frame, make_config, make_tensors, tensor_name, write_adapter

Q_A, Q_B = tensor_name(0, "q_proj", "A"), tensor_name(0, "q_proj", "B")
DATA = 2 * (4 * (16 + 24) + 4 * (40 + 16)) * 4
"""Bytes of the tensors of make_tensors()."""


@dataclass(frozen=True)
class Attack:
    name: str
    reason: str
    """A part of the message that must refuse it."""
    config: bytes
    weights: bytes


def attacks() -> Iterator[Attack]:
    good_config, good_weights = json.dumps(make_config()).encode(), encode(make_tensors())
    for name, reason, weights in _hostile_files():
        yield Attack(f"file-{name}", reason, good_config, weights)
    for name, reason, header in _hostile_headers():
        yield Attack(f"header-{name}", reason, good_config, frame(header, bytes(DATA)))
    for name, reason, tensors in _hostile_tensors():
        yield Attack(f"tensors-{name}", reason, good_config, encode(tensors))
    for name, reason, text in _hostile_texts():
        yield Attack(f"config-{name}", reason, text, good_weights)
    for name, reason, changes in _hostile_settings():
        yield Attack(f"settings-{name}", reason, json.dumps(make_config(**changes)).encode(), good_weights)


class _Exploit:
    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('the pickle ran')",)


def _hostile_files() -> Iterator[tuple[str, str, bytes]]:
    good = encode(make_tensors())
    archive = BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", pickle.dumps(_Exploit()))
        file.writestr("archive/data/0", bytes(10 << 20))
    yield "pickle", "it is a Python pickle", pickle.dumps(_Exploit())
    yield "torch-zip", "it is a zip archive", archive.getvalue()
    yield "gguf", "it is a GGUF file", b"GGUF\x03\0\0\0" + bytes(64)
    yield "hdf5", "it is an HDF5 file", b"\x89HDF\r\n\x1a\n" + bytes(64)
    yield "gzip", "it is a gzip archive", b"\x1f\x8b\x08" + bytes(64)
    yield "json", "it is a JSON document", b'{"weights": []}' + bytes(64)
    yield "lfs-pointer", "Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    yield "empty", "only 0 bytes", b""
    yield "nine-bytes", "only 9 bytes", bytes(9)
    yield "header-longer-than-file", "its header claims", (1 << 40).to_bytes(8, "little") + good[8:]
    yield "header-of-all-ones", "its header claims", b"\xff" * 8 + good[8:]
    yield "header-too-long", "at most", frame(b'{"a":' + b" " * (200 << 10) + b"1}", bytes(1000))
    yield "million-empty-tensors", "at most", frame(_million_empty_tensors())
    yield "20001-tensors", "at most 20000", frame(_many_entries(20_001), bytes(16 << 20))
    yield "20000-wrong-entries", "is not described", frame(_many_entries(20_000), bytes(16 << 20))
    yield "cut-off", "it is cut off", good[:-1]
    yield "bytes-at-the-end", "belong to none", good + b"x"


def _million_empty_tensors() -> bytes:
    entry = b'"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return b"{" + b",".join(entry % index for index in range(1_000_000)) + b"}"


def _many_entries(count: int) -> bytes:
    return b"{" + b",".join(b'"%x":1' % index for index in range(count)) + b"}"


def _hostile_headers() -> Iterator[tuple[str, str, bytes]]:
    """Headers over DATA bytes of zeros."""
    yield "not-an-object", "does not begin with", b"[]"
    yield "leading-space", "does not begin with", b" " + _header({})
    yield "not-utf8", "not UTF-8", b'{"\xff\xfe": 1}'
    yield "not-json", "it is not JSON", b"{not json}"
    yield "no-tensors", "it holds no tensors", b"{}"
    yield "600-deep", "nested more than 3", b'{"a":' * 600 + b"1" + b"}" * 600
    yield "escaped-quotes", "it is not JSON", b'{"' + b'\\"' * 30_000
    yield "open-brackets", "nested more than 3", b'{"a":' + b"[" * 60_000
    yield "duplicate-name", "stands twice", _header({})[:-1] + b',"' + Q_A.encode() + b'":{}}'
    yield "duplicate-field", "stands twice", _header({}).replace(b'"dtype"', b'"dtype": "F32", "dtype"', 1)
    yield "nan", "NaN is not a JSON number", b'{"a": NaN}'
    yield "infinity", "Infinity is not a JSON number", b'{"a": [-Infinity]}'
    yield "huge-exponent", "too large", b'{"a": 1e999}'
    yield "million-digits", "60000 digits", b'{"a": ' + b"9" * 60_000 + b"}"
    yield "surrogate", "surrogate", b'{"\\ud800": 1}'
    yield "nul", "NUL", b'{"a\\u0000": 1}'
    yield "metadata-not-text", "__metadata__", _header({"__metadata__": {"a": 1}})
    yield "metadata-a-list", "__metadata__", _header({"__metadata__": []})
    yield "entry-not-an-object", "is not described", _header({Q_A: [1, 2]})
    yield "entry-with-extras", "is not described", _header({Q_A: _entry(0, 256) | {"strides": [1]}})
    yield "parent-folder-name", "letters, digits", _header({"../../etc/passwd": _entry(DATA, DATA)})
    yield "markup-name", "letters, digits", _header({"<script>alert(1)</script>": _entry(DATA, DATA)})
    yield "long-name", "letters, digits", _header({"a" * 300: _entry(DATA, DATA)})
    yield "int8", "has dtype 'I8'", _header({Q_A: _entry(0, 256) | {"dtype": "I8"}})
    yield "float64", "has dtype 'F64'", _header({Q_A: _entry(0, 256) | {"dtype": "F64"}})
    yield "dtype-a-list", "has dtype ['F32']", _header({Q_A: _entry(0, 256) | {"dtype": ["F32"]}})
    yield "negative-shape", "no list of 1 to 8", _header({Q_A: _entry(0, 256) | {"shape": [-4, -16]}})
    yield "boolean-shape", "no list of 1 to 8", _header({Q_A: _entry(0, 256) | {"shape": [True, 64]}})
    yield "scalar", "no list of 1 to 8", _header({Q_A: _entry(0, 4) | {"shape": []}})
    yield "nine-dimensions", "no list of 1 to 8", _header({Q_A: _entry(0, 256) | {"shape": [1] * 8 + [64]}})
    yield "overflowing-shape", "bytes for its shape", _header({Q_A: _entry(0, 256) | {"shape": [1 << 62, 1 << 62]}})
    yield "zero-dimension", "is empty", _header({Q_A: _entry(0, 0) | {"shape": [4, 0]}})
    yield "shape-larger-than-bytes", "bytes for its shape", _header({Q_A: _entry(0, 256) | {"shape": [400, 16]}})
    yield "backward-offsets", "bytes for its shape", _header({Q_A: _entry(256, 0)})
    yield "negative-offsets", "no two whole numbers", _header({Q_A: _entry(-256, 0)})
    yield "overlap", "overlaps the tensor before it", _header({Q_B: _entry(128, 512) | {"shape": [24, 4]}})
    yield "hole", "leaves a gap", _header({Q_A: None})
    yield "beyond-the-end", "it is cut off", _header({"z": _entry(DATA, DATA + 256)})


def _entry(start: int, end: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [4, 16], "data_offsets": [start, end]}


def _header(changes: dict[str, Any]) -> bytes:
    """The header of make_tensors() with some entries changed, added or (None) left out."""
    weights = encode(make_tensors())
    header = json.loads(weights[8 : 8 + int.from_bytes(weights[:8], "little")])
    return json.dumps({name: entry for name, entry in (header | changes).items() if entry is not None}).encode()


def _hostile_tensors() -> Iterator[tuple[str, str, Tensors]]:
    ones = np.ones((4, 16), np.float32)
    for name, value in (("nan", np.nan), ("infinity", np.inf), ("largest-float", np.finfo(np.float32).max)):
        tensors = make_tensors()
        tensors[Q_B][-1, -1] = value
        yield name, "NaN, infinite or above", tensors
    half = {name: tensor.astype(np.float16) for name, tensor in make_tensors().items()}
    half[Q_A][0, 0] = np.nan
    yield "half-nan", "NaN, infinite or above", half
    brain = {name: (tensor.view(np.uint32) >> 16).astype(np.uint16) for name, tensor in make_tensors().items()}
    brain[Q_A][0, 0] = 0xFF80
    yield "bfloat16-infinity", "NaN, infinite or above", brain
    zero = {name: tensor * (".lora_B." not in name) for name, tensor in make_tensors().items()}
    yield "zero-effect-b", "has no effect", zero
    yield (
        "zero-effect-a",
        "has no effect",
        {n: t * np.float32(-0.0) if "_A." in n else t for n, t in make_tensors().items()},
    )
    yield "missing-b", "has lora_A but no lora_B", {n: t for n, t in make_tensors().items() if n != Q_B}
    yield "missing-a", "has lora_B but no lora_A", {n: t for n, t in make_tensors().items() if n != Q_A}
    yield "missing-layer", "modules without tensors", {n: t for n, t in make_tensors().items() if ".layers.0." in n}
    yield "untargeted", "does not name", make_tensors(kinds=("q_proj", "down_proj", "up_proj"))
    yield "other-base-width", "but the base has 24 outputs", make_tensors() | {Q_B: np.ones((512, 4), np.float32)}
    yield "other-base-inputs", "but the base has 16 inputs", make_tensors() | {Q_A: np.ones((4, 32), np.float32)}
    yield "transposed", "but the base has 16 inputs", make_tensors() | {Q_A: np.ones((16, 4), np.float32)}
    yield "vector", "both must be matrices", make_tensors() | {Q_A: np.ones(64, np.float32)}
    yield "ranks-disagree", "B has rank 8", make_tensors() | {Q_B: np.ones((24, 8), np.float32)}
    yield "rank-not-r", "adapter_config.json says 4", make_tensors(rank=8)
    yield "rank-513", "ranks from 1 to 512", make_tensors(rank=513)
    yield "layer-too-high", "the base has 2 layers", make_tensors() | {tensor_name(2, "q_proj", "A"): ones}
    yield "layer-padded", "not LoRA tensors", make_tensors() | {Q_A.replace(".0.", ".00."): ones}
    yield "both-spellings", "has two tensors", make_tensors() | {Q_A.replace(".weight", ".default.weight"): ones}
    yield "head", "output head", make_tensors() | {"base_model.model.lm_head.lora_A.weight": ones}
    yield (
        "embedding",
        "on the embedding",
        make_tensors() | {"base_model.model.model.embed_tokens.lora_embedding_A": ones},
    )
    yield "dora", "DoRA is not served", make_tensors() | {Q_A.replace("lora_A.weight", "lora_magnitude_vector"): ones}
    yield "bias", "trained biases", make_tensors() | {Q_B.replace(".weight", ".bias"): np.ones(24, np.float32)}
    yield (
        "without-head-prefix",
        "without its head",
        {n.replace("model.model.model", "model.model"): t for n, t in make_tensors().items()},
    )
    yield "wrong-parent", "no such linear", make_tensors() | {Q_A.replace("self_attn", "mlp"): ones}


def _hostile_texts() -> Iterator[tuple[str, str, bytes]]:
    good = json.dumps(make_config())
    yield "empty", "it is not JSON", b""
    yield "a-list", "not a JSON object", b"[]"
    yield "too-long", "at most 65,536", good.encode() + b" " * (64 << 10)
    yield "600-deep", "nested more than 6", good[:-1].encode() + b',"x":' + b"[" * 600 + b"]" * 600 + b"}"
    yield "duplicate-key", "'r' stands twice", good[:-1].encode() + b',"r":8}'
    yield "nan-alpha", "NaN is not", good.replace('"lora_alpha": 8', '"lora_alpha": NaN').encode()
    yield "infinite-alpha", "too large", good.replace('"lora_alpha": 8', '"lora_alpha": 1e999').encode()
    yield "surrogate", "surrogate", good[:-1].encode() + b',"revision":"\\udfff"}'
    yield "not-utf8", "not UTF-8", good.encode("utf-16")
    yield "yaml", "it is not JSON", b"!!python/object/apply:os.system ['true']"


def _hostile_settings() -> Iterator[tuple[str, str, dict[str, Any]]]:
    yield "no-type", "has no peft_type", {"peft_type": None}
    for kind in ("IA3", "ADALORA", "LOHA", "PREFIX_TUNING", "NO_SUCH", ["LORA"], {"LORA": 1}):
        yield f"type-{kind}"[:24].strip("'[]{}: "), "LORA is served", {"peft_type": kind}
    yield "rank-zero", "r is 0", {"r": 0}
    yield "rank-513", "r is 513", {"r": 513}
    yield "rank-text", "r is '4'", {"r": "4"}
    yield "rank-true", "r is True", {"r": True}
    yield "alpha-zero", "lora_alpha is 0", {"lora_alpha": 0}
    yield "alpha-huge", "lora_alpha is 1e+30", {"lora_alpha": 1e30}
    yield "alpha-list", "lora_alpha is [8]", {"lora_alpha": [8]}
    yield "alpha-missing", "lora_alpha is None", {"lora_alpha": None}
    yield "targets-regex", "patterns are not run", {"target_modules": "(a+)+$"}
    yield "targets-regex-in-list", "no literal module names", {"target_modules": [".*_proj"]}
    yield "targets-empty", "target_modules is empty", {"target_modules": []}
    yield "targets-of-lists", "no literal module names", {"target_modules": [["q_proj"]]}
    yield "exclude-regex", "patterns are not run", {"exclude_modules": ".*"}
    yield "rank-pattern-regex", "patterns are not run", {"rank_pattern": {"(x+)+y": 4}}
    yield "rank-pattern-wrong", "says 5", {"rank_pattern": {"q_proj": 5}}
    yield "rank-pattern-list", "must map", {"rank_pattern": ["q_proj"]}
    yield "alpha-pattern-regex", "patterns are not run", {"alpha_pattern": {".*": 4}}
    yield "alpha-pattern-zero", "is 0", {"alpha_pattern": {"q_proj": 0}}
    yield "layers-text", "layer numbers", {"layers_to_transform": "0"}
    yield "layers-pattern", "layers_pattern", {"layers_pattern": "(h|layers)+"}
    yield "rslora-text", "true or false", {"use_rslora": "yes"}
    yield "bias-all", "trained biases", {"bias": "all"}
    yield "fan-in-fan-out", "fan_in_fan_out is set", {"fan_in_fan_out": True}
    yield (
        "auto-mapping",
        "no code is imported",
        {"auto_mapping": {"base_model_class": "system", "parent_library": "os"}},
    )
    yield "auto-mapping-list", "no code is imported", {"auto_mapping": ["transformers"]}
    yield "megatron", "Megatron", {"megatron_config": {"a": 1}, "megatron_core": "antigravity"}
    yield "modules-to-save", "modules_to_save is set", {"modules_to_save": ["lm_head"]}
    yield "dora", "DoRA rescales", {"use_dora": True}
    yield "lora-bias", "a bias on lora_B", {"lora_bias": True}
    yield "tokens", "token embeddings", {"trainable_token_indices": [1]}
    yield "alora", "activated LoRA", {"alora_invocation_tokens": [1, 2]}
    yield "parameters", "bare parameters", {"target_parameters": ["mlp.experts.gate_up_proj"]}
    yield "replication", "its own layers only", {"layer_replication": [[0, 2], [1, 2]]}
    yield "loftq", "LoftQ", {"loftq_config": {"loftq_bits": 4}}
    yield "qalora", "QA-LoRA", {"use_qalora": True}
    for start in ("pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga"):
        yield f"start-{start}", "against a changed base", {"init_lora_weights": start}
    yield "start-unknown", "which is not known", {"init_lora_weights": "__import__('os')"}


if __name__ == "__main__":
    for attack in attacks():
        write_adapter(Path(sys.argv[1]) / attack.name, attack.config, attack.weights)
