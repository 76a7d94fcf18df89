"""A family is one file: a made-up one is served by nothing but its description."""

import json
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from loraplex import LLM, SamplingParams
from loraplex.engine.model import families
from loraplex.engine.model.families.find import architectures
from tests.checkpoints import make_adapter, make_checkpoint, reference_model

MADE_UP = dedent('''
    """Llama under another name, whose configuration calls things by others."""

    from loraplex.engine.model.families.family import Family, gated_mlp, pre_norm_layer, split_heads, text_model
    from loraplex.engine.model.description.spec import NormSpec

    SPELLINGS = {"num_hidden_layers": "depth", "hidden_size": "width"}


    def describe(raw, name):
        raw = raw | {ours: raw[theirs] for ours, theirs in SPELLINGS.items()}
        norm = NormSpec("model.norm", raw["width"], 1e-6)
        layer = pre_norm_layer(split_heads(raw, raw["width"]), gated_mlp(raw, raw["width"]), norm)
        return text_model(raw, [layer] * raw["depth"], norm)


    FAMILY = Family(names=("MadeUp",), describe=describe)
    ''')


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "made_up.py").write_text(MADE_UP)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    architectures.cache_clear()
    yield
    architectures.cache_clear()


@pytest.mark.usefixtures("made_up")
def test_a_new_family_is_one_file(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base")
    adapter, prompt = make_adapter(tmp_path / "adapter", base), [5, 6, 7, 8]
    model = reference_model(base, {"adapter": adapter})
    model.set_adapter("adapter")
    with torch.inference_mode():
        expected = [model(input_ids=torch.tensor([prompt])).logits[0, -1].argmax().item()]
    config = json.loads((base / "config.json").read_text())
    renamed = {
        "architectures": ["MadeUpForCausalLM"],
        "model_type": "made_up",
        "depth": config.pop("num_hidden_layers"),
    }
    (base / "config.json").write_text(json.dumps(config | renamed | {"width": config.pop("hidden_size")}))
    llm = LLM(base, {"adapter": adapter}, max_model_len=64, num_kv_blocks=16)
    [output] = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=1), adapter="adapter", use_tqdm=False)
    assert output.outputs[0].token_ids == expected
    assert len(MADE_UP.splitlines()) < 60


def test_the_page_of_models_names_every_family() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    names = {found.name for found in architectures().values() if found.task == "generate"}
    missing = [name for name in sorted(names) if f"| `{name}ForCausalLM` |" not in page]
    assert not missing, "run python -m docs.models_table"
