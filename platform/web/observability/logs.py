"""What the log looks like: lines for people, or one JSON object each. Never a prompt, never a key."""

import logging
from typing import Final

import msgspec

TEXT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def configure_logs(level: str, as_json: bool) -> None:
    """Send everything from `level` up to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level != "debug":
        for chatty in ("alembic", "uvicorn.error", "asyncio"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
