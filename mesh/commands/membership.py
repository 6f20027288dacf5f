"""Verbs about who is in a mesh: tokens, throwing a node out, its authority, and joining as a client.

What an admin decides works in the folder of the mesh's authority where that is this user's, whether its coordinator
runs or not.  Elsewhere the coordinator is asked, and answers who has the role.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from wire.errors import ConfigError
from wire.roles import JOINING, WORKER
from wire.timeouts import CLIENT

from ..util.units import counted, parse_duration
from .exit_codes import FAILED, OK
from .find_coordinator import COORDINATOR_HELP, Ask, on_a_coordinator
from .flags import add_action, add_timeouts, mesh_name, name_of_one, timeouts
from .output import say
from .tables import print_records

if TYPE_CHECKING:
    from wire.protocol.messages import AuthorityReport

    from ..backends.home_authority import HomeAuthority
    from ..backends.remote import Remote

Options = argparse.Namespace
Admin = Union["HomeAuthority", "Remote"]


async def token_create(options: Options, admin: Admin) -> int:
    """Create a token and show it, this once."""
    made = await admin.create_token(options.role, options.uses, parse_duration(options.ttl), options.untrusted)
    return _say(options, {"id": made.id, "token": made.token}, made.token)


async def token_list(options: Options, admin: Admin) -> int:
    """List the tokens, and how many nodes each has let in."""
    header = ("id", "role", "state", "used", "expires")
    rows = [
        (
            each.id,
            each.role + (", untrusted" if each.untrusted else ""),
            each.state,
            f"{each.used} of {each.uses}",
            _moment(each.expires_s),
        )
        for each in (await admin.tokens()).tokens
    ]
    print_records(header, rows, options.json)
    return OK


async def token_revoke(options: Options, admin: Admin) -> int:
    """Revoke a token; the nodes that it let in stay."""
    await admin.revoke_token(options.id)
    text = f"token {options.id} lets nobody in any more; the nodes it let in stay"
    return _say(options, {"id": options.id, "state": "withdrawn"}, text)


async def nodes_revoke(options: Options, admin: Admin) -> int:
    """Remove a node from the mesh: its links end within a second, and its key is not accepted again."""
    out = await admin.revoke_node(options.node)
    return _say(options, {"node": out.node, "name": out.name}, f"{out.name} ({out.node}) is out")


async def authority_show(options: Options, admin: Admin) -> int:
    """Show the authority, and the members that have no certificate of it yet."""
    return _tell_authority(options, await admin.authority())


async def authority_rotate(options: Options, admin: Admin) -> int:
    """Give the mesh a new authority; the former one is trusted for the overlap."""
    return _tell_authority(options, await admin.rotate_authority(parse_duration(options.overlap)))


def authority_audit(options: Options) -> int:
    """Check that no line of the audit log was changed, removed or inserted."""
    from coordinator.authority.audit_log import verify

    mesh = mesh_name(options)
    verdict = verify(_folder_at_home(mesh, options.state_dir))
    lines = counted(verdict.lines, "line")
    if verdict.broken:
        text = f"the audit log of mesh {mesh} was changed at {verdict.broken}, after {lines} that follow each other"
    else:
        text = f"the audit log of mesh {mesh} has {lines}, and none was changed, removed or inserted"
    data = {"lines": verdict.lines, "changed_at": verdict.broken}
    say(json.dumps(data) if options.json else text)
    return FAILED if verdict.broken else OK


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


AUTHORITY_HELP = "the folder of the mesh's authority (default: the user's state folder)"


def token_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _add_coordinator_option(parser)
    create = _admin_action(actions, "create", token_create)
    create.add_argument(
        "--uses", type=int, default=1, metavar="N", help="how many machines may join with it (default: %(default)s)"
    )
    create.add_argument("--ttl", default="15m", metavar="TIME", help="how long it is valid (default: %(default)s)")
    create.add_argument("--role", choices=JOINING, default=WORKER, help="what they join as (default: %(default)s)")
    theirs = "the workers are on other people's machines: some of their parts are computed again elsewhere and compared"
    create.add_argument("--untrusted", action="store_true", help=theirs)
    _admin_action(actions, "list", token_list)
    _admin_action(actions, "revoke", token_revoke).add_argument(
        "id", metavar="ID", help="the id of a token, as token list shows it"
    )


def nodes_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--watch", action="store_true", help="go on, and print every change of a worker's state")
    actions = parser.add_subparsers(metavar="[pause | resume | revoke NODE]")
    revoke = _admin_action(actions, "revoke", nodes_revoke)
    asking = [
        _action_on_coordinator(actions, "pause", nodes_pause),
        _action_on_coordinator(actions, "resume", nodes_resume),
    ]
    for action in (revoke, *asking):
        named = "the node's name, its id, or the first characters of its id"
        action.add_argument("node", metavar="NODE", type=name_of_one, help=named)


def sessions_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="[end NAME]")
    end = _action_on_coordinator(actions, "end", sessions_end)
    end.add_argument("session", metavar="NAME", type=name_of_one, help="the session's name")


def promote_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="coordinator", help="the name of the standby (default: %(default)s)")
    folder = "the folder of its identity and jobs (default: the user's state folder)"
    parser.add_argument("--state-dir", default="", metavar="DIR", help=folder)


def authority_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _add_coordinator_option(parser)
    _admin_action(actions, "show", authority_show)
    audit = add_action(actions, "audit", authority_audit, authority_audit)
    audit.add_argument("--state-dir", default="", metavar="DIR", help=AUTHORITY_HELP)
    rotate = _admin_action(actions, "rotate", authority_rotate)
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


def _add_coordinator_option(parser: argparse.ArgumentParser) -> None:
    """The options of a verb whose actions may have to ask a coordinator."""
    parser.add_argument("--coordinator", metavar="HOST:PORT", help=COORDINATOR_HELP)
    add_timeouts(parser)


def _admin_action(
    actions: Any, name: str, decide: Callable[[Options, Admin], Awaitable[int]]
) -> argparse.ArgumentParser:
    """An action of an admin: in the authority's folder, where that is this user's, or else by its coordinator."""
    parser = add_action(actions, name, decide, lambda options: _decide(options, decide))
    parser.add_argument("--state-dir", default="", metavar="DIR", help=AUTHORITY_HELP)
    parser.add_argument("--coordinator", default=argparse.SUPPRESS, metavar="HOST:PORT", help=COORDINATOR_HELP)
    return parser


def _action_on_coordinator(actions: Any, name: str, ask: Ask) -> argparse.ArgumentParser:
    parser = add_action(actions, name, ask, on_a_coordinator(ask))
    parser.add_argument("--coordinator", default=argparse.SUPPRESS, metavar="HOST:PORT", help=COORDINATOR_HELP)
    return parser


# -- helpers ----------------------------------------------------------------------------------------------


def _decide(options: Options, decide: Callable[[Options, Admin], Awaitable[int]]) -> int:
    from ..backends.enrolment import at_home, is_client

    mesh = mesh_name(options)
    if not at_home(mesh, options.state_dir) and not options.state_dir and is_client(mesh):
        return on_a_coordinator(decide)(options)
    folder = _folder_at_home(mesh, options.state_dir)
    from coordinator.authority.authority import Authority

    from ..backends.home_authority import HomeAuthority

    home = HomeAuthority(Authority(folder, mesh))

    async def at_home_decide() -> int:
        return await decide(options, home)

    return asyncio.run(at_home_decide())


def _folder_at_home(mesh: str, state_dir: str) -> Path:
    """The folder of the authority; ConfigError if it is not on this machine, or not this user's."""
    from ..backends.enrolment import at_home, authority_folder

    if not at_home(mesh, state_dir):
        raise ConfigError(
            f"the authority of mesh {mesh!r} is not on this machine, or not this user's",
            next_step="Ask on the machine, and as the user, that runs mesh-coord serve, or join as an admin: "
            "mesh-coord token create --role admin there, then mesh-coord join here",
        )
    return authority_folder(mesh, state_dir)


def _tell_authority(options: Options, report: AuthorityReport) -> int:
    behind = [{"name": member.name, "node": member.node, "role": member.role} for member in report.behind]
    withdrawn = list(report.withdrawn)
    if options.json:
        until_s = {"former_until": report.former_until_s} if report.former_until_s else {}
        data = {"authority": report.name, "number": report.number, "behind": behind, "tokens_revoked": withdrawn}
        say(json.dumps(data | until_s))
        return OK
    until = f"; the one before is trusted until {_moment(report.former_until_s)}" if report.former_until_s else ""
    say(f"the authority of mesh {mesh_name(options)} is {report.name}, its number {report.number}{until}")
    if withdrawn:
        say(f"tokens made before were revoked: {', '.join(withdrawn)}; make new ones with: mesh-coord token create")
    if behind:
        names = ", ".join(member["name"] for member in behind)
        then = "each has to meet the coordinator until then" if until else "each has to join again with a new token"
        say(f"members that do not know it yet: {names}; {then}")
    return OK


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def _say(options: Options, data: dict[str, str], text: str) -> int:
    say(json.dumps(data) if options.json else text)
    return OK
