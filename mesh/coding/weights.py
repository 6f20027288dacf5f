"""CodedWeights: a tensor that is changed again and again, and lies on n workers in shares only.

A share is the state of a session that is pinned to its worker.  Coding is linear, so a change of the tensor is coded
like the tensor and added to the shares: nobody decodes to update.  Changes are numbered, and a share takes change v + 1
and no other when it has had v, in one step with its number: so what is sent twice, late or in another order changes
nothing, and shares of the same number belong together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wire.coding.code import blocks_of, joined
from wire.errors import ExecuteFailed, MeshError, NodeLost, ShapeError

from .. import numpy as mnp

if TYPE_CHECKING:
    from ..client import Session, Step
    from .asking import Coding

State = dict[str, Any]  # "share", and "version": the number of the last change that is in it


def take(state: State, number: Any, change: Any) -> tuple[State, Any]:
    """One step of a share: the change if it is the next one, and the number of the last one that it has."""
    due = mnp.equal(number, state["version"] + 1)
    share = mnp.where(due, state["share"] + change, state["share"])
    version = mnp.where(due, number, state["version"])
    return {"share": share, "version": version}, version


def take_product(state: State, number: Any, left: Any, right: Any) -> tuple[State, Any]:
    """As `take`, of the change left @ right, which is computed where the share is."""
    return take(state, number, left @ right)


class CodedWeights:
    """A tensor of float32 or float64, its first dimension cut in k blocks, in n shares by a Coding.

    With `rank` r, a change is a product (m, r) @ (r, c) and is sent as its factors: the gradient of a linear layer for
    r samples, dy^T @ x.  Otherwise it is a tensor of the whole shape.  Close it, or use it as a context manager.
    """

    def __init__(self, coding: Coding, tensor: Any, *, rank: int | None = None) -> None:
        whole: NDArray[Any] = np.asarray(tensor)
        if whole.ndim == 0 or (rank is not None and whole.ndim != 2):
            raise ShapeError(f"a {whole.ndim}-dimensional tensor has no rows to code, or no factors")
        self.coding, self._shape, self._dtype, self._rank = coding, whole.shape, whole.dtype, rank
        self.version = 0
        self._sessions: dict[int, Session] = {}
        for number, share in enumerate(coding.code.encode(blocks_of(whole, coding.code.k))):
            self._open(number, share)

    @property
    def shares(self) -> tuple[int, ...]:
        """Numbers of the shares that are not known to be lost."""
        return tuple(sorted(self._sessions))

    def update(self, *change: Any) -> int:
        """Add a change to the tensor, and its number, once k shares have it; NodeLost if fewer can.

        With a rank the factors left and right, else one tensor.
        """
        coded = self.coded(*change)
        self.version += 1
        steps = {number: self.send(number, self.version, coded[number]) for number in self.shares}
        taken = self._first(steps)
        if any(version != self.version for version in taken.values()):
            raise ExecuteFailed(f"shares have had the changes {taken}, where {self.version} is the last one")
        return self.version

    def coded(self, *change: Any) -> list[tuple[NDArray[Any], ...]]:
        """What each share is sent of a change; ShapeError if it does not fit."""
        parts = [np.asarray(part, self._dtype) for part in change]
        rows, columns = self._shape[0], self._shape[1:]
        wanted = [self._shape] if self._rank is None else [(rows, self._rank), (self._rank, *columns)]
        if [part.shape for part in parts] != wanted:
            raise ShapeError(f"a change has the shapes {wanted}, got {[part.shape for part in parts]}")
        code = self.coding.code
        return [(share, *parts[1:]) for share in code.encode(blocks_of(parts[0], code.k))]

    def send(self, number: int, version: int, coded: tuple[NDArray[Any], ...]) -> Step:
        """Send one share a change of this number; the step tells the last one it has then.  It may be sent again."""
        return self._sessions[number].step(np.int64(version), *coded)

    def read(self) -> NDArray[Any]:
        """The tensor, of the k shares that come first, and `extra` to check them; NodeLost if fewer can."""
        shares = {number: state["share"] for number, state in self.states().items()}
        agreed = self.coding.agreed(shares)
        if agreed is None:
            raise ExecuteFailed(f"the shares {sorted(shares)} contradict each other", next_step="Read with more extra")
        return joined(self.coding.code.decode(agreed), self._shape[0])

    def states(self) -> dict[int, State]:
        """Shares with their versions, all with the last change in it: the k and `extra` that come first."""
        found = self._first({number: session.begin_state() for number, session in self._sessions.items()})
        behind = [number for number, state in found.items() if int(state["version"]) != self.version]
        if behind:
            raise ExecuteFailed(f"the shares {behind} lack changes that were sent to them")
        return found

    def rebuild(self) -> dict[int, str]:
        """Make the shares that are lost again, of k others, on spare workers; the worker of each.

        What moves is k shares to here and each new one to its worker.
        """
        lost = set(range(self.coding.code.n)) - set(self._sessions)
        moved = {number: worker for number, worker in self.coding.repair().items() if number in lost}
        if moved:
            shares = {number: state["share"] for number, state in self.states().items()}
            blocks = self.coding.code.decode(shares)
            for number in moved:
                self._open(number, self.coding.code.share(number, blocks))
        return moved

    def close(self) -> None:
        """End the sessions, and free the shares."""
        for number in self.shares:
            self._sessions.pop(number).close()

    def __enter__(self) -> CodedWeights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, number: int, share: NDArray[Any]) -> None:
        state = {"share": share, "version": np.int64(self.version)}
        width = () if self._rank is None else (self._rank,)
        step = take if self._rank is None else take_product
        examples = [np.zeros(share.shape if self._rank is None else (share.shape[0], *width), self._dtype)]
        if self._rank is not None:
            examples.append(np.zeros((self._rank, *self._shape[1:]), self._dtype))
        self._sessions[number] = self.coding.mesh.session(
            step, state, np.int64(0), *examples, copies="none", strategy=self.coding.pinned(number)
        )

    def _first(self, steps: dict[int, Step]) -> dict[int, Any]:
        """What the first k and `extra` tell; a share whose worker is lost is given up."""
        wanted, numbers = self.coding.code.k + self.coding.extra, list(steps)
        found: dict[int, Any] = {}
        for place in self.coding.mesh.as_completed(list(steps.values())):
            number = numbers[place]
            try:
                found[number] = steps[number].result()
            except MeshError as error:
                cause = error
                self._sessions.pop(number, None)
            if len(found) == wanted:
                return found
        raise NodeLost(f"{wanted} shares are needed, {len(found)} answered", cause=str(cause))
