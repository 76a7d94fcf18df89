"""Reference: what transformers and peft say, one prompt at a time, in float32."""

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from tests.checkpoints import reference_model


class Reference:
    def __init__(self, base: Path, adapters: dict[str, Path]) -> None:
        self._model = reference_model(base, adapters)
        self.greedy = lru_cache(maxsize=None)(self._greedy)
        """(adapter or None, prompt ids as a tuple, count) -> token ids."""

    @torch.inference_mode()
    def logprobs(self, adapter: str | None, token_ids: list[int]) -> list[list[float]]:
        """For each token the log-probabilities of the whole vocabulary to follow it."""
        with self._chosen(adapter):
            logits = self._model(input_ids=torch.tensor([token_ids])).logits[0]
        rows: list[list[float]] = torch.log_softmax(logits, -1).tolist()
        return rows

    @torch.inference_mode()
    def _greedy(self, adapter: str | None, prompt: tuple[int, ...], count: int) -> list[int]:
        """The most likely tokens; an end-of-sequence token ends nothing."""
        output: list[int] = []
        cache, tokens = None, torch.tensor([prompt])
        with self._chosen(adapter):
            while len(output) < count:
                answer: Any = self._model(input_ids=tokens, past_key_values=cache, use_cache=True)
                cache, tokens = answer.past_key_values, answer.logits[:, -1:].argmax(-1)
                output.append(int(tokens))
        return output

    def _chosen(self, adapter: str | None) -> AbstractContextManager[None]:
        assert isinstance(self._model, PeftModel)
        if adapter is None:
            return self._model.disable_adapter()  # type: ignore[no-any-return]
        self._model.set_adapter(adapter)
        return nullcontext()
