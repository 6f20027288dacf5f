"""The library: native functions that know no graph, which all programs of a process share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import runner
from .cores import FUNCTION, Tile, tile_for
from .few_rows import few_rows_core, lines_of_few_core
from .llvm import Loaded, ir
from .objects import Objects
from .products import lines_core, packed_core, panels_core, product_core, window_core

CORES = {
    "product": product_core,
    "packed": packed_core,
    "panels": panels_core,
    "few_rows": few_rows_core,
    "lines_of_few": lines_of_few_core,
    "windows": window_core,
    "lines": lines_core,
}


@dataclass(frozen=True, slots=True)
class ProductCore:
    """A core of matrix products: the address of a function of type `cores.CORE`, and what a caller needs to cut work
    for it.  Rows and columns in multiples of the tile's waste nothing."""

    address: int
    tile: Tile
    code: Loaded  # it goes with its last user

    @property
    def scratch_bytes(self) -> int:
        return self.tile.scratch_bytes


class Library:
    """Functions for the processor of `objects`, made when first asked for and kept for as long as this object lives."""

    def __init__(self, objects: Objects | None = None) -> None:
        self._objects = objects or Objects()
        self.processor = self._objects.processor
        self._kept: dict[str, Loaded] = {}

    def product(self, dtype: str) -> ProductCore:
        """The core of a dtype of `cores.OPERANDS`; KeyError for another one."""
        return self.core(f"product {dtype}")

    def core(self, name: str) -> ProductCore:
        """The core that a kernel asks for: a form of `CORES` and a dtype, such as "product f32"."""
        form, _, dtype = name.partition(" ")
        tile = tile_for(self.processor, dtype)
        loaded = self._get(name, lambda: CORES[form](self.processor, dtype, tile))
        return ProductCore(loaded.address(FUNCTION), tile, loaded)

    def runner(self, clock: bool = False) -> runner.Runner:
        """The functions that walk programs; with a clock they write down when."""
        name = "runner with a clock" if clock else "runner"
        return runner.Runner(self._get(name, lambda: runner.runner_module(self.processor, clock)))

    def _get(self, name: str, make: Callable[[], ir.Module]) -> Loaded:
        if name not in self._kept:
            self._kept[name] = self._objects.loaded(name, make)
        return self._kept[name]
