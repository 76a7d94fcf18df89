"""What must hold before a launch, or a kernel would read or write memory that is not its own."""


def require(holds: bool, what: str) -> None:
    """RuntimeError unless it holds. No assertion: `python -O` leaves those out, and a kernel would not notice."""
    if not holds:
        raise RuntimeError(f"nothing was launched: {what}")
