"""The peer every Python user has: transformers' generate, with PEFT for adapters, in this process."""

import time
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM


def faster_dtype() -> torch.dtype:
    """bf16 or fp32, whichever multiplies faster here: bf16 is emulated on CPUs without the instructions."""
    return min((torch.bfloat16, torch.float32), key=_linear_seconds)


def _linear_seconds(dtype: torch.dtype) -> float:
    x, weights = torch.randn(16, 896).to(dtype), [torch.randn(4864, 896).to(dtype) for _ in range(8)]
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for weight in weights:
            torch.nn.functional.linear(x, weight)
        best = min(best, time.perf_counter() - started)
    return best


class Transformers:
    """One static batch, greedy, no early end: the best case for generate."""

    def __init__(self, model: Path, adapters: dict[str, Path], dtype: torch.dtype, threads: int) -> None:
        torch.set_num_threads(threads)
        self._base = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()
        self._with_adapters = None
        for name, folder in adapters.items():
            self.load(name, folder)

    def load(self, name: str, folder: Path) -> float:
        """Load one more adapter; seconds it took."""
        started = time.perf_counter()
        if self._with_adapters is None:
            self._with_adapters = PeftModel.from_pretrained(self._base, folder, adapter_name=name).eval()
        else:
            self._with_adapters.load_adapter(folder, adapter_name=name)
        return time.perf_counter() - started

    @torch.inference_mode()
    def tokens_per_second(self, prompts: list[list[int]], max_tokens: int, adapters: list[str] | None = None) -> float:
        """Output tokens per second of the whole batch; adapters[i] answers prompts[i], None is the base alone."""
        inputs = torch.tensor(prompts)
        settings = {
            "attention_mask": torch.ones_like(inputs),
            "max_new_tokens": max_tokens,
            "min_new_tokens": max_tokens,
            "do_sample": False,
            "pad_token_id": 0,
        }
        started = time.perf_counter()
        if adapters is not None:
            assert self._with_adapters is not None
            output = self._with_adapters.generate(input_ids=inputs, adapter_names=adapters, **settings)
        elif self._with_adapters is not None:
            with self._with_adapters.disable_adapter():
                output = self._base.generate(inputs, **settings)
        else:
            output = self._base.generate(inputs, **settings)
        seconds = time.perf_counter() - started
        assert output.shape == (len(prompts), len(prompts[0]) + max_tokens)
        return len(prompts) * max_tokens / seconds
