"""Administration: requests of people to a coordinator or a node, about nodes, pauses, tokens and logs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .fields import Addresses, Count, Message, Name, Record, Seconds, Text
from .link import DeviceReport


class AskNodes(Message, frozen=True):
    """List the nodes, and with `pairs` the links between them.  Answered by Nodes.  `after` is where the previous
    answer ended: the id of its last node, or the two ends of its last pair."""

    pairs: bool = False
    after: Annotated[tuple[Name, ...], Meta(max_length=2)] = ()


class NodeReport(Record, frozen=True):
    name: Name
    node_id: Name
    pid: Count
    addresses: Addresses
    state: Name  # healthy, paused, stuck, quarantined, suspect, dead, left
    version: Name
    devices: tuple[DeviceReport, ...]
    silent_s: Seconds = 0.0  # since it was last heard
    system: Name = ""  # its operating system: Linux, Darwin, Windows
    without_gpu: Text = ""  # as in Joined
    loop_lag_s: Seconds = 0.0  # as in Beat
    sandbox: Text = ""  # as in Joined


class PairReport(Record, frozen=True):
    """How one node reaches another, both by name, as a probe measured it.  `path` is direct, shared memory, relay, or
    "?" while it is unknown.  `address` is where it was dialled, and `cause` why it was not reached."""

    source: Name
    target: Name
    path: Name
    rtt_s: Seconds
    bytes_per_s: Seconds  # 0: not measured
    address: Name = ""
    cause: Text = ""


class Nodes(Message, frozen=True):
    """The nodes and pairs that fit into a message, nodes first.  Of the ops that a device computes, the report names
    one, or none if the device was given up."""

    nodes: tuple[NodeReport, ...]
    node_timeout_s: Seconds = 0.0  # after which a silent one is dead
    pairs: tuple[PairReport, ...] = ()
    time_s: Seconds = 0.0  # the coordinator's clock, Unix time
    system: Name = ""  # the coordinator's
    more: bool = False  # these are not all: ask for those after them
    loop_lag_s: Seconds = 0.0  # the coordinator's


class PauseNode(Message, frozen=True):
    """Pause a worker, or (`on` false) end its pause.  `node` is its name, its id or the first characters of its id.
    Answered by Done."""

    node: Name
    on: bool


class RevokeNode(Message, frozen=True):
    """Remove a node from the mesh, by its name, its id or the first characters of its id.  Answered by Revoked."""

    node: Name


class Revoked(Message, frozen=True):
    """The id and the name of the node that was removed."""

    node: Name
    name: Name


class CreateToken(Message, frozen=True):
    """Make a join token for `uses` nodes of this role.  With `untrusted`, these nodes are on other people's machines.
    Answered by TokenCreated."""

    role: Name
    uses: Count
    ttl_s: Seconds
    untrusted: bool = False


class TokenCreated(Message, frozen=True):
    """The token's id, and its text, which is sent only this once."""

    id: Name
    token: Name


class AskTokens(Message, frozen=True):
    """List all tokens.  Answered by Tokens."""


class TokenReport(Record, frozen=True):
    id: Name
    role: Name
    state: Name  # open, withdrawn, expired, used
    used: Count  # nodes that it let in
    uses: Count
    expires_s: Seconds  # Unix time
    untrusted: bool = False


class Tokens(Message, frozen=True):
    tokens: Annotated[tuple[TokenReport, ...], Meta(max_length=1024)]


class RevokeToken(Message, frozen=True):
    """Withdraw a token by its id: no node can join with it any more.  Answered by Done."""

    id: Name


class AskAuthority(Message, frozen=True):
    """Ask for the authority of the mesh.  Answered by AuthorityReport."""


class RotateAuthority(Message, frozen=True):
    """Give the mesh a new authority.  The previous one is trusted for another `overlap_s`.  Answered by
    AuthorityReport."""

    overlap_s: Seconds


class MemberReport(Record, frozen=True):
    name: Name
    node: Name  # its id
    role: Name


class AuthorityReport(Message, frozen=True):
    """The authority by its `name` and its `number`.  The previous one is trusted until `former_until_s` (Unix time; 0
    if there is none).  `behind` lists the members that have no certificate of the new authority yet, and `withdrawn`
    the ids of the tokens that were withdrawn because of it."""

    name: Name
    number: Count
    former_until_s: Seconds
    behind: Annotated[tuple[MemberReport, ...], Meta(max_length=4096)] = ()
    withdrawn: Annotated[tuple[Name, ...], Meta(max_length=1024)] = ()


class TailLog(Message, frozen=True):
    """Ask a node for its last `lines` log lines.  Answered by LogLines."""

    lines: Annotated[int, Meta(ge=0, le=1000)]


class LogLines(Message, frozen=True):
    lines: Annotated[tuple[Text, ...], Meta(max_length=1000)]
