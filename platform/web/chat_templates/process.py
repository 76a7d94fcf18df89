"""TemplateProcess: one worker process, started when it is first needed, killed and replaced when it does not answer."""

import socket
import subprocess
import time
from typing import Final

import msgspec

from loraplex.registry.files.child import child_command, child_environment

from ..http.errors import overloaded
from .chat_template import TemplateFailure
from .job import Rendered, RenderJob, receive_frame, send_frame

SECONDS: Final = 3.0
"""For one job. The template's own clock runs shorter, but only ticks while it puts out text."""
START_SECONDS: Final = 60.0


class TemplateTooSlow(TemplateFailure):
    """It was stopped at the deadline."""


class TemplateProcess:
    """For one thread at a time; its methods block."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def render(self, job: RenderJob) -> str:
        """Raises TemplateFailure; TemplateTooSlow after SECONDS; ApiError 503 where no process starts in time."""
        channel = self._channel or self._start()
        try:
            answer = _ask(channel, job)
        except TimeoutError:
            self.close()
            raise TemplateTooSlow(f"the chat template took longer than {SECONDS:g} s") from None
        except OSError:
            answer = None
        if answer is None:
            self.close()
            raise TemplateFailure("the chat template ended the process that renders it")
        if answer.problem is not None:
            raise TemplateFailure(answer.problem)
        return answer.text

    def close(self) -> None:
        if self._child is not None and self._channel is not None:
            self._channel.close()
            self._child.kill()
            self._child.wait()
        self._child = self._channel = None

    def _start(self) -> socket.socket:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                child_command("loraplex.web.chat_templates.worker"),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=child_environment(),
            )
        if not _is_there(self._channel):
            self.close()
            raise overloaded("The process that renders chat templates of adapters did not start. Try again soon.")
        return self._channel


def _is_there(channel: socket.socket) -> bool:
    """Whether the process has said so in time."""
    try:
        return receive_frame(channel, time.monotonic() + START_SECONDS) is not None
    except OSError:
        return False


def _ask(channel: socket.socket, job: RenderJob) -> Rendered | None:
    """None when the process has ended. Raises TimeoutError, OSError."""
    deadline = time.monotonic() + SECONDS
    channel.settimeout(SECONDS)
    send_frame(channel, job)
    frame = receive_frame(channel, deadline)
    return None if frame is None else msgspec.json.decode(frame, type=Rendered)
