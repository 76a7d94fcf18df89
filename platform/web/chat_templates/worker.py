"""The worker process: RenderJobs on the socket that is its standard input, a Rendered for each, until it closes.

Beside Jinja's sandbox: little memory, no file or socket can be opened, and CPU time for one job at a time.
"""

import codecs
import math
import pprint
import resource
import socket
import textwrap
import time
from functools import lru_cache
from typing import Final

import jinja2.constants
import jinja2.debug
import msgspec

from loraplex.registry.files.child import limit_child

from .chat_template import ChatTemplate, TemplateFailure
from .job import Rendered, RenderJob, receive_frame, send_frame

MEMORY: Final = 256 << 20
"""Bytes of address space."""
CPU_SECONDS: Final = 4
"""Of one job; the parent's deadline comes before, unless there is no parent any more."""
REMEMBERED: Final = 32
NEEDED_LATER: Final = (pprint, textwrap, jinja2.constants, jinja2.debug, codecs.lookup("unicode_escape"))
"""Jinja imports them when they are first used, and then no file can be opened."""


def main() -> None:
    channel = socket.socket(fileno=0)
    time.tzset()
    limit_child(resource.RLIM_INFINITY, MEMORY, file_bytes=0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    send_frame(channel, Rendered(""))
    while (frame := receive_frame(channel)) is not None:
        _limit_cpu()
        send_frame(channel, _render(msgspec.json.decode(frame, type=RenderJob)))


def _render(job: RenderJob) -> Rendered:
    try:
        template = _template(job.source, tuple(sorted(job.named_tokens.items())), job.max_chars)
        text = template.render(job.messages, job.add_generation_prompt, job.continue_final_message, job.variables)
        text.encode("utf-8")
    except MemoryError:
        return Rendered("", f"the chat template needs more than {MEMORY >> 20} MiB of memory")
    except (TemplateFailure, ValueError) as error:
        return Rendered("", str(error).encode("utf-8", "backslashreplace").decode()[:1000])
    except Exception as error:  # whatever a stranger's program may raise
        return Rendered("", f"the chat template failed: {type(error).__name__}")
    return Rendered(text)


@lru_cache(maxsize=REMEMBERED)
def _template(source: str, named_tokens: tuple[tuple[str, str], ...], max_chars: int) -> ChatTemplate:
    return ChatTemplate(source, dict(named_tokens), max_chars)


def _limit_cpu() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime) + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
