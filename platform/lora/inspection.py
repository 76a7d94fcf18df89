"""inspect_adapter: everything that must hold before an adapter may be served, and every reason why not."""

from pathlib import Path

from .manifest import BaseSignature, Inspection


def inspect_adapter(config: bytes, weights: Path, base: BaseSignature) -> Inspection:
    """Judge adapter_config.json (`config`) and adapter_model.safetensors (`weights`) against the base.

    Never raises for what the files hold, never imports what they name, needs no torch. Raises OSError where the
    weights cannot be read.
    """
    raise NotImplementedError
