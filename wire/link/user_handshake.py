"""The handshake by which both ends of a connection on this machine prove that one user runs them, over a socket.

What is said is `wire/security/user_proof.py`'s business.  It comes before everything else on a connection: who does not
get through it learns the user's name and nothing more, and reaches no parser of HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
import socket

from ..addresses import shown
from ..errors import ConnectFailed, NotTrusted
from ..joining.join_protocol import JOIN
from ..security import user_proof
from ..security.user_proof import Ends
from ..system.private_folder import user_name


async def prove_as_dialer(connection: socket.socket, secret: bytes) -> None:
    """Prove who runs this end, and have the other end prove it.  NotTrusted if another user runs that, OSError if it
    hangs up, ConnectFailed if it is no node."""
    loop, nonce = asyncio.get_running_loop(), secrets.token_bytes(user_proof.NONCE_BYTES)
    where = _shown(connection.getpeername())
    await loop.sock_sendall(connection, user_proof.opening(nonce))
    answer = user_proof.read_answer(await _up_to_end(connection, where))
    if answer is None:
        raise ConnectFailed(
            f"{where} answered, but not as a graph-mesh node",
            cause="it does not prove which user runs it",
            next_step="Check the port, and upgrade graph-mesh where an older version may run there",
        )
    ends = Ends(connection.getsockname()[:2], connection.getpeername()[:2])
    if not user_proof.is_acceptors(secret, nonce, answer, ends):
        raise _other_user(where, answer.user)
    await loop.sock_sendall(connection, user_proof.dialers_proof(secret, nonce, answer.nonce, ends))


async def prove_as_acceptor(connection: socket.socket, secret: bytes) -> None:
    """Prove who runs this end, which was dialled, and have the dialer prove it: NotTrusted if it does not."""
    loop, nonce = asyncio.get_running_loop(), secrets.token_bytes(user_proof.NONCE_BYTES)
    dialers = user_proof.nonce_of(await _exactly(connection, user_proof.OPENING_BYTES))
    ends = Ends(connection.getpeername()[:2], connection.getsockname()[:2])
    await loop.sock_sendall(connection, user_proof.answer(secret, dialers, nonce, ends, user_name()))
    last = await _exactly(connection, user_proof.PROOF_BYTES)
    if not user_proof.is_dialers(secret, dialers, nonce, last, ends):
        raise NotTrusted("it does not prove that this user runs it")


def _other_user(where: str, user: str) -> NotTrusted:
    if user == user_name():
        return NotTrusted(
            f"{where} is no node of yours that this program may talk to: it has another secret",
            cause="it belongs to another program alone, has another state folder, or is an imposter",
            next_step="Start both with the same XDG_STATE_HOME, or check the port",
        )
    return NotTrusted(
        f"{where} belongs to user {user} of this machine, and you are {user_name()}: a node that has joined no mesh "
        "serves its own user only",
        next_step=f"Join its mesh with a token of that user: {JOIN}",
    )


async def _exactly(connection: socket.socket, count: int) -> bytes:
    """The next bytes.  ConnectionResetError if the connection ends before."""
    received = b""
    while len(received) < count:
        part = await asyncio.get_running_loop().sock_recv(connection, count - len(received))
        if not part:
            raise ConnectionResetError("it hung up")
        received += part
    return received


async def _up_to_end(connection: socket.socket, where: str) -> bytes:
    """An acceptor's answer, behind which it says nothing before it is spoken to; what there is of another program's."""
    received = b""
    while not received.endswith(user_proof.END) and len(received) < user_proof.ANSWER_BYTES_MAX:
        part = await asyncio.get_running_loop().sock_recv(connection, user_proof.ANSWER_BYTES_MAX - len(received))
        if not part:
            break
        received += part
    if not received:
        raise hung_up(where)
    return received


def hung_up(where: str) -> ConnectFailed:
    """The error for a "host:port" where the other side ended the connection to this node, which has no credentials."""
    return ConnectFailed(
        f"{where} hung up on this node, which has joined no mesh",
        next_step=f"If a mesh is there, join it with a token: {JOIN}",
    )


def _shown(address: tuple[str, int]) -> str:
    return f"{shown(address[0])}:{address[1]}"
