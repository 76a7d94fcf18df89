"""Why a figure has no value."""


class WrongResult(Exception):
    """A kernel's result is not its reference's."""


class Unsupported(Exception):
    """This card cannot do it; the message says what it lacks."""
