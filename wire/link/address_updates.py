"""Address updates: where others can dial this node, as it changes.

A node that listens on one address has that; one that listens on all has those of its interfaces, which come and go with
cables, networks and leases.  Nodes that link from now on learn them from the hello.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..system.steady_log import steady_logger
from .endpoint import Endpoint
from .interfaces import Interface, advertised, check_named, interfaces_here, judge, usable

log = steady_logger("graph_mesh.transport")


class AddressUpdates:
    """The updater keeps the addresses of an endpoint that listens on `host` and `port` up to date.

    `names` are the interfaces to use (none: all that others may reach), `extra` addresses that only its owner knows.
    ConfigError for one that is not there or not allowed.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        host: str,
        port: int,
        names: Sequence[str] = (),
        extra: Sequence[str] = (),
        look: Callable[[], Sequence[Interface]] = interfaces_here,
    ) -> None:
        check_named(look(), names)
        self.judged = judge(look(), names)
        self._endpoint = endpoint
        self._host, self._port = host, port
        self._names, self._extra, self._look = names, extra, look
        endpoint.advertise(self._addresses())

    def moved(self) -> bool:
        """Look again; true if the addresses have changed, which the endpoint then knows."""
        self.judged = judge(self._look(), self._names)
        addresses = self._addresses()
        if addresses == self._endpoint.identity.addresses:
            return False
        self._endpoint.advertise(addresses)
        log.info("this node can now be dialled at %s", ", ".join(addresses) or "no address")
        return True

    def _addresses(self) -> tuple[str, ...]:
        return advertised(self._endpoint.allowed, self._host, self._port, usable(self.judged), self._extra)
