"""Unfit: why tokenizer files cannot be served on this base."""


class Unfit(ValueError):
    """One reason, with what repairs it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy
