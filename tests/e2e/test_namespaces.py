"""Several hosts on one machine behave as hosts on a network do: cables, silence, rates, multicast, and no leftovers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.lan.namespaces import DEVICE, Host, Lan, needs_namespaces, needs_rate_limit
from support.processes.commands import wait_for
from support.processes.launching import runs

pytestmark = needs_namespaces
SUPPORT = Path(__file__).resolve().parents[1]
GROUP = "224.0.0.251"  # as mDNS has it
PORT = 5400

LISTEN = f"""
import socket, struct, sys
kind = socket.SOCK_DGRAM if sys.argv[1] == "udp" else socket.SOCK_STREAM
with socket.socket(socket.AF_INET, kind) as here:
    here.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    here.bind(("", {PORT}))
    if len(sys.argv) > 2:
        group = struct.pack("4s4s", *map(socket.inet_aton, sys.argv[2:]))
        here.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
    if kind is socket.SOCK_STREAM:
        here.listen()
    print("ready", flush=True)
    if kind is socket.SOCK_DGRAM:
        while True:
            print(here.recv(100).decode(), flush=True)
    with here.accept()[0] as other:
        total = 0
        while data := other.recv(1 << 16):
            total += len(data)
    print(total, flush=True)
"""
SAY = f"""
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
    here.sendto(sys.argv[2].encode(), (sys.argv[1], {PORT}))
"""
PUSH = f"""
import socket, sys, time
with socket.create_connection((sys.argv[1], {PORT}), 60) as there:
    began_s = time.monotonic()
    there.sendall(bytes(int(sys.argv[2])))
    there.shutdown(socket.SHUT_WR)
    there.recv(1)
    print(time.monotonic() - began_s)
"""


@pytest.fixture
def lan() -> Iterator[Lan]:
    with Lan(2) as made:
        yield made


class Listener:
    """A process on a host that prints what reaches it."""

    def __init__(self, host: Host, *words: str) -> None:
        self.process = host.start(sys.executable, "-c", LISTEN, *words, stdout=subprocess.PIPE, text=True)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.begun = ""  # of a line: an interpreter without buffers writes its end apart
        assert self.next() == "ready"

    def next(self, within_s: float = 120.0) -> str | None:
        """The next line, or None if none comes."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            self.begun += self.process.stdout.readline()
            if self.begun.endswith("\n"):
                line, self.begun = self.begun.strip(), ""
                return line
            time.sleep(0.01)
        return None


def say(host: Host, to: str, what: str) -> None:
    host.run(sys.executable, "-c", SAY, to, what, check=True)


def test_hosts_reach_each_other_by_address_and_nothing_of_it_is_outside(lan: Lan) -> None:
    first, second = lan.hosts
    heard = Listener(second, "udp")
    say(first, second.address, "hello")
    assert heard.next() == "hello"
    assert first.address != second.address
    assert DEVICE in first.run("ip", "-brief", "addr").stdout
    outside = subprocess.run(["ip", "-brief", "addr"], capture_output=True, text=True, check=True).stdout
    assert second.port not in outside and second.address not in outside


def test_each_host_has_a_loopback_of_its_own(lan: Lan) -> None:
    first, second = lan.hosts
    heard = Listener(second, "udp")
    say(first, "127.0.0.1", "to myself")
    say(second, "127.0.0.1", "to me")
    assert heard.next() == "to me"


def test_an_unplugged_host_has_no_link_until_it_is_plugged_in(lan: Lan) -> None:
    first, second = lan.hosts
    heard = Listener(second, "udp")
    second.unplug()
    assert "NO-CARRIER" in second.run("ip", "link", "show", DEVICE).stdout
    say(first, second.address, "lost")
    second.plug()
    deadline_s = time.monotonic() + 120
    while heard.next(0.2) != "back":
        assert time.monotonic() < deadline_s
        say(first, second.address, "back")


def test_what_one_host_sends_another_is_lost_silently_and_one_way(lan: Lan) -> None:
    first, second = lan.hosts
    here, there = Listener(first, "udp"), Listener(second, "udp")
    first.lose_what_goes_to(second)
    say(first, second.address, "lost")
    assert there.next(0.3) is None
    say(second, first.address, "heard")
    assert here.next() == "heard"
    first.reach(second)
    say(first, second.address, "again")
    assert there.next() == "again"


def test_a_host_that_is_cut_off_sees_its_link_and_nobody_else(lan: Lan) -> None:
    first, second = lan.hosts
    here, there = Listener(first, "udp"), Listener(second, "udp")
    second.cut_off()
    assert "LOWER_UP" in second.run("ip", "link", "show", DEVICE).stdout
    say(first, second.address, "lost")
    say(second, first.address, "lost, too")
    assert there.next(0.3) is None and here.next(0.1) is None
    second.rejoin()
    deadline_s = time.monotonic() + 120
    while there.next(0.2) != "back":
        assert time.monotonic() < deadline_s
        say(first, second.address, "back")


def test_multicast_passes_until_it_is_blocked_and_the_rest_goes_on(lan: Lan) -> None:
    first, second = lan.hosts
    heard = Listener(second, "udp", GROUP, second.address)
    say(first, GROUP, "to all")
    assert heard.next() == "to all"
    lan.block_multicast()
    say(first, GROUP, "to nobody")
    say(first, second.address, "to one")
    assert heard.next() == "to one"


@needs_rate_limit
def test_a_rate_limit_is_kept(lan: Lan) -> None:
    first, second = lan.hosts
    first.limit_rate(100_000_000)
    heard = Listener(second, "tcp")
    size = 3_000_000
    took_s = float(first.run(sys.executable, "-c", PUSH, second.address, str(size), check=True).stdout)
    assert heard.next() == str(size)
    assert took_s > 0.8 * size * 8 / 100e6


def test_a_host_may_move_to_another_address(lan: Lan) -> None:
    first, second = lan.hosts
    heard = Listener(second, "udp")
    second.change_address("10.77.0.99")
    say(first, second.address, "found")
    assert heard.next() == "found"


def test_nothing_is_left_behind_even_by_a_test_that_fails() -> None:
    lan = Lan(1)

    def fail() -> None:
        with lan:
            lan.hosts[0].start("sleep", "100")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    (sleeping,) = lan.hosts[0].processes
    assert sleeping.returncode is not None and not runs(sleeping.pid)
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert lan.switch not in names and lan.hosts[0].namespace not in names


def test_what_a_killed_process_left_goes_when_the_next_begins() -> None:
    code = "from support.lan.namespaces import Lan; import sys; print(Lan(1).__enter__().switch); sys.stdin.read()"
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT), "PYTHONUNBUFFERED": "1"}
    words, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, text=True) as killed:
        assert killed.stdout is not None
        switch = killed.stdout.readline().strip()
        listed = ["ip", "netns", "list"]
        assert switch in subprocess.run(listed, capture_output=True, text=True, check=True).stdout
        killed.kill()  # from here on any test beside this one may be the next
    with Lan(1):
        # Another test's may be about to remove it.
        wait_for(lambda: switch not in subprocess.run(listed, capture_output=True, text=True, check=True).stdout)
