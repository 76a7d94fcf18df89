"""Set up before torch is imported by any test: the thread pool and the cache of compiled kernels."""

from loraplex.engine.threads import prepare_environment

prepare_environment()
