"""Reducing trees by the names of their leaves, in whatever order a rank has them.

Ranks compare a digest of names, shapes and dtypes first, and the tables themselves where it differs, so that all of
them raise the same error, which says who lacks what.  Leaves of one dtype are reduced as one tensor.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from wire.errors import DTypeError, InputError, ShapeError
from wire.ir.dtypes import dtype_of
from wire.ir.types import HostArray, TensorType

SHOWN_MAX = 8  # of the names that a rank lacks


class Gathering(Protocol):
    """What is needed of a group."""

    def all_gather(self, array: HostArray, axis: int = 0) -> HostArray: ...


@dataclass(frozen=True, slots=True)
class Tables:
    """What the leaves of every rank are, by name; empty if that is the same everywhere."""

    by_rank: Sequence[Mapping[str, str]] = ()

    def check(self) -> None:
        """InputError naming the leaves that a rank lacks, ShapeError or DTypeError those that are not alike."""
        names = sorted({name for table in self.by_rank for name in table})
        lacking = []
        for rank, table in enumerate(self.by_rank):
            missing = [repr(name) for name in names if name not in table]
            more = f" and {len(missing) - SHOWN_MAX} more" if len(missing) > SHOWN_MAX else ""
            lacking += [f"rank {rank} lacks {', '.join(missing[:SHOWN_MAX])}{more}"] if missing else []
        if lacking:
            raise InputError(f"the ranks reduce trees with different names: {'; '.join(lacking)}", op="all_reduce")
        for name in names:
            kinds = [table[name] for table in self.by_rank]
            for rank, kind in enumerate(kinds):
                if kind != kinds[0]:
                    wrong = ShapeError if kind.partition("[")[0] == kinds[0].partition("[")[0] else DTypeError
                    raise wrong(f"{name!r} is {kinds[0]} on rank 0 and {kind} on rank {rank}", op="all_reduce")


def agreed(group: Gathering, leaves: Mapping[str, HostArray]) -> Tables:
    """The tables of all ranks where they differ."""
    table = {name: str(TensorType(array.shape, dtype_of(array))) for name, array in sorted(leaves.items())}
    text = json.dumps(table).encode()
    digest = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), np.uint8)
    digests = group.all_gather(digest[None])
    if (digests == digests[0]).all():
        return Tables()
    lengths = group.all_gather(np.asarray([len(text)], np.int64))
    padded = np.frombuffer(text.ljust(int(lengths.max()), b" "), np.uint8)
    return Tables([json.loads(bytes(row)) for row in group.all_gather(padded[None])])


def in_buffers(leaves: Mapping[str, HostArray], reduced: Callable[[HostArray], HostArray]) -> dict[str, HostArray]:
    """Leaves reduced by name: those of one dtype end to end, in the order of names."""
    if len(leaves) == 1:
        return {name: reduced(array) for name, array in leaves.items()}
    kinds: dict[np.dtype[Any], list[str]] = {}
    for name in sorted(leaves):
        kinds.setdefault(leaves[name].dtype, []).append(name)
    results: dict[str, HostArray] = {}
    for dtype in sorted(kinds, key=str):
        names = kinds[dtype]
        buffer = reduced(np.concatenate([leaves[name].reshape(-1) for name in names]))
        ends = np.cumsum([leaves[name].size for name in names])[:-1]
        for name, part in zip(names, np.split(buffer, ends), strict=True):
            results[name] = part.reshape(leaves[name].shape)
    return results
