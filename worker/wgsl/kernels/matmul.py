"""dot and conv: their operands, the form that suits them, and its kernel.

To add a form of another kind: a family in `FAMILIES`, and its rows in `product_forms.py`.
"""

from __future__ import annotations

from dataclasses import replace

from ..kernel_ir import Kernel
from .frame import Frame
from .operands import runs_along, sides_of
from .product import Product
from .product_broadcast import BroadcastProduct
from .product_forms import Sizes, choose
from .product_line import LineProduct
from .product_tiles import TiledProduct

FAMILIES: dict[str, type[Product]] = {"tiles": TiledProduct, "broadcast": BroadcastProduct, "line": LineProduct}


def lower_matmul(frame: Frame) -> list[Kernel]:
    """One kernel; no axis of the product is empty."""
    (product,) = frame.group.anchors
    left, right = sides_of(frame, product)
    if right.free == 1:
        left, right = right, left  # a column of results lies as a row does
    along = runs_along(frame, right)
    sizes = Sizes(left.batch, left.free, right.free, left.length, along, frame.dtype(product))
    form, choice = choose(sizes, frame.profile)
    return [replace(FAMILIES[form.family](frame, left, right, form).kernel(), choice=choice)]
