"""What a CertifyJob names, read and checked before anything is computed."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Final

from safetensors import safe_open

from loraplex.lora.files.manifest import AdapterManifest, BaseSignature
from loraplex.lora.inspection.inspection import CONFIG_FILE, WEIGHTS_FILE, inspect_adapter

from ..config import EngineConfig
from ..model.config import ModelConfig, base_signature
from ..model.loader import Checkpoint
from ..offline.adapter_files import prepare_adapter
from .certificate import CertifyJob
from .merged import MergedAdapter
from .prompts import MOST_TOKENS

MAY_DIFFER: Final = frozenset(
    {
        *("dtype", "quantization", "folded_digest", "is_tied", "max_position_embeddings"),
        *("eos_token_ids", "bos_token_id"),
    }
)
"""What says how a model is stored or used, and not what it computes."""


@dataclass(frozen=True, slots=True)
class ReferenceFiles:
    folder: Path
    config: ModelConfig
    checkpoint: Checkpoint
    signature: BaseSignature


def open_reference(job: CertifyJob, served: ModelConfig) -> ReferenceFiles:
    """ValueError when there is no unquantized model, or it is another model than the served one."""
    if job.reference is None and served.quantization is not None:
        raise ValueError(
            f"{job.engine.model} is quantized already ({served.quantization.words}), and a certificate compares it "
            "with the model that it was made from: give that one's folder as the reference (--reference FOLDER)"
        )
    folder = Path(job.reference or job.engine.model)
    config = ModelConfig.from_folder(folder)
    if config.quantization is not None:
        raise ValueError(
            f"the reference {folder} is quantized itself ({config.quantization.words}); give the model that it was "
            "made from"
        )
    differing = list(_differences(config, served))
    if differing:
        first, own, other = differing[0]
        more = f", and so are {', '.join(name for name, _, _ in differing[1:])}" if len(differing) > 1 else ""
        raise ValueError(
            f"the reference {folder} is not the model that {job.engine.model} was made from: {first} is "
            f"{own!r} instead of {other!r}{more}"
        )
    checkpoint = Checkpoint(folder, config.spec)
    checkpoint.verify(config)
    return ReferenceFiles(folder, config, checkpoint, base_signature(folder))


def _differences(own: object, other: object, path: str = "") -> Iterator[tuple[str, object, object]]:
    """(name, own, other) of each part of two descriptions that decides what is computed. Of layers, the first alone."""
    if own == other:
        return
    if isinstance(own, tuple) and isinstance(other, tuple) and own and is_dataclass(own[0]):
        pairs = enumerate(zip(own, other, strict=False))
        place = next((place for place, (one, two) in pairs if one != two), None)
        if place is not None:
            yield from _differences(own[place], other[place], f"{path}[{place}]")
        if len(own) != len(other):
            yield f"the number of {path}", len(own), len(other)
    elif is_dataclass(own) and type(own) is type(other):
        for part in (part.name for part in fields(own) if part.name not in MAY_DIFFER):
            yield from _differences(
                getattr(own, part), getattr(other, part), f"{path}.{part}".removeprefix(".").removeprefix("spec.")
            )
    else:
        yield path, own, other


def table_length(config: ModelConfig, engine: EngineConfig) -> int:
    """Positions of rotary tables: enough for every prompt, and on the side of longrope's border that is served."""
    border = config.rope_border
    if border is None:
        return MOST_TOKENS
    is_long = config.length(engine.max_model_len) > border
    return max(MOST_TOKENS, border + 1) if is_long else min(MOST_TOKENS, border)


@dataclass(frozen=True, slots=True)
class OpenedAdapter:
    """An adapter as one of the base it is read for."""

    folder: Path
    manifest: AdapterManifest
    base: BaseSignature

    def merged(self) -> MergedAdapter:
        return MergedAdapter(self.manifest.modules, safe_open(self.folder / WEIGHTS_FILE, framework="pt").get_tensor)


def open_adapter(job: CertifyJob, base: BaseSignature, scratch: ExitStack) -> OpenedAdapter | None:
    """As it is served on `base`; None where the job is about the base alone. `scratch` holds what is converted.

    ValueError when its files are refused or are others than the job's.
    """
    if job.adapter is None:
        return None
    folder = Path(job.adapter)
    files = prepare_adapter(folder.name, folder, base, scratch)
    digest = files.manifest.digest
    if job.adapter_digest not in (None, digest):
        raise ValueError(
            f"the files in {folder} are not those of adapter {str(job.adapter_digest)[:12]}: their digest is "
            f"{digest[:12]}; they have changed since"
        )
    return OpenedAdapter(files.folder, files.manifest, base)


def reopen_adapter(adapter: OpenedAdapter, reference: ReferenceFiles) -> OpenedAdapter:
    """The same adapter as one of the reference, whose head may be tied where the served one's is not."""
    config = (adapter.folder / CONFIG_FILE).read_bytes()
    inspection = inspect_adapter(config, adapter.folder / WEIGHTS_FILE, reference.signature)
    if inspection.manifest is None:
        reasons = "; ".join(finding.message for finding in inspection.failures())
        raise ValueError(f"the adapter does not fit the reference {reference.folder}: {reasons}")
    return OpenedAdapter(adapter.folder, inspection.manifest, reference.signature)
