"""What the GPU kernels of products ask of a GPU, read from their text: `python -m docs.tools.wgsl_roofline`.

No GPU is needed.  Per turn of the innermost loop: how many multiply-adds an invocation makes of each 128 bits it loads
from workgroup memory (a GPU's load units keep up from about 16 on), integer divisions, and how many floating-point
operations a workgroup makes of each byte that it loads from global memory.  Registers are estimated: what lives through
the loop, and the operands of one step.  The table is written between two marks of docs/wgsl.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import mesh
import mesh.numpy as mnp
from mesh import nn
from mesh.core.array import apply
from worker.wgsl.lower import lower
from worker.wgsl.profile import Profile
from worker.wgsl.shaders import Shaders

PAGE = Path(__file__).resolve().parents[1] / "wgsl.md"
BEGIN, END = "<!-- begin of the roofline: python -m docs.tools.wgsl_roofline -->", "<!-- end of the roofline -->"


@dataclass(frozen=True, slots=True)
class Roofline:
    """Figures of one kernel; `fma_per_load` is infinite if its loop reads no workgroup memory."""

    tile: str
    fma_per_load: float
    divisions: int
    flops_per_byte: float
    workgroup_bytes: int
    registers: int


def convolved(stride: int) -> Callable[..., Any]:
    each = {"stride": (stride,) * 2, **dict.fromkeys(("low", "high", "lhs_dilation", "rhs_dilation"), (1, 1))}
    return lambda x, w: apply("conv", x, w, groups=1, **each)


def joined_heads(x: Any, w: Any) -> Any:
    """The sum over heads and width at the end of an attention: x is (batch, heads, rows, width)."""
    return mnp.tensordot(x, w, axes=((1, 3), (0, 1)))


def product(x: Any, y: Any) -> Any:
    return x @ y


KERNELS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], Any]] = {
    "1024 x 1024 x 1024": (product, [(1024, 1024), (1024, 1024)], np.float32),
    "the same in f16": (product, [(1024, 1024), (1024, 1024)], np.float16),
    "right operand turned": (lambda x, y: x @ y.T, [(1024, 1024), (1024, 1024)], np.float32),
    "left operand turned": (lambda x, y: x.T @ y, [(1024, 1024), (1024, 1024)], np.float32),
    "batch of 64, 512 x 512 x 512": (product, [(64, 512, 512), (64, 512, 512)], np.float32),
    "bias and GELU, 256 x 512 x 2048": (
        lambda x, w, b: nn.gelu(x @ w + b), [(256, 512), (512, 2048), (2048,)], np.float32,
    ),
    "odd sizes, 513 x 515 x 511": (product, [(513, 515), (515, 511)], np.float32),
    "heads joined, 16 of width 80": (joined_heads, [(8, 16, 128, 80), (16, 80, 1280)], np.float32),
    "24 rows, 1024 x 4096": (product, [(24, 1024), (1024, 4096)], np.float32),
    "8 rows, 1024 x 16384": (product, [(8, 1024), (1024, 16384)], np.float32),
    "conv 3 x 3, 64 channels of 56 x 56": (convolved(1), [(8, 64, 56, 56), (64, 64, 3, 3)], np.float32),
    "conv 3 x 3, stride 2, 128 channels": (convolved(2), [(8, 128, 28, 28), (256, 128, 3, 3)], np.float32),
}  # fmt: skip


def kernel_of(name: str, profile: Profile) -> str:
    """The text of a row's product; copies of operands are kernels before it."""
    function, shapes, dtype = KERNELS[name]
    program = lower(mesh.trace(function, *(np.zeros(shape, dtype) for shape in shapes)), Shaders(profile))
    return program.modules[program.dispatches[-1].shader].text


def measure(text: str) -> Roofline:
    """The figures of a product's kernel."""
    head, loop = _parted(text)
    invocations = int(_found(r"@workgroup_size\((\d+)\)", text))
    shared = {name: int(count) for name, count in re.findall(r"var<workgroup> (\w+): array<vec4<\w+>, (\d+)>", text)}
    fma = 4 * len(re.findall(r"^\s*sum\d+_\d+ = \(sum\d+_\d+ \+ \w+ \* \w+\);$", loop, re.M))
    loads = len(re.findall(rf"= (?:{'|'.join(shared)})\[", loop))
    sums = re.findall(r"^\s*var (sum\d+)_(\d+) =", head, re.M)
    rows, quads = len({row for row, _ in sums}), len({quad for _, quad in sums})
    length = fma // (4 * len(sums))
    vectors = len(re.findall(r"^\s*var \w+_\d+ =", head, re.M))
    held = {name for name in re.findall(r"^\s*let (t\d+) =", head, re.M) if re.search(rf"\b{name}\b", loop)}
    return Roofline(
        tile=" x ".join(str(4 * shared[name] // length) for name in ("left", "right")) + f" x {length}",
        fma_per_load=fma / loads,
        divisions=len(re.findall(r"[/%] \d+u", loop)),
        flops_per_byte=2 * fma * invocations / _bytes(text, loop, invocations),
        workgroup_bytes=16 * sum(shared.values()),
        registers=4 * vectors + len(held) + rows + 4 * quads,
    )


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, f"{pattern} is not in the kernel"
    return match[1]


def _parted(text: str) -> tuple[str, str]:
    """What comes before the loop that multiplies, and that loop."""
    start = text.index("  for (var turn")
    end = text.index("\n  }\n", start)
    return text[:start], text[start:end]


def _bytes(text: str, loop: str, invocations: int) -> float:
    """The bytes that a workgroup loads in one turn; a load that an `if` guards counts for those that pass it."""
    sizes = {}
    for name, kind in re.findall(r"var<storage, read> (\w+): array<([\w<>]+)>", text):
        sizes[name] = (2 if "f16" in kind else 4) * (4 if "vec4" in kind else 1)
    lanes = {
        name: (sign, int(bound)) for name, sign, bound in re.findall(r"let (t\d+) = \(lane (<|>=) (\d+)u\);", text)
    }
    total, share = 0.0, 1.0
    for line in loop.splitlines():
        guard = re.match(r"\s*if \((\w+)\) \{", line)
        if guard and guard[1] in lanes:
            sign, bound = lanes[guard[1]]
            share = (bound if sign == "<" else invocations - bound) / invocations
        elif line.strip() == "}":
            share = 1.0
        total += share * invocations * sum(sizes[name] for name in re.findall(r"= (?:\w+\()?(in\d+)\[", line))
    return total


def table() -> str:
    """The table as markdown."""
    profile = Profile(software=False, f16=True)
    titles = "product", "tile", "fma per 128-bit load", "divisions in the loop", "flop per byte loaded"
    titles = *titles, "workgroup memory", "registers, about"
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for name in KERNELS:
        own = measure(kernel_of(name, profile))
        lines.append(
            f"| {name} | {own.tile} | {own.fma_per_load:g} | {own.divisions} | {own.flops_per_byte:.3g} | "
            f"{own.workgroup_bytes / 1024:g} KiB | {own.registers} |"
        )
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with the table of now between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
