"""The demo: with the demo model, a fresh data folder starts with the demo adapters registered."""

import json

from loraplex.registry.audit import SYSTEM
from loraplex.registry.certificates.certificates import Subject

from ...management.registration import add_from_folder
from ...settings.settings import DEMO_MODEL, Settings
from ...state import State

DEMO_ADAPTERS = DEMO_MODEL.parent / "adapters"
DEMO_PROMPTS = DEMO_MODEL.parent / "prompts.json"
GOLDEN_PROMPTS = DEMO_MODEL.parent / "golden_prompts.json"


def demo_wanted(settings: Settings) -> bool:
    """Whether this is the first start with the demo model. Asked before the data folder is filled."""
    return settings.model == str(DEMO_MODEL) and not (settings.data_dir / "credentials.json").exists()


def add_demo_adapters(state: State) -> None:
    """Each with golden prompts of its own job: our generated ones are foreign to so small a model."""
    registry, golden_prompts = state.registry, json.loads(GOLDEN_PROMPTS.read_text("utf-8"))
    for folder in sorted(DEMO_ADAPTERS.iterdir()):
        added, _ = add_from_folder(registry, state.base, folder.name, folder, actor=SYSTEM)
        adapter = registry.adapters.set_prompts(folder.name, golden_prompts[folder.name], actor=SYSTEM)
        if state.settings.certify_uploads:
            registry.certificates.request(Subject(added.version.digest, adapter.prompts_digest), actor=SYSTEM)
    registry.snapshots.refresh()


def example_question(model: str) -> str:
    """A question the demo adapter of this name answers well; a greeting for any other model."""
    if DEMO_PROMPTS.exists():
        samples = json.loads(DEMO_PROMPTS.read_text()).get(model)
        if samples:
            return str(samples[0]["prompt"])
    return "Hello"
