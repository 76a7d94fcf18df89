"""AdapterBook: the adapters of an engine in Python, by the names and folders that they are asked for by."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from loraplex.lora.files.manifest import AdapterManifest

from ..model.config import base_signature
from ..protocol import AdapterRef, AdapterSpec
from ..scheduler.activation import explain_absence, find_start
from ..text.tokenizer import Tokenizer
from .adapter_files import prepare_adapter
from .lora_request import LoRARequest
from .prompts import Adapter


class AdapterBook:
    """Folders of converted adapters are temporary and go with close()."""

    def __init__(self, base_folder: Path, tokenizer: Tokenizer) -> None:
        self._folder, self._base = base_folder, base_signature(base_folder)
        self._tokenizer = tokenizer
        self._manifests: dict[str, AdapterManifest] = {}
        self._requested: dict[LoRARequest, AdapterManifest] = {}
        self._scratch = ExitStack()
        self.specs: list[AdapterSpec] = []
        """Of all adapters so far, as the engine is told of them."""

    def add(self, name: str, folder: str | Path) -> AdapterSpec:
        """Check the adapter in `folder`, which `name` means from now on. ValueError has every reason against it."""
        if name in self._manifests:
            raise ValueError(f"there is an adapter {name!r} already; give this one another name")
        manifest, spec = self._prepare(name, Path(folder))
        self._manifests[name] = manifest
        return spec

    def learn(self, request: LoRARequest) -> AdapterSpec | None:
        """The adapter of a LoRARequest that is new; None: it is known."""
        if request in self._requested:
            return None
        manifest, spec = self._prepare(request.name, request.path)
        self._requested[request] = manifest
        return spec

    def references(self, asked: Adapter | LoRARequest | None, prompt: Sequence[int]) -> list[AdapterRef]:
        """What is added to the base for this prompt. ValueError for an unknown name, and for a prompt that never
        switches an adapter on."""
        if isinstance(asked, LoRARequest):
            manifests = [(asked.name, self._requested[asked], 1.0)]
        else:
            scales = {asked: 1.0} if isinstance(asked, str) else asked or {}
            manifests = [(name, self._named(name), scale) for name, scale in scales.items()]
        for name, manifest, _ in manifests:
            self._check_invoked(name, manifest.invocation_tokens, prompt)
        return [AdapterRef(manifest.digest, scale) for _, manifest, scale in manifests]

    def num_classes(self, asked: Adapter | LoRARequest | None) -> int:
        """Classes of the one classification head that what was asked for brings; 0: it brings none. ValueError for an
        unknown name, and for several heads."""
        if isinstance(asked, LoRARequest):
            manifests = [self._requested[asked]]
        else:
            manifests = [self._named(name) for name in ([asked] if isinstance(asked, str) else asked or ())]
        heads = [manifest.num_classes for manifest in manifests if manifest.num_classes]
        if len(heads) > 1:
            raise ValueError("several of the adapters have a classification head of their own; name one of them")
        return sum(heads)

    def digest(self, name: str) -> str:
        """ValueError for an unknown name."""
        return self._named(name).digest

    def close(self) -> None:
        self._scratch.close()

    def _prepare(self, name: str, folder: Path) -> tuple[AdapterManifest, AdapterSpec]:
        files = prepare_adapter(name, folder, self._base, self._scratch, self._folder)
        spec = AdapterSpec(digest=files.manifest.digest, path=str(files.folder))
        self.specs.append(spec)
        return files.manifest, spec

    def _named(self, name: str) -> AdapterManifest:
        if name not in self._manifests:
            raise ValueError(f"there is no adapter {name!r}; there are: {', '.join(self._manifests) or 'none'}")
        return self._manifests[name]

    def _check_invoked(self, name: str, sought: Sequence[int], prompt: Sequence[int]) -> None:
        if find_start(prompt, sought) is None:
            text = self._tokenizer.decode(list(sought), skip_special_tokens=False)
            raise ValueError(explain_absence(repr(name), sought, text))
