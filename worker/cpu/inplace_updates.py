"""Updates in place: what a run may write over, and the rows that were there.

`inplace_analysis.py` finds the updates whose old tensor nobody reads any more; here is what owns its memory at run
time: tensors that were made in this run, and inputs that were lent to it (worker/engine/donation.py), whose old rows
are remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from wire.ir.types import Attrs, HostArray

from ..engine.donation import Lent, Undo
from ..engine.line_aligned import is_all_of
from .structural import Remember, scatter_into, update_into

Update = Callable[[HostArray, Attrs, Sequence[HostArray], Remember], None]
INTO: dict[str, Update] = {"scatter": scatter_into, "dynamic_update_slice": update_into}


class Writing:
    """The memory of one run.  `foreign` are arrays that nobody may write to; inputs that are not lent are among them,
    and so are those that are lent twice."""

    def __init__(self, inputs: Sequence[Any], given: Sequence[HostArray], foreign: Iterable[HostArray]) -> None:
        roots = [root_of(array) for array in given]
        self._foreign = {id(root_of(array)) for array in foreign}
        self._lent: dict[int, Lent] = {}
        if not any(isinstance(operand, Lent) for operand in inputs):
            self._foreign.update(map(id, roots))
            return
        times = Counter(map(id, roots))
        for operand, root, array in zip(inputs, roots, given, strict=True):
            alone = isinstance(operand, Lent) and times[id(root)] == 1 and root is root_of(operand.array)
            if alone and id(root) not in self._foreign and _is_whole(root, array):
                self._lent[id(root)] = operand
            else:
                self._foreign.add(id(root))

    def updated(self, op: str, attrs: Attrs, operands: Sequence[HostArray]) -> HostArray | None:
        """The first operand updated where it is, None if its memory belongs to another owner."""
        array = operands[0]
        root = root_of(array)
        if id(root) in self._foreign or not (array.flags.writeable and array.flags.c_contiguous):
            return None
        lent = self._lent.get(id(root))
        if lent is not None and not is_all_of(array, root):
            return None
        INTO[op](array, attrs, operands, _forget if lent is None else lent.undo.append)
        return array

    def owned(self, outputs: Sequence[HostArray]) -> list[HostArray]:
        """Outputs that share memory neither with inputs and constants nor with each other, and keep no more alive than
        they show; `lent` learns which of them have its memory."""
        taken, owned = set(self._foreign), []
        for place, array in enumerate(outputs):
            root = root_of(array)
            borrowed = not root.flags.owndata and id(root) not in self._lent
            if borrowed or id(root) in taken or not is_all_of(array, root) or not array.flags.writeable:
                array = root = array.copy()
            elif id(root) in self._lent:
                self._lent[id(root)].output = place
            taken.add(id(root))
            owned.append(array)
        for lent in self._lent.values():
            if lent.output is None:
                lent.take_back()
        return owned

    def failed(self) -> None:
        """The run ends without outputs: what was lent is as it was."""
        for lent in self._lent.values():
            lent.take_back()


def root_of(array: HostArray) -> HostArray:
    """The array that owns the memory, or borrowed it from something that is no array."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _is_whole(root: HostArray, array: HostArray) -> bool:
    return bool(root.flags.owndata and root.flags.writeable and is_all_of(array, root))


def _forget(_undo: Undo) -> None:
    return
