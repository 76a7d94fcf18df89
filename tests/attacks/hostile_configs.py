"""Configurations that are no JSON, or JSON that two parsers read in two ways, and settings that would run or change."""

import json
from collections.abc import Iterator
from typing import Any

from tests.lora.adapters import make_config

from .hostile_files import Case, foreign_configs

Setting = tuple[str, str, dict[str, Any]]
"""Name, a part of the one message that must refuse it, and the keys that differ from a good configuration."""

PATTERNS = {
    "any": ".*",
    "explodes": "(a+)+$",
    "explodes-too": "(\\w+\\.?)+!",
    "alternative": "q_proj|down_proj",
    "class": "[a-z]_proj",
    "end": "q_proj$",
    "lookahead": "(?=q)q_proj",
    "escape": "\\w+",
    "repeat": "q{1,99999}",
}
"""name -> a regular expression, as PEFT would run it"""
NOT_NAMES = {
    "empty": "",
    "space": " ",
    "line-break": "q_proj\n",
    "parent-folder": "../q_proj",
    "absolute": "/etc/passwd",
    "markup": "<b>q_proj</b>",
    "cyrillic": "q_pr\u043ej",
    "long": "q" * 257,
}


def hostile_texts() -> Iterator[Case]:
    good = json.dumps(make_config())
    yield from foreign_configs()
    yield from broken_texts(good)
    yield from ambiguous_texts(good)


def broken_texts(good: str) -> Iterator[Case]:
    texts: dict[str, bytes] = {
        "empty": b"",
        "blank": b" \n\t",
        "cut-off": good[:-1].encode(),
        "trailing-comma": good[:-1].encode() + b",}",
        "trailing-garbage": good.encode() + b"x",
        "two-documents": good.encode() * 2,
        "comment": b"// config\n" + good.encode(),
        "byte-order-mark": b"\xef\xbb\xbf" + good.encode(),
        "nul-at-the-end": good.encode() + b"\0",
    }
    for name, text in texts.items():
        yield name, "adapter_config.json cannot be read: it is not JSON", text
    for name, text in (("list", b"[]"), ("number", b"1"), ("null", b"null"), ("text", b'"LORA"')):
        yield f"top-level-{name}", "top level is not a JSON object", text
    for encoding in ("utf-16", "utf-32"):
        yield encoding, "not UTF-8 text (byte 0)", good.encode(encoding)
    yield "latin-1", "not UTF-8 text", good.replace("acme", "acm\xe9").encode("latin-1")
    yield "overlong-utf8", "not UTF-8 text", good.encode().replace(b"acme", b"\xc0\xaf")
    yield "a-byte-too-many", "has 524,289 bytes; at most 524,288", good.encode().ljust((512 << 10) + 1)
    yield "megabyte", "bytes; at most 524,288", json.dumps(make_config(x="x" * (1 << 20))).encode()


def ambiguous_texts(good: str) -> Iterator[Case]:
    def added(text: str) -> bytes:
        return f"{good[:-1]}, {text}}}".encode()

    yield "600-deep-lists", "nested more than 6", added('"x": ' + "[" * 600 + "]" * 600)
    yield "600-deep-objects", "nested more than 6", added('"x": ' + '{"x": ' * 600 + "1" + "}" * 600)
    yield "seven-deep", "nested more than 6", added('"x": [[[[[[]]]]]]')
    yield "open-brackets", "nested more than 6", added('"x": ' + "[" * 60_000)
    yield "duplicate-key", "the key 'r' appears twice", added('"r": 8')
    yield "duplicate-by-escape", "the key 'r' appears twice", added('"\\u0072": 8')
    yield "duplicate-inside", "the key 'q_proj' appears twice", added('"rank_pattern": {"q_proj": 4, "q_proj": 8}')
    yield "nan", "NaN is not a JSON number", good.replace('"lora_alpha": 8', '"lora_alpha": NaN').encode()
    yield (
        "infinity",
        "Infinity is not a JSON number",
        good.replace('"lora_alpha": 8', '"lora_alpha": Infinity').encode(),
    )
    yield "huge-exponent", "too large", good.replace('"lora_alpha": 8', '"lora_alpha": 1e999').encode()
    yield "tiny-alpha", "lora_alpha is 0.0", good.replace('"lora_alpha": 8', '"lora_alpha": 1e-400').encode()
    yield "60000-digits", "60000 digits", added('"x": ' + "9" * 60_000)
    yield "60000-decimals", "too large or too long", added('"x": 0.' + "9" * 60_000)
    yield "surrogate", "half of a surrogate pair", added('"revision": "\\udfff"')
    yield "surrogate-in-a-key", "half of a surrogate pair", added('"\\ud800": 1')
    yield "nul", "NUL", added('"revision": "a\\u0000b"')
    yield "nul-in-a-key", "NUL", added('"a\\u0000": 1')


def hostile_settings() -> Iterator[Setting]:
    yield from unknown_types()
    yield from wrong_numbers()
    yield from patterns_and_names()
    yield from odd_layers()
    yield from odd_invocations()
    yield from code_and_other_features()


def unknown_types() -> Iterator[Setting]:
    kinds: list[Any] = [
        "PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "MULTITASK_PROMPT_TUNING", "ADAPTION_PROMPT", "LN_TUNING", "OFT",
        "BOFT", "FOURIERFT", "POLY", "HRA", "EVIL", "lora", "LORA ", "", "os.system", "../../lora", 0, True, 1.5,
        ["LORA"], [], {"LORA": 1},
    ]  # fmt: skip
    for kind in kinds:
        yield f"type-{kind!a}", f"peft_type is {kind!r}", {"peft_type": kind}
    yield "type-missing", "has no peft_type", {"peft_type": None}


def wrong_numbers() -> Iterator[Setting]:
    for rank in (0, -1, 513, 10**9, 1e9, 4.0, "4", True, None, [4], {"r": 4}, 10**39):
        yield f"rank-{rank!a}", f"r is {rank!r}", {"r": rank}
        if rank is not None:
            yield f"rank-pattern-{rank!a}", "rank_pattern['q_proj'] is", {"rank_pattern": {"q_proj": rank}}
    yield "rank-of-others", "has rank 4, adapter_config.json says 5", {"r": 5}
    yield "rank-pattern-of-others", "adapter_config.json says 5", {"rank_pattern": {"q_proj": 5}}
    for alpha in (0, 0.0, -0.0, 1e30, -1e30, 65537, "8", True, None, [8], {"a": 8}, 10**39):
        shown = repr(alpha)
        yield f"alpha-{shown}", f"lora_alpha is {shown}; it must be a number other than 0", {"lora_alpha": alpha}
        if alpha is not None:
            yield f"alpha-pattern-{shown}", "alpha_pattern['q_proj'] is", {"alpha_pattern": {"q_proj": alpha}}
    yield "alpha-tiny", "the adapter has no effect", {"lora_alpha": 1e-30}
    for value in ("yes", "false", 1, 0, []):
        yield f"rslora-{value!a}", f"use_rslora is {value!r}; it must be true or false", {"use_rslora": value}


def patterns_and_names() -> Iterator[Setting]:
    for name, pattern in PATTERNS.items():
        for key in ("target_modules", "exclude_modules"):
            yield f"{key}-pattern-{name}", f"{key} is '", {key: pattern}
            yield f"{key}-list-pattern-{name}", f"{key} holds '", {key: ["q_proj", pattern]}
        for key, value in (("rank_pattern", 4), ("alpha_pattern", 8)):
            yield f"{key}-{name}", f"{key} has the keys '", {key: {pattern: value}}
    for key in ("q.proj", "^model.layers.0.self.attn.q_proj", "layers.0..lp.down_proj"):
        yield f"alpha-by-dots-{key}", "dots in keys of patterns are any character", {"alpha_pattern": {key: 64}}
    for name, text in NOT_NAMES.items():
        yield f"targets-name-{name}", "not literal module names", {"target_modules": ["q_proj", text]}
    for key in ("target_modules", "exclude_modules"):
        for name, value in (("object", {"q_proj": 1}), ("number", 5), ("true", True)):
            yield f"{key}-{name}", f"{key} is {value!r}", {key: value}
        for name, value in (("list", ["q_proj"]), ("null", None), ("number", 1), ("object", {})):
            yield f"{key}-of-{name}", f"{key} holds", {key: [value]}
        yield f"{key}-too-many", f"{key} is [", {key: [f"m{index}" for index in range(5000)]}
    for key in ("rank_pattern", "alpha_pattern"):
        for name, value in (("list", ["q_proj"]), ("text", "q_proj"), ("number", 4)):
            yield f"{key}-a-{name}", f"{key} is {value!r}; it must map", {key: value}
    yield "targets-empty", "target_modules is empty", {"target_modules": []}
    yield "targets-null", "target_modules is empty", {"target_modules": None}
    yield "targets-nothing", "does not name", {"target_modules": ["c_attn"]}
    yield "exclude-all", "does not name", {"exclude_modules": ["q_proj", "down_proj"]}


def odd_layers() -> Iterator[Setting]:
    for value in ("0", -1, 1.5, True, [0, "1"], [-1], [True], [[0]], {"0": 1}):
        reason = f"layers_to_transform is {value!r}; it must be layer numbers"
        yield f"layers-{value!a}", reason, {"layers_to_transform": value}
    yield "layers-elsewhere", "does not name", {"layers_to_transform": [7]}
    for value in ("(h|layers)+", ["h"], 5, {"h": 1}, ["layers", ".*"]):
        yield f"layers-pattern-{value!a}", f"layers_pattern is {value!r}", {"layers_pattern": value}


def odd_invocations() -> Iterator[Setting]:
    """Tokens that no prompt can hold, and what would act on more than stands after them."""
    key = "alora_invocation_tokens"
    values: list[Any] = [
        [], "5", "", 5, 0, True, False, 1.5, {"0": 5}, {}, [True], [1, False], [5.0], ["5"], [-1], [None], [[5]],
        [1 << 31], [10**39], [5] * 65, [5] * 9999, ["__import__('os')"],
    ]  # fmt: skip
    for index, value in enumerate(values):
        yield f"invocation-{index}", f"{key} is {ascii(value)[:100]}", {key: value}
    yield "invocation-vocabulary", "holds 320, outside the base's vocabulary of 320", {key: [5, 320, 5]}
    yield "invocation-largest", "holds 2147483647, outside", {key: [(1 << 31) - 1]}
    for other, value in (("use_dora", True), ("bias", "all"), ("bias", "lora_only")):
        reason = f"{other} is {value!r} beside {key}: it would act before"
        yield f"invocation-{other}-{value!a}", reason, {key: [5], other: value}
    yield "invocation-ia3", "only LoRA can be activated", {key: [5], "peft_type": "IA3"}


def code_and_other_features() -> Iterator[Setting]:
    mappings: list[Any] = [
        {"base_model_class": "system", "parent_library": "os"},
        {"base_model_class": "run", "parent_library": "subprocess"},
        {"base_model_class": "X", "parent_library": "transformers; import os"},
        {"base_model_class": "X", "parent_library": "transformers/../evil"},
        {"base_model_class": "X", "parent_library": "evil.transformers"},
        {"base_model_class": "X", "parent_library": ["transformers"]},
        {"base_model_class": "system"},
        ["transformers"],
        "os.system",
        1,
        True,
    ]
    for index, mapping in enumerate(mappings):
        yield f"auto-mapping-{index}", "adapters cannot import code", {"auto_mapping": mapping}
    yield "megatron", "Megatron", {"megatron_config": {"a": 1}, "megatron_core": "antigravity"}
    of_experts = {"target_parameters": ["mlp.experts.gate_up_proj"]}
    yield "parameters", "which is no parameter of the base's experts", of_experts
    for value in ("experts.*", ["a" * 300 + "*"], {"a": 1}, [1], 7, [["experts"]], True):
        yield f"parameters-{value!a}"[:60], "must be a list of names without patterns", {"target_parameters": value}
    yield "replication", "replacing layers of the base is not supported", {"layer_replication": [[0, 2], [1, 2]]}
    unknown = "unknown settings may change the answers"
    for value in (True, 2, 0.5, "yes", ["__import__('os')"], {"a": 1}):
        yield f"unknown-{value!a}", f"'use_more' is {value!r}: {unknown}", {"use_more": value}
    yield "qalora", "QA-LoRA", {"use_qalora": True}
    yield "arrow", "Arrow", {"arrow_config": {"top_k": 1}}
    for start in ("pissa", "pissa_niter_16", "PISSA", "olora", "corda", "loftq", "lora_ga"):
        yield f"start-{start}", "on a modified base", {"init_lora_weights": start}
    for start in ("__import__('os')", "", 5, ["pissa"], {"pissa": 1}):
        yield f"start-{start!a}", f"init_lora_weights is {start!r}, which", {"init_lora_weights": start}
