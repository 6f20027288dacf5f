"""Roles: what a node's certificate says that it is, and whose node it is.  Pure.

A worker computes, a coordinator decides, and the other roles are programs and people that ask.  Each of these may do
all that the ones before it may: a client what concerns its own work, an operator what concerns all work, an admin
what concerns who is in the mesh.
"""

from __future__ import annotations

WORKER, COORDINATOR = "worker", "coordinator"
CLIENT, OPERATOR, ADMIN = "client", "operator", "admin"
ASKING = (CLIENT, OPERATOR, ADMIN)  # the later may do what the earlier may
MORE = (OPERATOR, ADMIN)  # these may do more than a client, and are clients to releases without these roles
JOINING = (WORKER, *ASKING)  # what a token may be for: nobody joins as a coordinator
ROLES = (*JOINING, COORDINATOR)


def may(role: str, needed: str) -> bool:
    """Whether a node of a role may do what one of ASKING is needed for."""
    return role in ASKING and ASKING.index(role) >= ASKING.index(needed)


def lets_in(token: str, asked: str) -> bool:
    """Whether a token of one role lets in a node that asks for another.  A node that asks to be a client cannot know
    how much its token is for, and gets that."""
    return asked == token or (asked == CLIENT and token in ASKING)


def member_id(node_id: str) -> str:
    """The member that a node is, or is a process of."""
    return node_id.partition("/")[0]
