"""Coding: which worker has which share, and how k answers of n are taken.

Every share is asked by an ordinary call that a DeviceMap pins to its worker; the first k answers that agree are taken,
and the other calls are cancelled.  So a worker that dies, hangs or is slow costs nothing but its share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from wire.erasure.parity_check import TOLERANCE, wrong_shares
from wire.erasure.real_mds import Code, Shares
from wire.errors import ExecuteFailed, InputError, MeshError, NodeLost, PlacementError
from wire.ir.graph import WireGraph
from wire.policy.strategies import DeviceMap

from .. import tree
from ..nn import Linear
from ..tree import LEAF, Tree
from ..util.argument_checks import check_number, integer, items, value_text
from .linear import CodedLinear

if TYPE_CHECKING:
    from ..client.mesh import Job, Mesh


class Coding:
    """Shares of layers on n workers of a mesh, any k of which suffice.

    Parameters
    ----------
    mesh : Mesh
        The mesh.
    n : int
        How many shares there are, each on a worker of its own.
    k : int
        How many shares suffice.
    extra : int, optional
        How many answers beyond k are waited for, to check the others: 1 shows that one is wrong, 2 which one.
    workers : sequence of str, optional
        The names of the workers to use; all healthy ones by default.
    tolerance : float, optional
        How far answers may differ, relative to their size.

    Raises
    ------
    InputError
        If a number is out of its range, a worker is not known, or the mesh is reproducible.
    PlacementError
        If there are fewer than n workers.

    Notes
    -----
    A worker that dies, hangs or is slow costs nothing but its share.  docs/coding.md says how shares are made.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> from mesh import nn, random
    >>> layer = nn.Linear.init(random.key(0), 8, 6)
    >>> with mesh.Mesh.builder().simulate(3).build() as m:
    ...     coding = mesh.Coding(m, n=3, k=2)
    ...     coded = coding.layers(layer)
    ...     y = np.asarray(coded(np.ones(8, np.float32)))
    ...     print(sorted(coding.healthy()), coding.spare(), coding.repair(), coded.share_bytes)
    ['sim-0', 'sim-1', 'sim-2'] [] {} 108
    >>> np.allclose(y, layer(np.ones(8, np.float32)), atol=1e-4)
    True
    """

    def __init__(
        self, mesh: Mesh, n: int, k: int, *, extra: int = 0, workers: Sequence[str] | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:  # fmt: skip
        if not hasattr(mesh, "nodes"):
            raise InputError(f"shares are on the workers of a Mesh, not of {value_text(mesh)}")
        if mesh.reproducible:
            raise InputError(
                "coded layers are not reproducible: which k of the n shares answer first decides how their sums round",
                next_step="Run the layers as they are, or build the mesh without reproducible",
            )
        self.mesh = mesh
        self.code = Code(integer(n, "the number of shares"), integer(k, "the number of blocks"))
        check_number(tolerance, "the tolerance of answers", 0.0)
        if not 0 <= integer(extra, "extra, the number of answers beyond k,") <= n - k:
            raise InputError(f"{n} shares for {k} blocks leave {n - k} extra answers, not {extra}")
        self.extra = extra
        self.wrong: Counter[str] = Counter()  # how often a worker's answer was found to be wrong
        self._tolerance = tolerance
        self._numbers = itertools.count()
        self._layers: WeakValueDictionary[int, CodedLinear] = WeakValueDictionary()
        there = list(dict.fromkeys(self._check_workers(workers) if workers else self.healthy()))
        if len(there) < n:
            raise PlacementError(f"{n} shares need {n} workers, there are {len(there)}", next_step="Start more workers")
        self.workers = there[:n]  # of each share

    def layers(self, value: Any) -> Any:
        """Code every Linear of some layers, and put its shares on their workers.

        Parameters
        ----------
        value : pytree
            Layers of `mesh.nn`.

        Returns
        -------
        pytree
            The same with a `CodedLinear` for each Linear.

        Raises
        ------
        InputError
            If there is no Linear.
        """
        leaves, structure = tree.flatten(value)
        replaced: list[Any] = []
        result = tree.unflatten(self._replaced(structure, iter(leaves), replaced), replaced)
        coded = [leaf for leaf in replaced if isinstance(leaf, CodedLinear)]
        if not coded:
            raise InputError("there is no Linear to code", next_step="Pass a layer of mesh.nn, or a pytree of them")
        for layer in coded:
            self._layers[next(self._numbers)] = layer
            self._place(layer, range(self.code.n))
        return result

    def _check_workers(self, workers: Sequence[str]) -> Sequence[str]:
        names = [node.name for node in self.mesh.nodes]
        for name in items(workers, "of names of workers"):
            if name not in names:
                raise InputError(f"there is no worker {name!r}", next_step=f"There are {', '.join(names) or 'none'}")
        return workers

    def __repr__(self) -> str:
        return f"<Coding: any {self.code.k} of {self.code.n} shares, on {self.mesh!r}>"

    def healthy(self) -> list[str]:
        """List the workers that can be asked.

        Returns
        -------
        list of str
            Their names.
        """
        return [node.name for node in self.mesh.nodes if node.state == "healthy"]

    def spare(self) -> list[str]:
        """List the healthy workers that have no share.

        Returns
        -------
        list of str
            Their names.
        """
        return [name for name in self.healthy() if name not in self.workers]

    def repair(self) -> dict[int, str]:
        """Give the shares of workers that are dead, gone or paused to spare ones; nothing else moves.

        Returns
        -------
        dict of int to str
            The new worker of each share that moved.
        """
        there = {node.name for node in self.mesh.nodes if node.state not in ("dead", "left", "paused")}
        lost = [number for number, worker in enumerate(self.workers) if worker not in there]
        moved = dict(zip(lost, self.spare(), strict=False))
        for number, worker in moved.items():
            self.workers[number] = worker
        for layer in list(self._layers.values()):
            self._place(layer, moved)
        return moved

    def pinned(self, number: int) -> DeviceMap:
        """Choose the strategy that has a share computed by its worker, and by no other.

        Parameters
        ----------
        number : int
            The share's number, from 0.

        Returns
        -------
        DeviceMap
            The strategy.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> from mesh import nn, random
        >>> with mesh.Mesh.builder().simulate(3).build() as m:
        ...     print(mesh.Coding(m, n=3, k=2, workers=["sim-0", "sim-1", "sim-2"]).pinned(1).rows[0].worker)
        sim-1
        """
        return DeviceMap().layer("", self.workers[number])

    def ask(self, graph: WireGraph, given: Sequence[tuple[Any, ...]]) -> Shares:
        """Evaluate a graph for every share, and take the first answers that agree.

        Parameters
        ----------
        graph : WireGraph
            A graph of one output.
        given : sequence of tuple
            The arguments for each share.

        Returns
        -------
        mapping of int to ndarray
            At least k answers, by the number of the share.

        Raises
        ------
        NodeLost
            If fewer than k answers can come.
        ExecuteFailed
            If answers contradict each other, and nobody can say which are wrong.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> from mesh import nn, random
        >>> double = mesh.trace(lambda x: x * 2, np.ones(1))
        >>> with mesh.Mesh.builder().simulate(3).build() as m:
        ...     answers = mesh.Coding(m, n=3, k=3).ask(double, [(np.array([x]),) for x in (1.0, 2.0, 3.0)])
        >>> [float(answers[number][0]) for number in sorted(answers)]
        [2.0, 4.0, 6.0]
        """
        jobs = [self._submit(number, graph, args) for number, args in enumerate(given)]
        answers: dict[int, Any] = {}
        errors: list[MeshError] = []
        try:
            for number in self.mesh.as_completed(jobs):
                try:
                    answers[number] = jobs[number].result()
                except MeshError as error:
                    errors.append(error)
                    continue
                if len(answers) >= self.code.k + self.extra and (agreed := self.agreed(answers)) is not None:
                    return agreed
        finally:
            for job in jobs:
                job.cancel()
        if len(answers) < self.code.k + self.extra:
            raise NodeLost(
                f"{self.code.k + self.extra} answers are needed, {len(answers)} of {self.code.n} came",
                cause=str(errors[-1]),
                next_step="Call repair() with more workers, or code with fewer blocks",
            )
        raise ExecuteFailed(
            f"the answers of {self._names(answers)} contradict each other, and it takes more to say who is wrong",
            next_step=f"{self.code.k + 2} answers show which one it is: code with more shares",
        )

    def agreed(self, answers: Shares) -> Shares | None:
        """Leave out the answers that are wrong.

        Parameters
        ----------
        answers : mapping of int to ndarray
            Answers by the number of the share.

        Returns
        -------
        mapping of int to ndarray, or None
            The others; None if nobody can say which are wrong.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> from mesh import nn, random
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     print(sorted(mesh.Coding(m, n=2, k=1).agreed({0: np.ones(2), 1: np.ones(2)})))
        [0, 1]
        """
        if not self.extra:
            return answers
        wrong = wrong_shares(self.code, answers, self._tolerance)
        if wrong is None:
            return None
        self.wrong.update(self.workers[number] for number in wrong)
        return {number: answer for number, answer in answers.items() if number not in wrong}

    def _place(self, layer: CodedLinear, numbers: Iterable[int]) -> None:
        """Compute a layer once with these shares, to the end: calls that are cancelled may leave shares behind."""
        jobs = [self._submit(number, *layer.trial(number)) for number in numbers]
        for place in self.mesh.as_completed(jobs):
            with contextlib.suppress(MeshError):  # whoever dies meanwhile is dealt with as later
                jobs[place].result()

    def _submit(self, number: int, graph: WireGraph, args: tuple[Any, ...]) -> Job:
        return self.mesh.submit(graph, *args, strategy=self.pinned(number), mode="on")

    def _names(self, numbers: Mapping[int, Any]) -> str:
        return ", ".join(self.workers[number] for number in sorted(numbers))

    def _replaced(self, structure: Tree, leaves: Iterator[Any], replaced: list[Any]) -> Tree:
        if structure.kind is Linear:
            layer = tree.unflatten(structure, [next(leaves) for _ in range(structure.leaf_count)])
            replaced.append(CodedLinear(self, layer))
            return LEAF
        if structure.kind is None:
            replaced.append(next(leaves))
        children = [self._replaced(child, leaves, replaced) for child in structure.children]
        return dataclasses.replace(structure, children=tuple(children))
