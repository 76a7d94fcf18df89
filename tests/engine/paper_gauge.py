"""A gauge of a card whose memory a test takes."""

GB = 10**9


class PaperGauge:
    """A card whose memory the test takes; `cached` is what torch keeps of it until it settles."""

    name = "a card"

    def __init__(self, others: int = 0, total: int = 100 * GB) -> None:
        self.others, self.total, self.torch, self.cached, self.peak = others, total, 0, 0, 0

    def take(self, count: int) -> None:
        self.torch += count
        self.peak = max(self.peak, self.reserved())

    def give_back(self, count: int) -> None:
        self.torch, self.cached = self.torch - count, self.cached + count

    def settle(self) -> None:
        self.cached = 0

    def free_and_total(self) -> tuple[int, int]:
        return self.total - self.others - self.reserved(), self.total

    def reserved(self) -> int:
        return self.torch + self.cached

    def peak_reserved(self) -> int:
        return self.peak

    def reset_peak(self) -> None:
        self.peak = self.reserved()
