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
from .find_coordinator import COORDINATOR_HELP, Ask, on_a_coordinator
from .flags import add_common, add_timeouts, mesh_name, timeouts
from .tables import print_table

if TYPE_CHECKING:
    from coordinator.authority.authority import Authority, Rotation

    from ..backends.remote import Remote

Options = argparse.Namespace


def token_create(options: Options) -> int:
    """Create a token and show it, this once."""
    token = _authority(options).create_token(options.role, options.uses, parse_duration(options.ttl))
    return _say(options, {"id": token.key_id, "token": token.text}, token.text)


def token_list(options: Options) -> int:
    """List the tokens, and how many nodes each has let in."""
    now_s = time.time()
    header = ("id", "role", "state", "used", "expires")
    rows = [
        (
            record.key_id,
            record.role,
            record.state(now_s),
            f"{len(record.nodes)} of {record.uses}",
            _moment(record.expires_s),
        )
        for record in _authority(options).tokens()
    ]
    if options.json:
        print(json.dumps([dict(zip(header, row, strict=True)) for row in rows]))
    else:
        print_table(header, rows)
    return OK


def token_revoke(options: Options) -> int:
    """Revoke a token; the nodes that it let in stay."""
    record = _authority(options).revoke_token(options.id)
    text = f"token {record.key_id} lets nobody in any more; the nodes it let in stay"
    return _say(options, {"id": record.key_id, "state": "withdrawn"}, text)


def nodes_revoke(options: Options) -> int:
    """Remove a node from the mesh: its links end within a second, and its key is not accepted again."""
    member = _authority(options).revoke_node(options.node)
    return _say(options, {"node": member.node_id, "name": member.name}, f"{member.name} ({member.node_id}) is out")


def authority_show(options: Options) -> int:
    """Show the authority, and the members that have no certificate of it yet."""
    return _tell_rotation(options, _authority(options).rotation())


def authority_rotate(options: Options) -> int:
    """Give the mesh a new authority; the former one is trusted for the overlap."""
    return _tell_rotation(options, _authority(options).rotate(parse_duration(options.overlap)))


async def nodes_pause(options: Options, remote: Remote) -> int:
    """Pause a worker: its work goes to others, and it stays connected."""
    await remote.pause(options.node, True)
    text = f"{options.node} is paused; undo it with: mesh-coord nodes resume {options.node}"
    return _say(options, {"node": options.node, "state": "paused"}, text)


async def nodes_resume(options: Options, remote: Remote) -> int:
    """End the pause of a worker; one that was paused on its own machine is resumed only there."""
    await remote.pause(options.node, False)
    return _say(options, {"node": options.node, "state": "healthy"}, f"{options.node} takes work again")


async def sessions_end(options: Options, remote: Remote) -> int:
    """End a session that has a name: its workers free its state, and it cannot be attached to any more."""
    await remote.end_session(options.session)
    text = f"session {options.session} is over"
    return _say(options, {"session": options.session, "state": "over"}, text)


def join(options: Options) -> int:
    """Make this user of this machine a client of a mesh elsewhere."""
    from ..backends.enrolment import as_client, ask_for_token, join_mesh, machine_name

    peers = [options.coordinator] if options.coordinator else []
    token, times = ask_for_token(options.token_file), timeouts(options, CLIENT)
    mesh = asyncio.run(join_mesh(token, "client", machine_name(), peers, (), "", as_client, times))
    return _say(options, {"mesh": mesh}, f"you are a client of mesh {mesh} now; see it with: mesh-coord nodes")


# -- arguments --------------------------------------------------------------------------------------------


def token_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    create = _action(actions, "create", token_create)
    create.add_argument(
        "--uses", type=int, default=1, metavar="N", help="how many machines may join with it (default: %(default)s)"
    )
    create.add_argument("--ttl", default="15m", metavar="TIME", help="how long it is valid (default: %(default)s)")
    create.add_argument(
        "--role", choices=("worker", "client"), default="worker", help="what they join as (default: %(default)s)"
    )
    _action(actions, "list", token_list)
    _action(actions, "revoke", token_revoke).add_argument(
        "id", metavar="ID", help="the id of a token, as token list shows it"
    )


def nodes_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="go on, and print every change of a worker's state")
    actions = parser.add_subparsers(metavar="[pause | resume | revoke NODE]")
    revoke = _action(actions, "revoke", nodes_revoke)
    asking = [_asking(actions, "pause", nodes_pause), _asking(actions, "resume", nodes_resume)]
    for action in (revoke, *asking):
        action.add_argument("node", metavar="NODE", help="the node's name, its id, or the first characters of its id")


def sessions_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="[end NAME]")
    end = _asking(actions, "end", sessions_end)
    end.add_argument("session", metavar="NAME", help="the session's name")


def promote_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="coordinator", help="the name of the standby (default: %(default)s)")
    folder = "the folder of its identity and jobs (default: the user's state folder)"
    parser.add_argument("--state-dir", default="", metavar="DIR", help=folder)


def authority_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _action(actions, "show", authority_show)
    rotate = _action(actions, "rotate", authority_rotate)
    rotate.add_argument(
        "--overlap",
        default="24h",
        metavar="TIME",
        help="how long the former authority is trusted (default: %(default)s)",
    )


def join_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--coordinator",
        default="",
        metavar="HOST:PORT",
        help="the coordinator (default: the one that announces the mesh)",
    )
    parser.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="the file with the token (default: MESH_TOKEN, else the keyboard)",
    )
    add_timeouts(parser)


def _action(actions: Any, name: str, run: Callable[[Options], int]) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=_help_of(run), description=_help_of(run))
    parser.set_defaults(run=run)
    parser.add_argument(
        "--state-dir",
        default="",
        metavar="DIR",
        help="the folder of the mesh's authority (default: the user's state folder)",
    )
    add_common(parser, keep=True)
    return parser


def _asking(actions: Any, name: str, ask: Ask) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=_help_of(ask), description=_help_of(ask))
    parser.set_defaults(run=on_a_coordinator(ask))
    parser.add_argument("--coordinator", default=argparse.SUPPRESS, metavar="HOST:PORT", help=COORDINATOR_HELP)
    add_common(parser, keep=True)
    return parser


# -- helpers ----------------------------------------------------------------------------------------------


def _help_of(function: Callable[..., object]) -> str:
    """The help of an action: the docstring of its function, in the style of argparse."""
    text = (function.__doc__ or "").rstrip(".")
    return text[:1].lower() + text[1:]


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


def _tell_rotation(options: Options, rotation: Rotation) -> int:
    behind = [{"name": member.name, "node": member.node_id, "role": member.role} for member in rotation.behind]
    withdrawn = [record.key_id for record in rotation.withdrawn]
    if options.json:
        until_s = {"former_until": rotation.former_until_s} if rotation.former_until_s else {}
        data = {"authority": rotation.name, "number": rotation.number, "behind": behind, "tokens_revoked": withdrawn}
        print(json.dumps(data | until_s))
        return OK
    until = f"; the one before is trusted until {_moment(rotation.former_until_s)}" if rotation.former_until_s else ""
    print(f"the authority of mesh {mesh_name(options)} is {rotation.name}, its number {rotation.number}{until}")
    if withdrawn:
        print(f"tokens made before were revoked: {', '.join(withdrawn)}; make new ones with: mesh-coord token create")
    if behind:
        names = ", ".join(member["name"] for member in behind)
        then = "each has to meet the coordinator until then" if until else "each has to join again with a new token"
        print(f"members that do not know it yet: {names}; {then}")
    return OK


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def _say(options: Options, data: dict[str, str], text: str) -> int:
    print(json.dumps(data) if options.json else text)
    return OK
