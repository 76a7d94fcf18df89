"""The demo: with the demo model, a fresh data folder starts with the demo adapters registered."""

import json

from ..registration import add_from_folder
from ..settings import DEMO_MODEL, Settings
from ..state import State

DEMO_ADAPTERS = DEMO_MODEL.parent / "adapters"
DEMO_PROMPTS = DEMO_MODEL.parent / "prompts.json"


def demo_wanted(settings: Settings) -> bool:
    """Whether this is the first start with the demo model. Asked before the data folder is filled."""
    return settings.model == str(DEMO_MODEL) and not (settings.data_dir / "credentials.json").exists()


def add_demo_adapters(state: State) -> None:
    certify = state.settings.certify_uploads
    for folder in sorted(DEMO_ADAPTERS.iterdir()):
        add_from_folder(state.registry, state.base, folder.name, folder, actor="system", certify=certify)
    state.registry.snapshots.refresh()


def example_question(model: str) -> str:
    """A question the demo adapter of this name answers well; a greeting for any other model."""
    if DEMO_PROMPTS.exists():
        samples = json.loads(DEMO_PROMPTS.read_text()).get(model)
        if samples:
            return str(samples[0]["prompt"])
    return "Hello"
