"""What a CertifyJob names, read and checked before anything is computed."""

from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from safetensors import safe_open

from loraplex.lora.files.manifest import AdapterManifest, BaseSignature
from loraplex.lora.inspection.inspection import CONFIG_FILE, WEIGHTS_FILE, inspect_adapter

from ..model.config import ModelConfig, base_signature
from ..model.loader import Checkpoint
from ..offline.adapter_files import prepare_adapter
from .certificate import CertifyJob
from .merged import MergedAdapter

MAY_DIFFER: Final = frozenset(
    {
        *("dtype", "quantization", "folded_digest", "tie_word_embeddings", "max_position_embeddings"),
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
    differing = [name for name in (field.name for field in fields(ModelConfig)) if name not in MAY_DIFFER]
    differing = [name for name in differing if getattr(config, name) != getattr(served, name)]
    if differing:
        first = differing[0]
        more = f", and so are {', '.join(differing[1:])}" if len(differing) > 1 else ""
        raise ValueError(
            f"the reference {folder} is not the model that {job.engine.model} was made from: {first} is "
            f"{getattr(config, first)!r} instead of {getattr(served, first)!r}{more}"
        )
    checkpoint = Checkpoint(folder)
    checkpoint.verify(config)
    return ReferenceFiles(folder, config, checkpoint, base_signature(folder))


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
