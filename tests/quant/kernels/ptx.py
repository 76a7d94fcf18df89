"""A few instructions of PTX, each executed as its definition has it, on registers that are arrays: one entry a case."""

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

Register = npt.NDArray[np.uint32]
Words = npt.NDArray[np.float64]
DTYPES = {"bf16x2": torch.bfloat16, "f16x2": torch.float16}


def run(code: str, outputs: int, *inputs: Register) -> list[Register]:
    """What `code` leaves in its operands $0 to $outputs; the operands after those are the inputs."""
    registers = {f"${outputs + index}": value for index, value in enumerate(inputs)}
    for line in code.removeprefix("{").removesuffix("}").split(";"):
        name, _, rest = line.strip().partition(" ")
        if name == "mov.b32" and rest.startswith("{"):
            halves, whole = rest.strip("{").split("}, ")
            for shift, half in zip((0, 16), halves.split(", "), strict=True):
                registers[half] = registers[whole] >> np.uint32(shift) & np.uint32(0xFFFF)
        elif name and not name.startswith(".reg"):
            target, *operands = (part.strip() for part in rest.split(","))
            values = [registers[part] if part in registers else np.array(int(part, 0), np.uint32) for part in operands]
            registers[target] = np.asarray(execute(name, *values), np.uint32)
    return [registers[f"${index}"] for index in range(outputs)]


def execute(name: str, *values: Register) -> Register:
    if name in BITS:
        return BITS[name](*values)
    kind = name.rsplit(".", 1)[1]
    if name == "add.f32":
        return to_float32(np.add(*map(from_float32, values)))
    if name == "cvt.rn.bf16x2.f32":
        high, low = map(from_float32, values)
        return to_pair(low, high, torch.bfloat16)
    if name == "cvt.rn.f16x2.e4m3x2":
        pairs = np.asarray(values[0], np.uint16).view(np.uint8).reshape(-1, 2)
        low, high = torch.from_numpy(pairs).view(torch.float8_e4m3fn).double().numpy().T
        return to_pair(low, high, torch.float16)
    assert re.fullmatch(r"fma\.rn\.(bf16x2|f16x2)", name), name
    a, b, c = (from_pair(value, DTYPES[kind]) for value in values)
    low, high = (a[lane] * b[lane] + c[lane] for lane in (0, 1))
    return to_pair(low, high, DTYPES[kind])


def permute(a: Register, b: Register, selector: Register) -> Register:
    """prmt.b32: byte i of the result is byte `nibble i of selector` of b:a."""
    both = np.asarray(a, np.uint64) | np.asarray(b, np.uint64) << np.uint64(32)
    result = np.zeros(np.broadcast(a, b).shape, np.uint64)
    for place in range(4):
        chosen = int(selector) >> 4 * place & 15
        assert chosen < 8, "bit 3 would repeat the sign"
        result |= (both >> np.uint64(8 * chosen) & np.uint64(255)) << np.uint64(8 * place)
    return result.astype(np.uint32)


BITS: dict[str, Callable[..., Register]] = {
    "mov.b32": lambda a: a,
    "and.b32": np.bitwise_and,
    "or.b32": np.bitwise_or,
    "xor.b32": np.bitwise_xor,
    "shl.b32": np.left_shift,
    "shr.u32": np.right_shift,
    "prmt.b32": permute,
}


def from_float32(register: Register) -> Words:
    return np.asarray(register, np.uint32).view(np.float32).astype(np.float64)


def to_float32(words: Words) -> Register:
    return words.astype(np.float32).view(np.uint32)


def from_pair(register: Register, dtype: torch.dtype) -> tuple[Words, Words]:
    """The lower and the upper half of a register, as numbers."""
    register = np.asarray(register, np.uint32)
    halves = (torch.from_numpy(np.atleast_1d((register >> shift & 0xFFFF).astype(np.int32))) for shift in (0, 16))
    low, high = (half.to(torch.int16).view(dtype).double().numpy() for half in halves)
    return low, high


def to_pair(low: Words, high: Words, dtype: torch.dtype) -> Register:
    """Rounded to dtype; none of these numbers must need it."""
    bits = []
    for half in (low, high):
        rounded = torch.from_numpy(np.ascontiguousarray(half)).to(dtype)
        assert np.array_equal(rounded.double().numpy(), half, equal_nan=True), "rounded"
        bits.append(rounded.view(torch.int16).numpy().astype(np.uint16).astype(np.uint32))
    return bits[0] | bits[1] << np.uint32(16)
