"""Names of other programs for what this one has by another name; docs/originals.md is the table of them.

    parts = mesh.auto_partition(graph, m)                         # m.plan(graph)
    after = mesh.FaultHandler.handle_failure(["anna"], graph, m)  # m.plan(graph, what_if_dies="anna").what_if_dies
    mesh.HealthMonitor(m).dead_nodes()                            # the states of m.nodes

To add a name: an alias or a few lines here, the stub `__init__.pyi`, and a row of that page.  A name that this program
cannot have is a row of `util/missing_names.py`, which says what to write in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from wire.errors import InputError
from wire.ir.graph import WireGraph
from wire.policy.strategies import Strategy

from .client.async_mesh import AsyncMesh
from .client.mesh import Mesh
from .client.plan_preview import PlanPreview
from .core.array import Array
from .core.node import Node
from .numpy import asarray, where
from .util.argument_checks import items, value_text
from .util.did_you_mean import names_checked
from .util.missing_names import missing_name_error

Coordinator = Mesh  # a Mesh has its coordinator within, unless it is a client of `mesh-coord serve`


@names_checked
def select(condition: Any, a: Any, b: Any) -> Array:
    """Take a where a condition is true, and b elsewhere.

    A float condition is true above 0, so not for NaN; `mesh.numpy.where` follows numpy, for which NaN is true.

    Parameters
    ----------
    condition : array_like of bool, int or float
        What decides.
    a : array_like
        The values where it is true.
    b : array_like
        The values elsewhere.

    Returns
    -------
    Array
        The values, of the shape that the three have together by broadcasting.

    Raises
    ------
    InputError
        If the condition is complex.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> np.asarray(mesh.select(np.array([-1.0, np.nan, 2.0]), 1, 0))
    array([0, 0, 1], dtype=int32)
    """
    asked = asarray(condition)
    if asked.type.dtype.kind == "c":
        raise InputError(f"a condition is of bools, integers or floats, not {asked.type}")
    return where(asked > 0 if asked.type.dtype.kind == "f" else asked, a, b)


@names_checked
def partition(graph: WireGraph, mesh: Mesh, strategy: str | Strategy = "auto") -> PlanPreview:
    """Show which part of a graph goes to which worker, before a byte moves.

    It is `Mesh.plan`, which takes functions, too.

    Parameters
    ----------
    graph : WireGraph
        What to place.
    mesh : Mesh
        Where.
    strategy : str or Strategy, optional
        How.

    Returns
    -------
    PlanPreview
        The plan.

    Raises
    ------
    InputError
        If something is no graph, no Mesh or no strategy.
    PlacementError
        If no placement fits.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> graph = mesh.trace(lambda x: x @ x, np.ones((4, 4), np.float32))
    >>> with mesh.Mesh.builder().simulate(2).build() as m:
    ...     mesh.partition(graph, m, mesh.DeviceMap().layer("", "sim-1")).workers
    ('sim-1',)
    """
    return _mesh(mesh, "partition").plan(_graph(graph, "partition"), strategy=strategy)


@names_checked
def auto_partition(graph: WireGraph, mesh: Mesh) -> PlanPreview:
    """Show where a graph goes by the strategy that is predicted to be fastest, which may be one worker.

    Parameters
    ----------
    graph : WireGraph
        What to place.
    mesh : Mesh
        Where.

    Returns
    -------
    PlanPreview
        The plan.

    Raises
    ------
    InputError
        If something is no graph or no Mesh.
    PlacementError
        If no placement fits.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> graph = mesh.trace(lambda x: x @ x, np.ones((4, 4), np.float32))
    >>> with mesh.Mesh.builder().simulate(2).build() as m:
    ...     len(mesh.auto_partition(graph, m).workers)
    1
    """
    return _mesh(mesh, "auto_partition").plan(_graph(graph, "auto_partition"))


class FaultHandler:
    """What a mesh does when a worker dies, asked about in advance.

    A mesh handles failures by itself: nobody has to call this.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> graph = mesh.trace(lambda x: x @ x, np.ones((4, 4), np.float32))
    >>> with mesh.Mesh.builder().simulate(2).build() as m:
    ...     mesh.FaultHandler.handle_failure(["sim-0"], graph, m).workers
    ('sim-1',)
    """

    @staticmethod
    @names_checked
    def handle_failure(
        dead_nodes: Sequence[str | Node], graph: WireGraph, mesh: Mesh, strategy: str | Strategy = "auto"
    ) -> PlanPreview:
        """Show the plan of a graph without a worker.

        Parameters
        ----------
        dead_nodes : sequence of str or Node
            The worker that dies, by its name or as a Node of `mesh.nodes`; it may be alive.
        graph : WireGraph
            What to place.
        mesh : Mesh
            Where.
        strategy : str or Strategy, optional
            How.

        Returns
        -------
        PlanPreview
            The plan after the death.

        Raises
        ------
        InputError
            If it is not one worker of the mesh, or something is no graph, no Mesh or no strategy.

        Examples
        --------
        >>> import numpy as np
        >>> import mesh
        >>> graph = mesh.trace(lambda x: x @ x, np.ones((4, 4), np.float32))
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     mesh.FaultHandler.handle_failure(["sim-1"], graph, m, "pipeline").workers
        ('sim-0',)
        """
        names = [_name(node) for node in items([dead_nodes] if isinstance(dead_nodes, str) else dead_nodes, "of nodes")]
        if len(names) != 1:
            raise InputError(
                f"a mesh is asked about the death of one worker at a time, not of {len(names)}",
                next_step="Ask about each: handle_failure(['anna'], graph, mesh)",
            )
        asked = _mesh(mesh, "handle_failure"), _graph(graph, "handle_failure")
        planned = asked[0].plan(asked[1], strategy=strategy, what_if_dies=names[0])
        return PlanPreview(planned.what_if_dies["plan"])


class HealthMonitor:
    """The view of which workers of a mesh are alive.

    Workers send heartbeats by themselves, at the interval of `Mesh.builder().heartbeat(seconds)`.

    Parameters
    ----------
    mesh : Mesh
        The mesh.

    Raises
    ------
    InputError
        If it is no Mesh.

    Examples
    --------
    >>> import mesh
    >>> with mesh.Mesh.builder().simulate(2).build() as m:
    ...     mesh.HealthMonitor(m)
    <HealthMonitor: sim-0 healthy, sim-1 healthy>
    """

    @names_checked
    def __init__(self, mesh: Mesh) -> None:
        self._mesh = _mesh(mesh, "HealthMonitor")
        self._dead = set(self.dead_nodes())

    def __repr__(self) -> str:
        return f"<HealthMonitor: {', '.join(f'{node.name} {node.state}' for node in self._mesh.nodes) or 'no worker'}>"

    if not TYPE_CHECKING:  # which would take any name then

        def __getattr__(self, name: str) -> Any:
            raise missing_name_error("mesh.HealthMonitor", name)

    @names_checked
    def state(self, node: str | Node) -> str | None:
        """Return the state of a worker.

        Parameters
        ----------
        node : str or Node
            The worker, by its name or as a Node of `mesh.nodes`.

        Returns
        -------
        str or None
            "healthy", "suspect", "dead" or another state of `Node.state`; None if there is no such worker.

        Raises
        ------
        InputError
            If it is neither a name nor a Node.

        Examples
        --------
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     mesh.HealthMonitor(m).state("sim-1")
        'healthy'
        """
        name = _name(node)
        return next((node.state for node in self._mesh.nodes if node.name == name), None)

    def healthy_nodes(self) -> tuple[str, ...]:
        """Return which workers are healthy.

        Returns
        -------
        tuple of str
            Their names.

        Examples
        --------
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     mesh.HealthMonitor(m).healthy_nodes()
        ('sim-0', 'sim-1')
        """
        return self._named("healthy")

    def dead_nodes(self) -> tuple[str, ...]:
        """Return which workers are dead.

        Returns
        -------
        tuple of str
            Their names.

        Examples
        --------
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     mesh.HealthMonitor(m).dead_nodes()
        ()
        """
        return self._named("dead")

    def tick(self) -> tuple[str, ...]:
        """Return which workers are dead, and were not at the last tick.

        Returns
        -------
        tuple of str
            Their names.

        Examples
        --------
        >>> import mesh
        >>> with mesh.Mesh.builder().simulate(2).build() as m:
        ...     mesh.HealthMonitor(m).tick()
        ()
        """
        dead = self.dead_nodes()
        newly = tuple([name for name in dead if name not in self._dead])
        self._dead = set(dead)
        return newly

    def _named(self, state: str) -> tuple[str, ...]:
        return tuple([node.name for node in self._mesh.nodes if node.state == state])


def _mesh(mesh: object, asker: str) -> Mesh:
    if not isinstance(mesh, Mesh):
        build = "Build one: mesh.Mesh.builder()...build()"
        step = "Write await mesh.plan(graph)" if isinstance(mesh, AsyncMesh) else build
        raise InputError(f"{asker} takes a Mesh, not {value_text(mesh)}", next_step=step)
    return mesh


def _graph(graph: object, asker: str) -> WireGraph:
    if not isinstance(graph, WireGraph):
        raise InputError(
            f"{asker} takes a WireGraph, not {value_text(graph)}",
            next_step="Trace the function: mesh.trace(fn, *examples)",
        )
    return graph


def _name(node: object) -> str:
    name = node if isinstance(node, str) else getattr(node, "name", None)
    if not isinstance(name, str):
        raise InputError(f"a worker goes by its name or its Node, not by {value_text(node)}")
    return name


__all__ = ["Coordinator", "FaultHandler", "HealthMonitor", "auto_partition", "partition", "select"]
