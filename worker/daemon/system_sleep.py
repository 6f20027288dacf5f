"""System sleep: hears from systemd-logind that this machine goes to sleep, and holds that up until the worker has left.

The one door to D-Bus.  Where there is no system bus, no logind on it or no jeepney to speak with it (macOS, Windows,
containers), nothing is heard and nothing is lost but good manners: `wire/link/sleep_detector.py` notices a sleep once
it is over.  https://systemd.io/INHIBITOR_LOCKS
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from wire.system.steady_log import steady_logger
from wire.system.tasks import Tasks, unheard

log = steady_logger("graph_mesh.worker")

LOGIND = "org.freedesktop.login1"
PATH = "/org/freedesktop/login1"
BUS = "org.freedesktop.DBus"
MANAGER = "org.freedesktop.login1.Manager"


class SleepWatch:
    """`sleeps` is called when the machine is about to sleep, which waits for what that returns; `wakes` afterwards."""

    def __init__(self, sleeps: Callable[[], Awaitable[None]], wakes: Callable[[], None]) -> None:
        self._sleeps = sleeps
        self._wakes = wakes
        self._bus: Any = None
        self._lock: Any = None  # the descriptor that holds a sleep up until it is closed
        self._asked = 0  # serial number of the last request for one
        self._logind: str | None = None  # the bus's own name of what answered it
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks = Tasks()

    async def run(self) -> None:
        """Listen; returns where there is nobody to listen to, or no more."""
        self._bus = await asyncio.to_thread(_system_bus)
        if self._bus is None:
            return
        loop, socket = asyncio.get_running_loop(), self._bus.sock
        loop.add_reader(socket, self._readable)
        try:
            self._subscribe()
            self._hold()
            self._readable()  # what came along with the greeting
            await self._over
            log.warning("the system's bus is gone: that this machine goes to sleep is not heard any more")
        finally:
            loop.remove_reader(socket)
            self._bus.close()
            self._let_go()
            self._tasks.cancel()

    def _subscribe(self) -> None:
        from jeepney import MatchRule, message_bus

        sleeps = MatchRule(type="signal", sender=LOGIND, path=PATH, interface=MANAGER, member="PrepareForSleep")
        restarts = MatchRule(type="signal", sender=BUS, interface=BUS, member="NameOwnerChanged")
        restarts.add_arg_condition(0, LOGIND)
        for rule in (sleeps, restarts):
            self._bus.send(message_bus.AddMatch(rule))

    def _hold(self) -> None:
        """Ask for a lock: from its grant on, a sleep waits a few seconds for us."""
        from jeepney import DBusAddress, new_method_call

        manager = DBusAddress(PATH, LOGIND, MANAGER)
        words = ("sleep", "mesh-worker", "Handing its work to other machines", "delay")
        self._asked = next(self._bus.outgoing_serial)
        self._bus.send(new_method_call(manager, "Inhibit", "ssss", words), serial=self._asked)

    def _let_go(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _readable(self) -> None:
        try:
            while True:
                self._heard(self._bus.receive(timeout=0))
        except TimeoutError:
            return
        except (OSError, RuntimeError, ValueError):  # it hung up, or speaks something else
            if not self._over.done():
                self._over.set_result(None)

    def _heard(self, message: Any) -> None:
        from jeepney import HeaderFields, MessageType

        fields, kind = message.header.fields, message.header.message_type
        sender, member = fields.get(HeaderFields.sender), fields.get(HeaderFields.member)
        if kind is MessageType.signal:
            # Anybody on the bus can send us a signal of this name; the sender is what the bus says.
            if member == "PrepareForSleep" and sender == self._logind:
                self._on_prepare_for_sleep(bool(message.body[0]))
            elif member == "NameOwnerChanged" and sender == BUS and message.body[2]:
                self._hold()  # logind was started anew
        elif fields.get(HeaderFields.reply_serial) == self._asked:
            self._logind = sender
            if kind is MessageType.method_return:
                self._let_go()
                self._lock = message.body[0]
            else:
                log.debug("this machine's sleep is not held up: %s", " ".join(map(str, message.body)))

    def _on_prepare_for_sleep(self, begins: bool) -> None:
        if begins:
            self._tasks.run("falling asleep", self._fall_asleep(self._sleeps(), self._lock), unheard)
            self._lock = None  # one that is granted meanwhile is for the next sleep
        else:
            self._hold()
            self._wakes()

    async def _fall_asleep(self, ready: Awaitable[None], lock: Any) -> None:
        try:
            await ready
        finally:
            if lock is not None:
                lock.close()


def _system_bus() -> Any:
    """A connection to the system's bus, None where there is none."""
    if sys.platform != "linux":
        return None
    with contextlib.suppress(ImportError):
        from jeepney.io.blocking import open_dbus_connection

        try:
            return open_dbus_connection("SYSTEM", enable_fds=True)
        except (OSError, RuntimeError, ValueError) as error:
            log.debug("no system bus: %s", error)
    return None
