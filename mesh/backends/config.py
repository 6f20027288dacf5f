"""MeshConfig: the settings of a mesh as data, and their defaults.

A new setting is a field here and a method of MeshBuilder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from wire.addresses import check_name
from wire.joining.join_tokens import Token
from wire.system.private_folder import login_name, state_root
from wire.timeouts import DEFAULT_TIMEOUTS, Timeouts

from .enrolment import joined_mesh


@dataclass(frozen=True, slots=True)
class LocalSpec:
    """Workers to start on this machine, with `threads` threads each; with 0 they share its cores."""

    count: int
    engine: str | tuple[str, ...]
    cache_dir: Path | None
    memory_bytes: int | None
    threads: int


@dataclass(frozen=True, slots=True)
class DiscoverSpec:
    wait_s: float
    nodes_min: int


@dataclass(frozen=True, slots=True)
class SimulateSpec:
    """Simulated workers: the speed of each in GFLOP/s, and the seed of all random events."""

    gflops: tuple[float, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class MeshConfig:
    """All settings of a builder."""

    mesh: str = ""
    addresses: tuple[tuple[str, int], ...] = ()
    local: LocalSpec | None = None
    discover: DiscoverSpec | None = None
    simulate: SimulateSpec | None = None
    timeouts: Timeouts = DEFAULT_TIMEOUTS
    chosen: tuple[tuple[str, float], ...] = field(default=(), repr=False)  # of these those that hold with any preset
    token: Token | None = None  # makes this user a client of the mesh where it is none yet
    audit: float = 0.0
    plan_ahead: bool = True
    reproducible: bool = False  # only plans of which all have the same bits (docs/planning.md)
    copies: str = "checkpoint"  # of params (wire/policy/redundancy.py)


def default_mesh_name() -> str:
    """The mesh this user belongs to by default; ConfigError if MESH_NAME is no name."""
    return check_name("mesh", os.environ.get("MESH_NAME") or joined_mesh() or f"default-{login_name()}")


def coordinator_folder(mesh: str, name: str, state_dir: str) -> Path:
    """The folder of a coordinator daemon's identity and jobs; no worker's folder begins with @."""
    return state_root(state_dir) / mesh / f"@{name}"


def default_name() -> str:
    """The name of a program that coordinates a mesh or asks a coordinator."""
    return f"python-{os.getpid()}"
