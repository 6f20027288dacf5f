"""Enrolment: how a process becomes a member of a mesh: by its certificate, a token, or the authority on this machine.

Part of the composition root.  Whoever may write the folder of a mesh's authority decides who is in; so where that
folder is this user's, a worker or a client needs no token.  Elsewhere one is asked for, and never taken from the
command line, which every user of a machine can read.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, closing, contextmanager
from pathlib import Path

from wire.addresses import parse_address, shown
from wire.errors import ConfigError
from wire.joining.credentials import Credentials
from wire.joining.join_protocol import Admitted
from wire.joining.join_tokens import Token, discovery_key, parse_token
from wire.limits import TEXT_FILE_CHARS_MAX
from wire.link.membership import COORDINATOR_FILE, Membership, ask_to_join, coordinator_known, remember_coordinator
from wire.roles import ADMIN
from wire.system.file_lock import FileLock
from wire.system.private_folder import private_folder, state_root
from wire.system.shared_memory import SharedDir
from wire.system.steady_log import steady_logger
from wire.timeouts import DEFAULT_TIMEOUTS, Timeouts

from ..util.text_file import read_text

log = steady_logger("graph_mesh.identity")

LEFT_S_MIN = 6 * 3600.0  # at home a certificate with less time left is renewed on the way
AUTHORITY_FOLDER = "@authority"  # beside the folders of workers, none of which begins with @
CLIENT_FOLDER = "@client"
JOINED_FILE = "joined"  # in the folder of all meshes: the one that this user joined last


def authority_folder(mesh: str, state_dir: str = "") -> Path:
    return state_root(state_dir) / mesh / AUTHORITY_FOLDER


def client_folder(mesh: str, state_dir: str = "") -> Path:
    return state_root(state_dir) / mesh / CLIENT_FOLDER


def coordinators_here(mesh: str, state_dir: str = "") -> list[str]:
    """The addresses of this user's coordinators of a mesh on this machine, as each of them wrote them down."""
    folders = sorted((state_root(state_dir) / mesh).glob("@*"))
    return [address for folder in folders for address in coordinator_known(folder / COORDINATOR_FILE)]


def at_home(mesh: str, state_dir: str = "") -> bool:
    """Whether the mesh's authority is on this machine and this user's."""
    return _may_write(authority_folder(mesh, state_dir))


def _may_write(authority: Path) -> bool:
    return os.access(authority / "members.json", os.W_OK)


def enrolled(folder: Path, mesh: str, role: str, name: str, authority: Path) -> Credentials | None:
    """The identity of a member in `folder`, None if it has none.  A user who may write in `authority` gets one now."""
    home = _may_write(authority)
    if not home and not (folder / "certificate.pem").exists():
        return None
    private_folder(folder)
    with FileLock(folder / "enrolling"):  # several commands of one user may start at once
        credentials = Credentials(folder)
        if home:
            from coordinator.authority.authority import Authority

            ours = Authority(authority, mesh)
            if not _is_good(credentials, ours.certificate) or credentials.member.role != role:
                credentials.adopt(ours.admit_here(credentials.key.public, role, name))
    return credentials if credentials.enrolled else None


def _is_good(credentials: Credentials, authority: bytes) -> bool:
    """Whether an identity needs nothing for some hours."""
    if not credentials.enrolled or credentials.admitted.authority != authority or credentials.outdated:
        return False
    return credentials.member.ends_s > time.time() + LEFT_S_MIN


def client_membership(
    mesh: str, state_dir: str = "", where: str = "", timeouts: Timeouts = DEFAULT_TIMEOUTS
) -> Membership:
    """This user as a client of the mesh, and as an admin where the mesh's authority is this user's; ConfigError where
    nobody let it in.

    `where` is the coordinator that was named, "host:port", if one was.
    """
    folder = client_folder(mesh, state_dir)
    credentials = enrolled(folder, mesh, ADMIN, machine_name(), authority_folder(mesh, state_dir))
    if credentials is None:
        others = _client_of(state_dir)
        token = "with a token of its machine: mesh-coord token create --role client"
        join = f"mesh-coord join --coordinator {where or 'HOST:PORT'}, {token}"
        then = f"Join it: {join}" if where else f"Start it here: mesh-coord serve; or join it: {join}"
        raise ConfigError(
            f"you are no member of mesh {mesh!r}, and its coordinator is not on this machine, or has a --state-dir",
            next_step=f"Name the one you are in: --mesh {' or '.join(others)}. {then}" if others else then,
        )
    return Membership(credentials, folder, timeouts)


def _client_of(state_dir: str) -> list[str]:
    """The meshes that this user was let into as a client, by name."""
    return sorted(path.parent.parent.name for path in state_root(state_dir).glob(f"*/{CLIENT_FOLDER}/certificate.pem"))


def is_client(mesh: str) -> bool:
    """Whether this user of this machine is a client of the mesh, or at home there."""
    return at_home(mesh) or (client_folder(mesh) / "certificate.pem").exists()


@contextmanager
def as_client(mesh: str) -> Iterator[Path]:
    """The folder of a client's identity, for `join_mesh`."""
    yield client_folder(mesh)


def machine_name() -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname().split(".")[0]) or "machine"


def joined_mesh(state_dir: str = "") -> str:
    """The mesh that this user joined last, "" for none."""
    try:
        return (state_root(state_dir) / JOINED_FILE).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def ask_for_token(file: str = "") -> Token:
    """A join token from a file, MESH_TOKEN, a pipe on stdin, or typed without echo; TokenError if it is none."""
    if file:
        try:
            text = read_text(Path(file))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the token file {file}", cause=str(error)) from None
    elif "MESH_TOKEN" in os.environ:
        text = os.environ["MESH_TOKEN"]
    elif sys.stdin is not None and sys.stdin.isatty():
        text = getpass.getpass("Join token: ")
    else:
        text = sys.stdin.readline(TEXT_FILE_CHARS_MAX) if sys.stdin is not None else ""
    if not text.strip():
        raise ConfigError("no join token was given", next_step="Set MESH_TOKEN, or name a file: --token-file FILE")
    return parse_token(text)


async def join_mesh(
    token: Token,
    role: str,
    name: str,
    peers: Sequence[str],
    interfaces: Sequence[str],
    state_dir: str,
    place: Callable[[str], AbstractContextManager[Path]],
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
) -> str:
    """Enter the mesh that a token is for; its name.

    `place(mesh)` gives the folder that the identity is kept in: which mesh it is, only the answer says.  Asked are the
    `peers` ("host:port"), else whoever announces itself as a coordinator of the token's mesh.
    """
    root = state_root(state_dir)
    private_folder(root)
    with closing(SharedDir.create(root)) as joining:  # the next join removes what one that was killed left
        fresh = await asyncio.to_thread(Credentials, joining.path)
        async with aclosing(_whom(token, peers, interfaces, timeouts.find_coordinator_s)) as whom:
            admitted, address = await ask_to_join(whom, token, fresh.key, role, name, timeouts)
        await asyncio.to_thread(_move_in, fresh, admitted, address, root, place)
    return admitted.grant.mesh


def _move_in(
    fresh: Credentials,
    admitted: Admitted,
    address: str,
    root: Path,
    place: Callable[[str], AbstractContextManager[Path]],
) -> None:
    """Keep what the coordinator at an address gave; ConfigError where that cannot be written."""
    fresh.adopt(admitted)
    mesh = admitted.grant.mesh
    with place(mesh) as kept:
        try:
            fresh.move_to(private_folder(kept))
        except OSError as error:
            raise ConfigError(f"cannot write in {kept}", cause=str(error)) from None
        remember_coordinator(kept, [address])
    try:
        (root / JOINED_FILE).write_text(mesh + "\n")
    except OSError as error:  # it is a member all the same
        log.warning("cannot remember which mesh was joined last: %s; name it in each command: --mesh %s", error, mesh)


async def _whom(
    token: Token, peers: Sequence[str], interfaces: Sequence[str], find_s: float
) -> AsyncGenerator[str, None]:
    for host, port in map(parse_address, peers):
        yield f"{shown(host)}:{port}"
    if not peers:
        from wire.discovery.mdns import discover

        async with aclosing(discover(discovery_key(token.pin), "coordinator", find_s, interfaces)) as candidates:
            async for candidate in candidates:
                for address in candidate.addresses:
                    yield address
