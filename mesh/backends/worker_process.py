"""Worker: one `mesh-worker` on this machine, for meshes that are built of addresses.

    with mesh.Worker("anna") as anna, mesh.Worker("berta", device="cpu") as berta:
        with mesh.Mesh.builder().node(anna.address).node(berta.address).build() as m: ...

It is what `Mesh.builder().local(2)` starts, and ends with this process at the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType

from wire.addresses import check_name
from wire.security.user_secret import user_secret

from ..core.loop_thread import LoopThread
from ..util.argument_checks import items
from ..util.did_you_mean import names_checked
from .config import default_mesh_name
from .enrolment import at_home
from .local_workers import LocalWorkers, devices_per_worker, thread_count


class Worker:
    """A `mesh-worker` process on this machine, at a free port of loopback.

    It starts when it is made.  Close it, or use it as a context manager.

    Parameters
    ----------
    name : str, optional
        Its name in the mesh.
    device : str or sequence of str, optional
        What `mesh-worker --device` takes, or several.
    threads : int, optional
        How many threads its native engine has; by default as many as there are cores.
    mesh : str, optional
        The name of its mesh; by default that of this user's other nodes.

    Raises
    ------
    ConnectFailed
        If it does not start; its log is the cause.
    ConfigError
        If something is no name.

    Examples
    --------
    >>> import mesh
    >>> with mesh.Worker("anna", device="cpu", mesh="home") as anna:
    ...     with mesh.Mesh.builder().mesh("home").node(anna.address).build() as m:
    ...         [node.name for node in m.nodes]
    ['anna']
    """

    @names_checked
    def __init__(
        self, name: str = "worker", *, device: str | Sequence[str] = "auto", threads: int | None = None, mesh: str = ""
    ) -> None:
        self.name = check_name("worker", name)
        asked = [device] if isinstance(device, str) else [*items(device, "of names of devices")]
        devices = [name for names in devices_per_worker(len(asked), asked) for name in names]
        mesh = default_mesh_name() if isinstance(mesh, str) and not mesh else check_name("mesh", mesh)
        members = at_home(mesh)
        secret = b"" if members else user_secret()  # for this user's other programs
        self._process = LocalWorkers(mesh, members=members, threads=thread_count(threads), secret=secret)
        self._loop = LoopThread(asyncio.new_event_loop)
        try:
            (self._worker,) = self._loop.wait(self._process.start([devices], [name]))
        except BaseException:
            self._loop.stop()
            raise

    def __repr__(self) -> str:
        return f"<Worker {self.name}: {'closed' if self._loop.stopped else self.address}>"

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._worker.pid

    @property
    def address(self) -> str:
        """The address that it listens on, for `Mesh.builder().node(address)`."""
        return f"127.0.0.1:{self._worker.port}"

    def close(self) -> None:
        """End it in order, or by force after 2.5 s.

        Examples
        --------
        >>> import mesh
        >>> worker = mesh.Worker("anna", device="cpu", mesh="home")
        >>> worker.close()
        >>> worker
        <Worker anna: closed>
        """
        if not self._loop.stopped:
            self._loop.wait(self._process.close())
        self._loop.stop()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


__all__ = ["Worker"]
