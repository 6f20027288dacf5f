"""Verbs about who is in a mesh: tokens, throwing a node out, its authority, and joining as a client.

All but `join` and the pauses work in the folder of the mesh's authority, whether its coordinator runs or not; so they
are for the user who runs it, on its machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from wire.errors import ConfigError
from wire.timeouts import CLIENT

from ..util.units import parse_duration
from .exit_codes import OK
from .find_coordinator import Ask, on_a_coordinator
from .flags import add_common, add_timeouts, mesh_name, timeouts
from .tables import print_table

if TYPE_CHECKING:
    from coordinator.authority.authority import Authority, Rotation

    from ..backends.remote import Remote

Options = argparse.Namespace


def token_create(options: Options) -> int:
    """Make a token and show it, this once."""
    made = _authority(options).create_token(options.role, options.uses, parse_duration(options.ttl))
    return _say(options, {"id": made.key_id, "token": made.text}, made.text)


def token_list(options: Options) -> int:
    now_s = time.time()
    header = ("id", "role", "state", "used", "expires")
    rows = [
        (each.key_id, each.role, each.state(now_s), f"{len(each.nodes)} of {each.uses}", _moment(each.expires_s))
        for each in _authority(options).tokens()
    ]
    if options.json:
        print(json.dumps([dict(zip(header, row, strict=True)) for row in rows]))
    else:
        print_table(header, rows)
    return OK


def token_revoke(options: Options) -> int:
    record = _authority(options).revoke_token(options.id)
    said = f"token {record.key_id} lets nobody in any more; the nodes it let in stay"
    return _say(options, {"id": record.key_id, "state": "withdrawn"}, said)


def nodes_revoke(options: Options) -> int:
    """Throw a node out: its links end within a second, and it cannot come back with the key it has."""
    member = _authority(options).revoke_node(options.node)
    return _say(options, {"node": member.node_id, "name": member.name}, f"{member.name} ({member.node_id}) is out")


def authority_show(options: Options) -> int:
    """Show the authority, and which members have not heard of it yet."""
    return _tell_rotation(options, _authority(options).rotation())


def authority_rotate(options: Options) -> int:
    """Give the mesh a new authority; the one before is trusted for another day."""
    return _tell_rotation(options, _authority(options).rotate(parse_duration(options.overlap)))


async def nodes_pause(options: Options, remote: Remote) -> int:
    """Have a worker take no work: what it has goes to others, and it stays linked."""
    await remote.pause(options.node, True)
    said = f"{options.node} is paused; undo it with: mesh-coord nodes resume {options.node}"
    return _say(options, {"node": options.node, "state": "paused"}, said)


async def nodes_resume(options: Options, remote: Remote) -> int:
    """Have a paused worker take work again; one that was paused on its own machine is resumed there only."""
    await remote.pause(options.node, False)
    return _say(options, {"node": options.node, "state": "healthy"}, f"{options.node} takes work again")


def join(options: Options) -> int:
    """Make this user of this machine a client of a mesh elsewhere."""
    from ..backends.enrolment import as_client, ask_for_token, join_mesh, machine_name

    peers = [options.coordinator] if options.coordinator else []
    token, times = ask_for_token(options.token_file), timeouts(options, CLIENT)
    mesh = asyncio.run(join_mesh(token, "client", machine_name(), peers, (), "", as_client, times))
    return _say(options, {"mesh": mesh}, f"you are a client of mesh {mesh} now; see it with: mesh-coord nodes")


# -- arguments --------------------------------------------------------------------------------------------


def token_arguments(made: argparse.ArgumentParser) -> None:
    actions = made.add_subparsers(required=True, metavar="ACTION")
    create = _action(actions, "create", token_create)
    create.add_argument("--uses", type=int, default=1, metavar="N", help="machines it lets in (default %(default)s)")
    create.add_argument("--ttl", default="15m", metavar="TIME", help="how long it is good (default %(default)s)")
    create.add_argument("--role", choices=("worker", "client"), default="worker", help="what they become")
    _action(actions, "list", token_list)
    _action(actions, "revoke", token_revoke).add_argument("id", metavar="ID", help="as token list shows it")


def nodes_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("--watch", action="store_true", help="go on, and tell every change of a worker's state")
    actions = made.add_subparsers(metavar="[pause | resume | revoke NODE]")
    revoke = _action(actions, "revoke", nodes_revoke)
    asking = [_asking(actions, "pause", nodes_pause), _asking(actions, "resume", nodes_resume)]
    for each in (revoke, *asking):
        each.add_argument("node", metavar="NODE", help="its name, its id, or the first characters of that")


def authority_arguments(made: argparse.ArgumentParser) -> None:
    actions = made.add_subparsers(required=True, metavar="ACTION")
    _action(actions, "show", authority_show)
    rotate = _action(actions, "rotate", authority_rotate)
    rotate.add_argument(
        "--overlap", default="24h", metavar="TIME", help="how long the one before is trusted (default %(default)s)"
    )


def join_arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("--coordinator", default="", metavar="HOST:PORT", help="whom to ask (default: who announces it)")
    made.add_argument("--token-file", default="", metavar="FILE", help="where the token is (else MESH_TOKEN)")
    add_timeouts(made)


def _action(actions: Any, name: str, run: Callable[[Options], int]) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = actions.add_parser(name, help=run.__doc__)
    made.set_defaults(run=run)
    made.add_argument("--state-dir", default="", metavar="DIR", help="where the mesh's authority is kept")
    add_common(made, keep=True)
    return made


def _asking(actions: Any, name: str, ask: Ask) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = actions.add_parser(name, help=ask.__doc__)
    made.set_defaults(run=on_a_coordinator(ask))
    made.add_argument("--coordinator", default=argparse.SUPPRESS, metavar="HOST:PORT", help="whom to ask")
    add_common(made, keep=True)
    return made


# -- helpers ----------------------------------------------------------------------------------------------


def _authority(options: Options) -> Authority:
    from ..backends.enrolment import at_home, authority_folder

    mesh = mesh_name(options)
    if not at_home(mesh, options.state_dir):
        raise ConfigError(
            f"the authority of mesh {mesh!r} is not on this machine, or not this user's",
            next_step="Ask on the machine, and as the user, that runs mesh-coord serve",
        )
    from coordinator.authority.authority import Authority

    return Authority(authority_folder(mesh, options.state_dir), mesh)


def _tell_rotation(options: Options, found: Rotation) -> int:
    behind = [{"name": each.name, "node": each.node_id, "role": each.role} for each in found.behind]
    withdrawn = [each.key_id for each in found.withdrawn]
    if options.json:
        until_s = {"former_until": found.former_until_s} if found.former_until_s else {}
        told = {"authority": found.name, "number": found.number, "behind": behind, "tokens_revoked": withdrawn}
        print(json.dumps(told | until_s))
        return OK
    until = f"; the one before is trusted until {_moment(found.former_until_s)}" if found.former_until_s else ""
    print(f"the authority of mesh {mesh_name(options)} is {found.name}, its number {found.number}{until}")
    if withdrawn:
        print(f"tokens made before were revoked: {', '.join(withdrawn)}; make new ones with: mesh-coord token create")
    if behind:
        names = ", ".join(each["name"] for each in behind)
        then = "each has to meet the coordinator until then" if until else "each has to join again with a new token"
        print(f"members that do not know it yet: {names}; {then}")
    return OK


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def _say(options: Options, data: dict[str, str], text: str) -> int:
    print(json.dumps(data) if options.json else text)
    return OK
