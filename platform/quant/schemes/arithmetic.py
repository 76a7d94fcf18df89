"""What the linears of this process are multiplied with, by name. Their results are other ones where that is another."""

from typing import Final

from ..kernels.instructions.dots import HAS_AVX2, HAS_BFLOAT16, HAS_INTEGERS, REGISTERS

VECTORS: Final = "float32 vectors"


def arithmetic_words(has_bfloat16: bool, has_integers: bool, has_words: bool, registers: str) -> str:
    """Of dot products that the processor has: how activations are rounded follows from these, the dtype of the weights
    and their quantization."""
    integers = "words" if has_words else "bytes"
    numbers = [word for word, there in (("bfloat16", has_bfloat16), (integers, has_integers)) if there]
    return f"dot products of {' and '.join(numbers)} in {registers}" if numbers else VECTORS


ARITHMETIC: Final = arithmetic_words(HAS_BFLOAT16, HAS_INTEGERS, HAS_AVX2, REGISTERS)
