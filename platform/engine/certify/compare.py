"""Comparison: two distributions over the next token, position by position, and what their differences come to."""

import math

import torch

from .certificate import Figures


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """[R, V] -> [R, V] float64: differences as small as those of two good models drown in float32's rounding."""
    return logits.double().log_softmax(-1)


class Comparison:
    """Sums over positions."""

    def __init__(self) -> None:
        self._positions, self._agreed = 0, 0
        self._divergence, self._largest = 0.0, 0.0
        self._surprise, self._own_surprise = 0.0, 0.0

    def add(self, reference: torch.Tensor, served: torch.Tensor, targets: torch.Tensor) -> None:
        """Log-probabilities [R, V] of the reference, logits [R, at least V] as served, tokens that follow [R]."""
        ours = log_probabilities(served[:, : reference.shape[1]])
        divergence = (reference.exp() * (reference - ours)).sum(-1).clamp(min=0)
        self._positions += len(targets)
        self._agreed += int((reference.argmax(-1) == ours.argmax(-1)).sum())
        self._divergence += divergence.sum().item()
        self._largest = max(self._largest, divergence.max().item())
        self._surprise -= ours.gather(1, targets[:, None]).sum().item()
        self._own_surprise -= reference.gather(1, targets[:, None]).sum().item()

    @property
    def positions(self) -> int:
        return self._positions

    @property
    def reference_perplexity(self) -> float:
        return _perplexity(self._own_surprise / self._positions)

    def figures(self) -> Figures:
        """ValueError when the model, here or there, computes numbers that are none."""
        mean, perplexity = self._divergence / self._positions, _perplexity(self._surprise / self._positions)
        if not all(map(math.isfinite, (mean, self._largest, perplexity, self.reference_perplexity))):
            raise ValueError(
                "the model computes infinite or undefined probabilities for these prompts, served or in the reference; "
                "no figures can be given"
            )
        return Figures(
            top1_agreement=self._agreed / self._positions,
            mean_kl=mean,
            max_kl=self._largest,
            perplexity=perplexity,
            perplexity_delta=perplexity - self.reference_perplexity,
        )


def _perplexity(surprise: float) -> float:
    """`surprise`: the mean negative log-likelihood of a token."""
    return math.exp(surprise) if surprise < 700 else math.inf
