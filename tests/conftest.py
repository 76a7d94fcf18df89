"""Set up before torch is imported by any test: the thread pool and the cache of compiled kernels."""

import os

from loraplex.engine.threads import prepare_environment

# Several test processes share the cores: a thread that waits must not spin on one.
os.environ.setdefault("GOMP_SPINCOUNT", "0")
prepare_environment()
