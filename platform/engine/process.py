"""The engine process: builds the engine, tells how that goes, and serves.

`EngineChild` starts it as `python -m loraplex.engine.process DESCRIPTOR`, the number of the socket it inherits, with
the EngineConfig as one line of JSON on its standard input. When its parent dies, it ends too.
"""

import faulthandler
import os
import signal
import socket
import sys
import traceback

import msgspec

from .config import EngineConfig
from .lost_threads import end_with_lost_threads
from .threads import flush_subnormals, prepare_environment
from .watchdog import STACKS_SIGNAL

LOST = 3
"""Exit code of an engine whose device failed."""


def run(connection: socket.socket, config: EngineConfig) -> int:
    """Serve until told to stop; returns the exit code. What goes wrong is told to the parent in words."""
    from .adapters import AdapterControl
    from .build import build_engine
    from .compile_guard import CompileGuard
    from .faults import DeviceLost, is_of_device
    from .link import EngineEnd
    from .long_lived import keep_for_good
    from .protocol import Busy, EngineFatal, Progress
    from .server import EngineServer

    link = EngineEnd(connection)
    try:
        engine = build_engine(config, lambda stage, seconds: link.send([Progress(stage=stage, seconds=seconds)]))
        keep_for_good()
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
    prepare_environment()
    flush_subnormals()
    config = msgspec.json.decode(sys.stdin.readline(), type=EngineConfig)
    code = 1
    try:
        code = run(socket.socket(fileno=int(sys.argv[1])), config)
    finally:
        if code:
            # What remains of a lost device, or lacks memory to end, may wait for ever when it is taken down.
            os._exit(code)


if __name__ == "__main__":
    main()
