"""LoRARequest: an adapter by its folder, in vLLM's form."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """`lora_path` is a folder in PEFT layout. `lora_int_id` is taken for vLLM's sake: what an adapter is, its files
    say. ValueError for an empty name, a number below 1 or no path."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""

    def __post_init__(self) -> None:
        if not self.lora_name or not isinstance(self.lora_name, str):
            raise ValueError(f"lora_name must be a name, got {self.lora_name!r}")
        if type(self.lora_int_id) is not int or self.lora_int_id < 1:
            raise ValueError(f"lora_int_id must be an integer of at least 1, got {self.lora_int_id!r}")
        if not self.lora_path:
            raise ValueError(f"lora_path of {self.lora_name!r} is empty; give the adapter's folder")

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> Path:
        return Path(self.lora_path)
