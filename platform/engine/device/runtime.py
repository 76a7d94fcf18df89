"""What a model is computed with beside our own sources: libraries by version, and what they find of the device."""

import torch


def cpu_runtime() -> dict[str, str]:
    """Vectors of another length add up in another order."""
    from loraplex.quant.kernels.instructions.vectors import LANES  # compiled for this processor

    from ..kernels.compilers import cpu_compilers

    vectors = f"{LANES} floats, {torch.backends.cpu.get_cpu_capability()} in torch"
    return {"torch": str(torch.__version__), **cpu_compilers(), "vectors": vectors}


def cuda_runtime(device: torch.device) -> dict[str, str]:
    """Without the driver: it loads what torch and triton have compiled, and the card's name is told beside this."""
    from ..kernels.compilers import cuda_compilers

    found = {"torch": str(torch.__version__), **cuda_compilers()}
    if device.type == "cuda":
        found["CUDA"] = str(torch.version.cuda)
        found["compute capability"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return found
