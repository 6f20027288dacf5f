"""What training in a session is to give whatever befalls it: the bits of a run that nobody disturbed."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from mesh import Mesh, tree
from mesh.backends.config import MeshConfig

from .cases.training import batch, first_state, train


def bits(state: Any) -> list[bytes]:
    """The bytes of every leaf."""
    return [np.asarray(leaf).tobytes() for leaf in tree.leaves(state)]


@cache
def undisturbed(steps: int) -> tuple[list[float], list[bytes]]:
    """Losses of so many steps in this process, and the bits of the state after them."""
    with Mesh(MeshConfig()) as mesh, mesh.session(train, first_state(), *batch(0)) as session:
        losses = [float(session.step(*batch(step)).result()) for step in range(steps)]
        return losses, bits(session.state())
