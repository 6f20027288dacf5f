"""Step config: what a training step is to be, as a value.  It knows no mesh and no data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from wire.errors import InputError
from wire.policy.strategies import Split, Strategy, text_of

from ..optim import Optimiser
from ..util.argument_checks import value_text

PRECISIONS = {"f32": None, "f16": "float16", "bf16": "bfloat16"}  # the dtype of computations; None is the params' own
SCALE_FIRST, SCALE_MAX = 2.0**16, 2.0**24
SCALE_STEPS = 2000  # steps in a row without an overflow, after which the scale doubles (Micikevicius et al., 2018)


@dataclass(frozen=True, slots=True)
class TopK:
    """Compression of gradients: a rank sends the largest numbers of each bucket, and the rest with later steps.

    Parameters
    ----------
    share : float, optional
        The share of the numbers that is sent, in (0, 1].

    Raises
    ------
    InputError
        If the share is not in (0, 1].

    Notes
    -----
    Stich et al., 2018 (arXiv 1809.07599); what was not sent: Karimireddy et al., 2019 (arXiv 1901.09847).

    Examples
    --------
    >>> from mesh.training import TopK
    >>> TopK(0.05)
    TopK(share=0.05)
    """

    share: float = 0.01

    def __post_init__(self) -> None:
        if isinstance(self.share, bool) or not isinstance(self.share, Real) or not 0 < self.share <= 1:
            raise InputError(f"TopK sends a share of the gradients in (0, 1], not {self.share!r}")


Compression = str | TopK | None


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a training step computes.

    `loss(params, *batch)` gives one loss per row of the batch, or a number, which has to be the mean over rows.
    `accumulate` batches make one step.  `precision` is that of computations and of what data-parallel ranks exchange;
    weights stay as they are.  `clip` bounds the global norm of gradients.  `shards` above 0 are how many parts a batch
    always has, whoever computes them.  `bucket_bytes` travel at once.  `staged`: the parts of a step go through stages,
    and
    with `updates` the weights change after each of them.
    """

    loss: Callable[..., Any]
    optimiser: Optimiser
    accumulate: int = 1
    precision: str = "f32"
    clip: float | None = None
    compression: Compression = None
    shards: int = 0
    bucket_bytes: int = 4 << 20
    seed: int = 0
    staged: bool = False
    updates: bool = False

    def __post_init__(self) -> None:
        if not callable(self.loss):
            raise InputError(f"a loss is a function of params and a batch, not {self.loss!r}")
        if not isinstance(self.optimiser, tuple) or not all(
            hasattr(self.optimiser, name) for name in ("init", "update")
        ):
            raise InputError(
                f"{value_text(self.optimiser)} is no optimiser", next_step="Choose one of mesh.optim: optim.adam(1e-3)"
            )
        if self.clip is not None and not (isinstance(self.clip, (int, float, np.number)) and self.clip > 0):
            raise InputError(f"clip bounds the norm of gradients by a number above 0, not {self.clip!r}")
        if not isinstance(self.precision, str) or self.precision not in PRECISIONS:
            raise InputError(
                f"precision={self.precision!r} is not known", next_step=f"Choose one of {', '.join(PRECISIONS)}"
            )
        named = isinstance(self.compression, str) and self.compression in ("f16", "int8")
        if not (self.compression is None or named or isinstance(self.compression, TopK)):
            raise InputError(
                f"compression={self.compression!r} is not known", next_step="Choose 'f16', 'int8' or TopK(share)"
            )
        for name, least in (("accumulate", 1), ("shards", 0), ("bucket_bytes", 1)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise InputError(f"{name} is an int of at least {least}, not {getattr(self, name)!r}")
        if self.staged and (self.shards or self.compression):
            raise InputError(
                "stages of a pipeline exchange no shards, and their gradients are not compressed",
                next_step="Leave out deterministic and compression, or choose DataParallel()",
            )
        if self.shards and (self.compression or self.accumulate > 1):
            raise InputError(
                "deterministic training neither compresses gradients nor accumulates them",
                next_step="Make the batch larger: its shards are computed one after the other",
            )
        if self.updates and self.clip is not None:
            raise InputError(
                "the schedule 'pipedream' changes each stage's weights before the norm of all gradients is known",
                next_step="Leave out clip, or choose schedule='1f1b'",
            )

    @property
    def narrow(self) -> str | None:
        """The dtype of computations that are narrower than the params; None if they are not."""
        return PRECISIONS[self.precision]

    @property
    def scales(self) -> bool:
        """Whether the loss is scaled, since small gradients would vanish."""
        return self.precision == "f16"

    @property
    def takes_key(self) -> bool:
        """Whether the loss wants a key of its own for random numbers."""
        return "key" in inspect.signature(self.loss).parameters

    def check_reproducible(self, strategy: Strategy) -> None:
        """InputError, which says what to choose, where the bits of weights would follow the number of workers."""
        if self.compression:
            raise InputError(
                "compressed gradients are not reproducible: what is left unsent follows the number of workers",
                next_step="Leave out compression, or build the mesh without reproducible",
            )
        if self.shards:  # the same parts make every batch, whoever computes them
            return
        text_of(strategy, reproducible=True)
        if isinstance(strategy, Split):
            raise InputError(
                f"training by {strategy.word!r} is not reproducible: the order in which gradients are added up follows "
                "the number of workers",
                next_step="Train with DistributedTrainer(deterministic=N), choose Auto(), Single() or Pipeline(), or "
                "build the mesh without reproducible",
            )


__all__ = ["Compression", "Recipe", "TopK"]
