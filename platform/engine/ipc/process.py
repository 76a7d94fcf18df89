"""The engine process: builds the engine, tells how that goes, and serves.

`EngineChild` starts it as `python -m loraplex.engine.ipc.process DESCRIPTOR`: the number of the socket it inherits. The
EngineConfig comes as one line of JSON on its standard input. When its parent dies, it ends too.
"""

import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Final

import msgspec

from ..config import EngineConfig
from ..device.threads import flush_subnormals, prepare_environment
from ..processes.long_lived import starting
from ..processes.lost_threads import end_with_lost_threads
from ..processes.parent_watch import end_with_parent
from ..processes.watchdog import STACKS_SIGNAL

STARTED: Final = time.perf_counter()
LOST = 3
"""Exit code of an engine whose device failed."""


def run(connection: socket.socket, config: EngineConfig, serving: threading.Event) -> int:
    """Serve until told to stop; returns the exit code. What goes wrong is told to the parent in words. Sets `serving`
    once the end of the parent is noticed here."""
    from ..device.faults import DeviceLost, is_of_device
    from ..processes.link import EngineEnd
    from ..protocol import Busy, EngineFatal, Progress
    from ..startup.build import build_engine
    from .adapter_control import AdapterControl
    from .compile_guard import CompileGuard
    from .server import EngineServer

    link = EngineEnd(connection)

    def report(stage: str, seconds: float) -> None:
        link.send([Progress(stage=stage, seconds=seconds)])

    try:
        report("modules imported", time.perf_counter() - STARTED)
        with starting():
            engine = build_engine(config, report)
            serving.set()
        link.send([engine.info])
        guard = CompileGuard(lambda kernel: link.send([Busy(what=f"kernel {kernel} is compiled")]))
        EngineServer(engine.core, AdapterControl(engine.adapters), link, guard).serve()
    except (ValueError, OSError) as error:
        link.send([EngineFatal(message=str(error))])
        return 1
    except DeviceLost as error:
        link.send([EngineFatal(message=str(error))])
        return LOST
    except Exception as error:
        traceback.print_exc()
        link.send([EngineFatal(message=f"{type(error).__name__}: {error}")])
        return LOST if is_of_device(error) else 1
    finally:
        link.close()
    engine.close()
    return 0


def main() -> None:
    """Ctrl-C in a terminal reaches both processes; only the parent decides when this one ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(STACKS_SIGNAL)
    end_with_lost_threads()
    connection, serving = socket.socket(fileno=int(sys.argv[1])), threading.Event()
    end_with_parent(connection, serving)
    prepare_environment()
    flush_subnormals()
    config = msgspec.json.decode(sys.stdin.readline(), type=EngineConfig)
    code = 1
    try:
        code = run(connection, config, serving)
    finally:
        if code:
            # What remains of a lost device, or lacks memory to end, may wait for ever when it is taken down.
            os._exit(code)


if __name__ == "__main__":
    main()
