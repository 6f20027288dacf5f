"""A bus of its own (dbus-daemon), and on it what answers like systemd-logind: it grants locks and tells of sleep."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

MISSING = "" if find_spec("jeepney") and shutil.which("dbus-daemon") else "needs jeepney and dbus-daemon"
NAME, PATH, MANAGER = "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"
ANSWER_S = 120.0


class FakeLogind:
    """Use as a context manager; processes find it by DBUS_SYSTEM_BUS_ADDRESS=`address`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "bus"
        self.address = f"unix:path={self._path}"
        self._lock = -1  # our end of the pipe whose other end is the lock
        self.asked_by = ""  # the bus's name of who asked for it
        self._bus: Any = None
        self._daemon: subprocess.Popen[str] | None = None

    def __enter__(self) -> FakeLogind:
        from jeepney import message_bus
        from jeepney.io.blocking import open_dbus_connection

        words = ["dbus-daemon", "--session", "--nofork", "--nopidfile", "--print-address", f"--address={self.address}"]
        self._daemon = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._daemon.stdout is not None
        assert self._daemon.stdout.readline(), "dbus-daemon did not start"
        self._bus = open_dbus_connection(self.address, enable_fds=True)
        self._bus.send_and_get_reply(message_bus.RequestName(NAME), timeout=ANSWER_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bus.close()
        assert self._daemon is not None and self._daemon.stdout is not None
        self._daemon.terminate()
        self._daemon.wait(60)
        self._daemon.stdout.close()
        self._forget()

    def grant(self) -> tuple[str, ...]:
        """Wait until somebody asks for a lock, and grant it: what, who, why and how."""
        from jeepney import HeaderFields, MessageType, new_method_return

        while True:
            message = self._bus.receive(timeout=ANSWER_S)
            if message.header.message_type is MessageType.method_call:
                assert message.header.fields[HeaderFields.member] == "Inhibit"
                self.asked_by = message.header.fields[HeaderFields.sender]
                break
        self._forget()
        self._lock, theirs = os.pipe()
        os.set_blocking(self._lock, False)
        self._bus.send(new_method_return(message, "h", (theirs,)))
        os.close(theirs)
        return tuple(message.body)

    def tell(self, begins: bool) -> None:
        """The machine goes to sleep, or is awake again."""
        from jeepney import DBusAddress, new_signal

        self._bus.send(new_signal(DBusAddress(PATH, interface=MANAGER), "PrepareForSleep", "b", (begins,)))

    def lie(self, begins: bool) -> None:
        """Somebody else tells who asked for the lock that the machine goes to sleep, or is awake again."""
        from jeepney import DBusAddress, HeaderFields, message_bus, new_signal
        from jeepney.io.blocking import open_dbus_connection

        with open_dbus_connection(self.address) as bus:
            signal = new_signal(DBusAddress(PATH, interface=MANAGER), "PrepareForSleep", "b", (begins,))
            signal.header.fields[HeaderFields.destination] = self.asked_by
            bus.send(signal)
            bus.send_and_get_reply(message_bus.GetId(), timeout=ANSWER_S)  # the bus has passed the signal on

    def restart(self) -> None:
        """Stop being logind, and be it again by another name on the bus."""
        from jeepney import message_bus
        from jeepney.io.blocking import open_dbus_connection

        self._bus.close()
        self._bus = open_dbus_connection(self.address, enable_fds=True)
        self._bus.send_and_get_reply(message_bus.RequestName(NAME), timeout=ANSWER_S)

    @property
    def held(self) -> bool:
        """Whether the lock that was granted last is held."""
        try:
            return os.read(self._lock, 1) != b""
        except BlockingIOError:
            return True

    def _forget(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
