"""Several hosts on one machine: Linux network namespaces joined by a bridge, as by a switch at home.

    with Lan(3) as lan:
        first, second, third = lan.hosts
        worker = first.start(sys.executable, "-m", "mesh.commands.worker", ...)
        second.lose_what_goes_to(first)  # silently, one way
        third.unplug()

It needs root and the commands ip and tc: `needs_namespaces` and `needs_rate_limit` skip with the reason where they are
not to be had.  Nothing is made outside the namespaces, whose names carry this process's id: at the end they go and all
that runs inside, and so do those that a killed process left behind.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import pytest

DEVICE = "eth0"  # as every host calls its only cable
NETWORK = "10.77.0"
NOBODY = "02:00:00:00:00:01"  # a hardware address that no host has
WITHIN_S = 120.0  # a hang, and not a busy machine
_serial = itertools.count()


@dataclass(slots=True)
class Host:
    """One namespace: its address, and what it runs."""

    lan: Lan
    namespace: str
    address: str
    port: str  # the switch's end of its cable
    processes: list[subprocess.Popen[Any]] = field(default_factory=list)

    def command(self, *words: str) -> list[str]:
        """The command line that runs `words` here; the process keeps its id."""
        return ["ip", "netns", "exec", self.namespace, *words]

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command here to its end."""
        given = {"capture_output": True, "text": True, "timeout": WITHIN_S, "check": False} | options
        return subprocess.run(self.command(*words), **given)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[Any]:
        """Start a command here; it is killed with the namespace."""
        process = subprocess.Popen(self.command(*words), **options)
        self.processes.append(process)
        return process

    def unplug(self) -> None:
        """Pull the cable: this host sees that it has no link, the others see nothing."""
        _do("ip", "-n", self.lan.switch, "link", "set", self.port, "down")

    def plug(self) -> None:
        _do("ip", "-n", self.lan.switch, "link", "set", self.port, "up")

    def cut_off(self) -> None:
        """From now on the switch drops all that comes from and goes to this host; neither side sees anything."""
        _do("ip", "-n", self.lan.switch, "link", "set", self.port, "nomaster")

    def lose_power(self) -> None:
        """Nothing comes from this host any more, no goodbye either, and all that ran here is gone."""
        self.cut_off()
        _kill(self.namespace)

    def rejoin(self) -> None:
        """Undo `cut_off`."""
        _do("ip", "-n", self.lan.switch, "link", "set", self.port, "master", "bridge")

    def lose_what_goes_to(self, other: Host) -> None:
        """What this host sends to `other` vanishes and neither is told; what comes from there still comes."""
        neighbour = ("lladdr", NOBODY, "dev", DEVICE, "nud", "permanent")
        for address in other.addresses():
            _do("ip", "-n", self.namespace, "neigh", "replace", address, *neighbour)

    def reach(self, other: Host) -> None:
        """Undo `lose_what_goes_to`."""
        for address in other.addresses():
            _do("ip", "-n", self.namespace, "neigh", "del", address, "dev", DEVICE)

    def lose_what_comes_from(self, port: int) -> None:
        """What this host sends from a TCP port vanishes, and neither side is told."""
        _do("ip", "-n", self.namespace, "rule", "add", "pref", "1", "ipproto", "tcp", "sport", str(port), "blackhole")

    def addresses(self) -> list[str]:
        """All it has on the network, of both families."""
        (device,) = json.loads(_do("ip", "-n", self.namespace, "-j", "addr", "show", "dev", DEVICE))
        return [each["local"] for each in device["addr_info"]]

    def limit_rate(self, bits_per_s: int) -> None:
        """Slow both directions of this host's cable."""
        bucket = ("root", "tbf", "rate", f"{bits_per_s}bit", "burst", str(max(bits_per_s // 800, 3200)))
        for namespace, device in ((self.namespace, DEVICE), (self.lan.switch, self.port)):
            _do("tc", "-n", namespace, "qdisc", "replace", "dev", device, *bucket, "latency", "50ms")

    def change_address(self, address: str) -> None:
        """Become another address, as after moving to another network's lease."""
        _do("ip", "-n", self.namespace, "addr", "flush", "dev", DEVICE, "scope", "global")
        self._take(address)

    def _take(self, address: str) -> None:
        self.address = address
        _do("ip", "-n", self.namespace, "addr", "add", f"{address}/24", "dev", DEVICE)
        _do("ip", "-n", self.namespace, "route", "replace", "default", "via", f"{NETWORK}.254")

    def _join(self) -> None:
        """Come up, with a cable to the switch."""
        _do("ip", "netns", "add", self.namespace)
        ends = (self.port, "type", "veth", "peer", "name", DEVICE, "netns", self.namespace)
        _do("ip", "-n", self.lan.switch, "link", "add", *ends)
        _do("ip", "-n", self.lan.switch, "link", "set", self.port, "master", "bridge", "up")
        for device in ("lo", DEVICE):
            _do("ip", "-n", self.namespace, "link", "set", device, "up")
        self._take(self.address)


class Lan:
    """A switch and the hosts at it; a context manager."""

    def __init__(self, hosts: int) -> None:
        name = f"gmtest-{os.getpid()}-{next(_serial)}"
        self.switch = f"{name}-switch"
        self.hosts = [
            Host(self, f"{name}-{number}", f"{NETWORK}.{number}", f"port{number}") for number in range(1, hosts + 1)
        ]

    def block_multicast(self) -> None:
        """No host hears another's multicast, mDNS included; nobody is told."""
        for host in self.hosts:
            _do("ip", "-n", self.switch, "link", "set", host.port, "type", "bridge_slave", "mcast_flood", "off")

    def __enter__(self) -> Self:
        _remove_leftovers()
        try:
            _do("ip", "netns", "add", self.switch)
            _do("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
            _do("ip", "-n", self.switch, "link", "set", "bridge", "up")
            for host in self.hosts:
                host._join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as all_of_it:  # whatever fails in between
            for host in self.hosts:
                for process in host.processes:
                    all_of_it.callback(process.wait, WITHIN_S)
            for namespace in _namespaces() & {self.switch, *(host.namespace for host in self.hosts)}:
                all_of_it.callback(_remove, namespace)


def _do(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _namespaces() -> set[str]:
    return {line.split()[0] for line in _do("ip", "netns", "list").splitlines()}


def _kill(namespace: str) -> None:
    for pid in _do("ip", "netns", "pids", namespace).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _remove(namespace: str) -> None:
    _kill(namespace)
    _do("ip", "netns", "del", namespace)


def _remove_leftovers() -> None:
    """Namespaces of test processes that no longer live."""
    for namespace in _namespaces():
        found = re.match(r"gmtest-(\d+)-", namespace)
        if found and not os.path.exists(f"/proc/{found[1]}"):
            with contextlib.suppress(OSError):  # another process removes it at this moment
                _remove(namespace)


# -- what this machine can do


@cache
def _why_no_namespaces() -> str:
    if not sys.platform.startswith("linux") or shutil.which("ip") is None:
        return "network namespaces need Linux and the command ip"
    try:
        with Lan(1) as lan:
            return lan.hosts[0].run("true").stderr.strip()
    except OSError as error:
        return f"no network namespaces here: {error}"


@cache
def _why_no_rate_limit() -> str:
    if _why_no_namespaces():
        return _why_no_namespaces()
    if shutil.which("tc") is None:
        return "rate limits need the command tc"
    try:
        with Lan(1) as lan:
            lan.hosts[0].limit_rate(100_000_000)
    except OSError as error:
        return f"no rate limits here: {error}"
    return ""


needs_namespaces = pytest.mark.skipif(bool(_why_no_namespaces()), reason=_why_no_namespaces() or "has them")
needs_rate_limit = pytest.mark.skipif(bool(_why_no_rate_limit()), reason=_why_no_rate_limit() or "has them")
