"""The library: native functions that know no graph, which all programs of a process share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import products, runner
from .llvm import Loaded, Processor, ir, machine_code, this_processor


@dataclass(frozen=True, slots=True)
class ProductCore:
    """A core of matrix products: the address of a function of type `products.CORE`, and what a caller needs to cut work
    for it.  Rows and columns in multiples of the tile's waste nothing."""

    address: int
    tile: products.Tile

    @property
    def scratch_bytes(self) -> int:
        return self.tile.scratch_bytes


class Library:
    """Functions for this processor, made when they are first asked for and kept for as long as this object lives."""

    def __init__(self, processor: Processor | None = None) -> None:
        self.processor = processor or this_processor()
        self._loaded: dict[str, Loaded] = {}

    def product(self, kind: str) -> ProductCore:
        """The core of a kind of `products.KINDS`; KeyError for another one."""
        tile = products.tile_for(self.processor, kind)
        loaded = self._get(f"product {kind}", lambda: products.product_core(self.processor, kind, tile))
        return ProductCore(loaded.address(products.FUNCTION), tile)

    def windows(self, kind: str) -> ProductCore:
        """The core of products whose B is read through tables."""
        tile = products.tile_for(self.processor, kind)
        loaded = self._get(f"windows {kind}", lambda: products.window_core(self.processor, kind, tile))
        return ProductCore(loaded.address(products.FUNCTION), tile)

    def core(self, name: str) -> ProductCore:
        """The core that a kernel asks for: "product f32", "windows f64"."""
        form, _, kind = name.partition(" ")
        return self.windows(kind) if form == "windows" else self.product(kind)

    def runner(self) -> runner.Runner:
        """The functions that walk programs."""
        loaded = self._get("runner", lambda: runner.runner_module(self.processor))
        return runner.Runner(loaded.address)

    def _get(self, name: str, make: Callable[[], ir.Module]) -> Loaded:
        if name not in self._loaded:
            self._loaded[name] = Loaded(machine_code(make(), self.processor))
        return self._loaded[name]
