"""Reads of what the kernel before writes, which come too early where kernels are chained (chain.py).

The machine's code is followed along every way that it can take: a read that may be reached without a wait is one too
early. In PTX an address is known by the parameter that it was computed from; those reads are marked by a hint that
changes nothing else, and are found again by it in what the assembler makes of them.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.nvidia.compiler import get_ptxas

READ = re.compile(r"\b(ld(?:\.\w+)*\.global|cp\.async\.c[ag]\.shared\.global|(?:atom|red)(?:\.\w+)*\.global)")
REGISTER = re.compile(r"%rd\d+")


class Syntax(NamedTuple):
    """How one kind of machine code says what matters here."""

    label: re.Pattern[str]
    branch: re.Pattern[str]
    """With the name of its target."""
    conditional: re.Pattern[str]
    end: re.Pattern[str]
    wait: str


PTX = Syntax(
    re.compile(r"^(\$\w+):"), re.compile(r"\bbra(?:\.uni)?\s+(\$\w+)"), re.compile(r"^@"),
    re.compile(r"\b(?:ret|exit);|\bbra\b"), "griddepcontrol.wait",
)  # fmt: skip
SASS = Syntax(
    re.compile(r"^(\.L_x_\d+):"), re.compile(r"\b(?:BRA|CALL)\S* .*`\((\.L_x_\d+)\)"), re.compile(r"@|CALL|BRA\S* U?P"),
    re.compile(r"\b(?:EXIT|RET\S*|BRA) ?.*;"), "ACQBULK",
)  # fmt: skip


def early_reads(kernel: Any, names: tuple[str, ...], folder: Path) -> list[str]:
    """Of the parameters `names` of a compiled kernel, in PTX and in the assembler's code. AssertionError where it reads
    none of them, or never waits."""
    parameters = [name for name, kind in kernel.src.signature.items() if kind != "constexpr"]
    numbers = {parameters.index(name) for name in names}
    reads = reads_of(kernel.asm["ptx"].splitlines(), numbers)
    assert reads and PTX.wait in kernel.asm["ptx"]
    lines = [mark(line) if line in reads else line for line in kernel.asm["ptx"].splitlines()]
    early = list(unwaited(lines, PTX, "::marked"))
    assembled = disassemble("\n".join(lines).replace("::marked", ""), kernel.metadata.target.arch, folder)
    assert sum("LTC128B" in line for line in assembled) > 0
    return early + list(unwaited(assembled, SASS, "LTC128B"))


def reads_of(lines: list[str], parameters: set[int]) -> set[str]:
    """Lines that read from addresses computed of these parameters."""
    derived: set[str] = set()
    before = -1
    while before != len(derived):
        before = len(derived)
        for line in lines:
            if target := REGISTER.search(line):
                source = line[target.end() :]
                loads = re.search(r"_param_(\d+)\]", source)
                is_ours = int(loads[1]) in parameters if loads else not derived.isdisjoint(REGISTER.findall(source))
                if is_ours and not READ.search(line) and not re.search(r"\bst\.|prefetch", line):
                    derived.add(target[0])
    return {
        line
        for line in lines
        if READ.search(line) and not derived.isdisjoint(REGISTER.findall(line[line.index("[") :]))
    }


def mark(line: str) -> str:
    """With a hint for the second cache, which moves no instruction."""
    return READ.sub(lambda found: found[0] + ".L2::128B::marked", line, count=1)


def unwaited(lines: list[str], syntax: Syntax, marked: str) -> Iterator[str]:
    """Marked lines that can be reached from the first without a wait between."""
    places = {found[1]: number for number, line in enumerate(lines) if (found := syntax.label.search(line.strip()))}
    reconverge = dict(re.findall(r"BSSY\S* (B\d+), `\((\.L_x_\d+)\)", "\n".join(lines)))
    seen: set[int] = set()
    ways = [0]
    while ways:
        place = ways.pop()
        while place < len(lines) and place not in seen:
            seen.add(place)
            line = lines[place].strip()
            if syntax.wait in line:
                break
            if marked in line:
                yield line
            if found := syntax.branch.search(line):
                ways.append(places[found[1]])
            if (found := re.search(r"BSYNC\S* (B\d+)", line)) and found[1] in reconverge:
                ways.append(places[reconverge[found[1]]])
            if (syntax.end.search(line) or found) and not syntax.conditional.search(line):
                break
            place += 1


def disassemble(ptx: str, architecture: int, folder: Path) -> list[str]:
    """Lines of the assembler's code, each without its address."""
    source, binary = folder / "kernel.ptx", folder / "kernel.cubin"
    source.write_text(ptx)
    subprocess.run([get_ptxas(architecture).path, f"-arch=sm_{architecture}a", source, "-o", binary], check=True)
    command = [triton.knobs.nvidia.nvdisasm.path, "-c", binary]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [re.sub(r"/\*.*?\*/", "", line).strip() for line in text.splitlines()]
