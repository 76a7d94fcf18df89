"""ExpertRows: which tokens of a step go to which expert of a layer."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """T tokens with K of E experts each make P = T K rows. A pair t K + j is token t with its j-th expert."""

    starts: torch.Tensor
    """[E + 1] int64: expert e has the rows starts[e] to starts[e + 1] - 1."""
    pairs: torch.Tensor
    """[P] int64, the pair of each row: ascending for each expert."""
    places: torch.Tensor
    """[P] int64, the row of each pair."""
    per_token: int
    """K."""

    @property
    def tokens(self) -> torch.Tensor:
        """[P] int64, the token of each row."""
        return self.pairs // self.per_token

    def touched(self) -> list[tuple[int, int, int]]:
        """(expert, first row, row behind its last) of each expert that has any."""
        starts = self.starts.tolist()
        bounds = zip(range(len(starts) - 1), starts[:-1], starts[1:], strict=True)
        return [(expert, first, last) for expert, first, last in bounds if last > first]
