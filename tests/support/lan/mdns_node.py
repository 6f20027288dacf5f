"""Announcing and looking for nodes in a process of another host, told by lines on stdin: one JSON line answers each.

announce ROLE PORT KEY   -> null; a member that listens on "::"
browse KEY               -> null
found                    -> the addresses of every candidate, by label
tallies                  -> [interface, group, sent, heard, known] of the browser
bye                      -> null; the announcement is taken back
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

from support.lan.namespaces import Host
from support.processes.commands import ROOT

from wire.discovery.announcements import Candidate
from wire.discovery.mdns import Announcer, Browser
from wire.link.identity import identity_here

WITHIN_S = 120.0


class MdnsNode:
    """The test's end of it."""

    def __init__(self, host: Host) -> None:
        path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
        self._process = host.start(
            sys.executable,
            "-m",
            "support.lan.mdns_node",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    def ask(self, command: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def found(self) -> list[list[str]]:
        return sorted(self.ask("found").values())


class Doer:
    """In the process: does what the lines say."""

    def __init__(self) -> None:
        self.present: dict[str, Candidate] = {}

    async def do_announce(self, role: str, port: str, key: str) -> None:
        self.announcer = Announcer(
            identity_here(role, "secret-mesh", "kitchen", None), int(port), bytes.fromhex(key), "::"
        )
        await self.announcer.start()

    async def do_browse(self, key: str) -> None:
        found, gone = self.present.__setitem__, self.present.pop
        self.browser = Browser(bytes.fromhex(key), lambda each: found(each.label, each), lambda each: gone(each.label))
        await self.browser.start()

    async def do_found(self) -> dict[str, list[str]]:
        return {label: list(candidate.addresses) for label, candidate in self.present.items()}

    async def do_tallies(self) -> list[list[Any]]:
        return [[each.interface, each.group, each.sent, each.heard, each.known] for each in self.browser.tallies]

    async def do_bye(self) -> None:
        await self.announcer.close()


async def main() -> None:
    doer = Doer()
    while line := await asyncio.to_thread(sys.stdin.readline):
        word, *rest = line.split()
        print(json.dumps(await getattr(doer, f"do_{word}")(*rest)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
