"""CodedWeights: a tensor that is changed again and again, and lies on n workers in shares only.

A share is the state of a session that is pinned to its worker.  Coding is linear, so a change of the tensor is coded
like the tensor and added to the shares: nobody decodes to update.  Changes are numbered, and a share takes change v + 1
and no other when it has had v, in one step with its number: so what is sent twice, late or in another order changes
nothing, and shares of the same number belong together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wire.erasure.real_mds import Shares, blocks_of, joined
from wire.errors import ConfigError, ExecuteFailed, InputError, MeshError, NodeLost, ShapeError

from .. import numpy as mnp
from ..util.argument_checks import integer, items, value_text

if TYPE_CHECKING:
    from ..client.mesh import Session, Step
    from .coded_calls import Coding

State = dict[str, Any]  # "share", and "version": the number of the last change that is in it


def take(state: State, number: Any, change: Any) -> tuple[State, Any]:
    """Take a change if it is the next one; the state, and the number of the last change in it."""
    due = mnp.equal(number, state["version"] + 1)
    share = mnp.where(due, state["share"] + change, state["share"])
    version = mnp.where(due, number, state["version"])
    return {"share": share, "version": version}, version


def take_product(state: State, number: Any, left: Any, right: Any) -> tuple[State, Any]:
    """Take the change left @ right, which is computed where the share is."""
    return take(state, number, left @ right)


class CodedWeights:
    """A tensor that is changed again and again, and lies on n workers in shares only.

    Close it, or use it as a context manager, to free the shares.

    Parameters
    ----------
    coding : Coding
        The workers and the code.
    tensor : array_like
        The first value, float32 or float64; its first dimension is cut in k blocks.
    rank : int, optional
        With a rank r, a change is a product (m, r) @ (r, c), and is sent as its factors.

    Raises
    ------
    InputError
        If it is no Coding, or the rank is no int from 1.
    ShapeError
        If the tensor has no rows, or a rank is given and it is no matrix.

    Notes
    -----
    Coding is linear, so a change is coded like the tensor and added to the shares: nobody decodes to update.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> from mesh import nn, random
    >>> with mesh.Mesh.builder().simulate(3).build() as m:
    ...     with mesh.CodedWeights(mesh.Coding(m, n=3, k=2), np.zeros((4, 1))) as weights:
    ...         print(weights.update(np.ones((4, 1))), weights.shares, len(weights.states()))
    ...         print(weights.rebuild(), np.round(weights.read(), 3).tolist())
    ...         step = weights.send(0, 1, weights.coded(np.ones((4, 1)))[0])
    ...         print(step.result())  # share 0 has had change 1 already
    1 (0, 1, 2) 2
    {} [[1.0], [1.0], [1.0], [1.0]]
    1
    """

    def __init__(self, coding: Coding, tensor: Any, *, rank: int | None = None) -> None:
        if not hasattr(coding, "code"):
            raise InputError(f"{value_text(coding)} is no Coding", next_step="Make one: mesh.Coding(m, n=5, k=3)")
        rank = None if rank is None else integer(rank, "the rank of changes", 1)
        array: NDArray[Any] = np.asarray(tensor)
        if array.ndim == 0 or (rank is not None and array.ndim != 2):
            raise ShapeError(f"a {array.ndim}-dimensional tensor has no rows to code, or no factors")
        self.coding, self._shape, self._dtype, self._rank = coding, array.shape, array.dtype, rank
        self.version = 0
        self._sessions: dict[int, Session] = {}
        self._closed = False
        for number, share in enumerate(coding.code.encode(blocks_of(array, coding.code.k))):
            self._open(number, share)

    def __repr__(self) -> str:
        code = self.coding.code
        how = "closed" if self._closed else f"{len(self._sessions)} of {code.n} shares, any {code.k} of which suffice"
        return f"<CodedWeights: {list(self._shape)}, version {self.version}, {how}>"

    @property
    def shares(self) -> tuple[int, ...]:
        """The numbers of the shares that are not known to be lost."""
        return tuple(sorted(self._sessions))

    def update(self, *change: Any) -> int:
        """Add a change to the tensor.

        Parameters
        ----------
        *change : array_like
            One tensor of the whole shape, or with a rank the factors left and right.

        Returns
        -------
        int
            The number of the change, once k shares have it.

        Raises
        ------
        ShapeError
            If the change does not fit.
        NodeLost
            If fewer than k shares can have it.
        ConfigError
            If the weights are closed.
        """
        coded = self.coded(*change)
        self.version += 1
        steps = {number: self.send(number, self.version, coded[number]) for number in self.shares}
        taken = self._first(steps, self.coding.code.k, self.coding.code.k)
        if any(version != self.version for version in taken.values()):
            raise ExecuteFailed(f"shares have had the changes {taken}, where {self.version} is the last one")
        return self.version

    def coded(self, *change: Any) -> list[tuple[NDArray[Any], ...]]:
        """Compute what each share is sent of a change.

        Parameters
        ----------
        *change : array_like
            One tensor of the whole shape, or with a rank the factors left and right.

        Returns
        -------
        list of tuple of ndarray
            The arrays for each share.

        Raises
        ------
        InputError
            If the change is not of arrays.
        ShapeError
            If it does not fit.
        """
        try:
            parts = [np.asarray(part, self._dtype) for part in change]
        except (TypeError, ValueError) as error:
            raise InputError("a change is of arrays", cause=str(error)) from None
        rows, columns = self._shape[0], self._shape[1:]
        wanted = [self._shape] if self._rank is None else [(rows, self._rank), (self._rank, *columns)]
        if [part.shape for part in parts] != wanted:
            raise ShapeError(f"a change has the shapes {wanted}, got {[part.shape for part in parts]}")
        code = self.coding.code
        return [(share, *parts[1:]) for share in code.encode(blocks_of(parts[0], code.k))]

    def send(self, number: int, version: int, coded: tuple[NDArray[Any], ...]) -> Step:
        """Send one share a change; it may be sent again.

        Parameters
        ----------
        number : int
            The share's number, from 0.
        version : int
            The change's number, from 1.
        coded : tuple of ndarray
            What `coded` gave for the share.

        Returns
        -------
        Step
            The step, whose result is the number of the last change that the share has.

        Raises
        ------
        InputError
            If there is no such share, or it is lost.
        ConfigError
            If the weights are closed.
        """
        if self._closed:
            raise ConfigError("these weights are closed")
        if number not in self._sessions:
            raise InputError(f"there is no share {number!r}, or it is lost", next_step=f"There are {self.shares}")
        integer(version, "the number of a change", 0, 2**63)
        return self._sessions[number].step(np.int64(version), *items(coded, "of what a share is sent, by coded(),"))

    def read(self) -> NDArray[Any]:
        """Fetch and decode the tensor.

        Returns
        -------
        ndarray
            The tensor, of the first shares that come.

        Raises
        ------
        NodeLost
            If fewer than k shares can come.
        ExecuteFailed
            If shares contradict each other, and nobody can say which are wrong.
        """
        return joined(self.coding.code.decode(self._agreed(self.states())), self._shape[0])

    def states(self) -> dict[int, State]:
        """Fetch the first k shares that come, and `extra` to check them.

        Returns
        -------
        dict of int to dict
            Shares with their versions, by number; all have the last change.

        Raises
        ------
        NodeLost
            If fewer can come.
        """
        return self._states(self.coding.code.k + self.coding.extra)

    def rebuild(self) -> dict[int, str]:
        """Make lost shares again from k others, on spare workers where theirs are dead.

        Returns
        -------
        dict of int to str
            The worker of each share that was made again.

        Raises
        ------
        NodeLost
            If fewer than k shares are left.
        """
        self.coding.repair()
        there = self.coding.healthy()
        workers = dict(enumerate(self.coding.workers))
        lost = {number: at for number, at in workers.items() if number not in self._sessions and at in there}
        if lost:
            left = self._states(self.coding.code.k)  # it may be that there are no more to check them
            blocks = self.coding.code.decode(self._agreed(left))
            for number in lost:
                self._open(number, self.coding.code.share(number, blocks))
        return lost

    def close(self) -> None:
        """End the sessions, and free the shares."""
        self._closed = True
        for number in self.shares:
            self._sessions.pop(number).close()

    def __enter__(self) -> CodedWeights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _agreed(self, states: dict[int, State]) -> Shares:
        """The shares that agree; ExecuteFailed if they contradict each other, and nobody can say which is wrong."""
        agreed = self.coding.agreed({number: state["share"] for number, state in states.items()})
        if agreed is None:
            raise ExecuteFailed(
                f"the shares {sorted(states)} contradict each other, and it takes more to say which is wrong",
                next_step="Make the Coding with a larger extra: 2 show one wrong share",
            )
        return agreed

    def _open(self, number: int, share: NDArray[Any]) -> None:
        state = {"share": share, "version": np.int64(self.version)}
        step: Callable[..., Any] = take
        shapes = [share.shape]
        if self._rank is not None:
            step, shapes = take_product, [(share.shape[0], self._rank), (self._rank, *self._shape[1:])]
        examples = [np.zeros(shape, self._dtype) for shape in shapes]
        self._sessions[number] = self.coding.mesh.session(
            step, state, np.int64(0), *examples, copies="none", strategy=self.coding.pinned(number)
        )

    def _states(self, needed: int) -> dict[int, State]:
        """The first shares with their versions, of which `needed` must come."""
        asked = {number: session.begin_state() for number, session in self._sessions.items()}
        states = self._first(asked, needed, self.coding.code.k + self.coding.extra)
        behind = [number for number, state in states.items() if int(state["version"]) != self.version]
        if behind:
            raise ExecuteFailed(f"the shares {behind} lack changes that were sent to them")
        return states

    def _first(self, steps: dict[int, Step], needed: int, wanted: int) -> dict[int, Any]:
        """The results of the first `wanted` steps; a share whose worker is lost is given up.

        NodeLost for fewer than `needed`.
        """
        if self._closed:
            raise ConfigError("these weights are closed")
        numbers, why = list(steps), "the others were lost before"
        results: dict[int, Any] = {}
        for place in self.coding.mesh.as_completed(list(steps.values())):
            number = numbers[place]
            try:
                results[number] = steps[number].result()
            except MeshError as error:
                why = str(error)
                self._sessions.pop(number).close()
            if len(results) == wanted:
                return results
        if len(results) >= needed:
            return results
        raise NodeLost(
            f"{needed} shares are needed, {len(results)} answered",
            cause=why,
            next_step=f"Call rebuild(), which needs {self.coding.code.k}; with fewer the tensor is lost",
        )
