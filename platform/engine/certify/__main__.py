"""`python -m loraplex.engine.certify`: the protocol of `certificate.WORKER`, giving way to all else that runs here."""

import os
import sys
import traceback
from typing import Any

import msgspec

from ..device.threads import flush_subnormals, prepare_environment
from .certificate import CertifyJob

NICENESS = 19


def main() -> int:
    """The exit code: 0 with a certificate, 2 with an error in words."""
    os.nice(NICENESS)
    prepare_environment()
    try:
        job = CertifyJob.from_json(msgspec.json.decode(sys.stdin.buffer.read()))
        flush_subnormals()  # seconds of torch from here on, which nobody needs to hear that this is no job
        from .run import certify

        certificate = certify(job, lambda share, stage: _tell({"progress": share, "stage": stage}))
    except ValueError as error:
        return _end({"error": str(error)})
    except Exception as error:
        traceback.print_exc()
        return _end({"fault": f"{type(error).__name__}: {error}"})
    _tell({"certificate": certificate.to_json()})
    return 0


def _end(message: dict[str, Any]) -> int:
    _tell(message)
    return 2


def _tell(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
