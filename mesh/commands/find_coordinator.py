"""Find the coordinator that a command asks: the named one, or the one on this machine."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from wire.addresses import LAST_PORT, PORT, parse_address, shown
from wire.errors import ConfigError, ConnectFailed, InputError, NotTrusted, WrongMesh
from wire.timeouts import CLIENT

from .exit_codes import INTERRUPTED
from .flags import mesh_name, timeouts

if TYPE_CHECKING:
    from ..backends.remote import Remote

COORDINATOR_HELP = "the coordinator to ask (default: MESH_ADDRESS, else the one on this machine)"
Ask = Callable[[argparse.Namespace, "Remote"], Awaitable[int]]


def named(options: argparse.Namespace) -> tuple[str, int] | None:
    """The coordinator that a flag or the environment names; ConfigError for what is no address."""
    text = options.coordinator or os.environ.get("MESH_ADDRESS")
    return parse_address(text) if text else None


def check_there(path: str) -> None:
    """Check that a file is there and may be read; InputError if not."""
    try:
        with open(path, "rb"):
            return
    except IsADirectoryError:
        return  # a model may be one
    except FileNotFoundError:
        save = "mesh.trace(fn, *args).save(path)"
        raise InputError(f"there is no file {path}", next_step=f"Write one in Python with: {save}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


async def connect(options: argparse.Namespace) -> Remote:
    """The coordinator named by flag or environment, or the one that took over from it; else the one of this mesh on
    this machine."""
    from ..backends.enrolment import client_membership, coordinators_here
    from ..backends.remote import Remote

    mesh = mesh_name(options)
    address = named(options)
    where = f"{shown(address[0])}:{address[1]}" if address else ""
    times = timeouts(options, CLIENT)
    membership = await asyncio.to_thread(client_membership, mesh, where=where, timeouts=times)
    if address is not None:
        return await Remote.find(mesh, *address, membership, times)
    why = ""  # of those that were there once
    for known in dict.fromkeys((*membership.coordinator, *coordinators_here(mesh))):
        try:
            return await Remote.connect(mesh, *parse_address(known), membership, times)
        except (ConnectFailed, ConfigError, WrongMesh, NotTrusted) as error:
            why = why or error.message  # it is elsewhere now, and somebody else may be there; or it stands still
    for port in range(PORT, LAST_PORT + 1):
        try:
            return await Remote.connect(mesh, "127.0.0.1", port, membership, times)
        except (ConnectFailed, ConfigError, WrongMesh, NotTrusted):
            continue  # nobody there, a worker, or another mesh
    raise ConnectFailed(
        f"no coordinator of mesh {mesh!r} on this machine (ports {PORT} to {LAST_PORT})",
        cause=why,
        next_step="Start one with: mesh-coord serve; or name it: --coordinator HOST:PORT",
    )


def on_a_coordinator(verb: Ask, files: tuple[str, ...] = ()) -> Callable[[argparse.Namespace], int]:
    """Make a command of a verb that asks a coordinator; Ctrl-C and SIGTERM cancel it.

    `files` are the options that name files to read: they are checked before a coordinator is asked.
    """

    async def ask(options: argparse.Namespace) -> int:
        for name in files:
            check_there(getattr(options, name))
        remote = await connect(options)
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                loop.add_signal_handler(number, task.cancel)
            except NotImplementedError:  # Windows: Ctrl-C arrives as KeyboardInterrupt
                break
        try:
            return await verb(options, remote)
        except asyncio.CancelledError:
            return INTERRUPTED
        finally:
            await remote.close()

    return lambda options: asyncio.run(ask(options))
