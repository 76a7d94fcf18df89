"""What compiles the kernels of this process, by name and version: other code may come of another one."""


def cpu_compilers() -> dict[str, str]:
    import llvmlite
    import numba

    return {"numba": numba.__version__, "llvmlite": llvmlite.__version__}


def cuda_compilers() -> dict[str, str]:
    import triton

    return {"triton": triton.__version__}
