"""What a source answers instead of files, in words for the person who asked."""


class SourceRefused(ValueError):
    """This server may not take it from there, or the path says nothing clear."""


class SourceMissing(ValueError):
    """There is no adapter. The message is empty where nothing more is to be said."""


class SourceFailed(RuntimeError):
    """It is there, or may be, but could not be read."""
