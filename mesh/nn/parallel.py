"""Tensor parallelism: linear maps whose weights are split over an axis of a grid.

    up = AllToShardedLinear.init(keys[0], width, hidden, grid=grid, axis="tp")
    down = ShardedToAllLinear.init(keys[1], hidden, width, grid=grid, axis="tp")
    y = down(gelu(up(x)))          # every rank has a share of the hidden features; one all_reduce, of y

The first splits its output features, the second its input features, so that between them nothing is exchanged: Shoeybi
et al., 2019, "Megatron-LM" (arXiv 1909.08053).  The names are MLX's.  They compute what `Linear` does, and only ask
(`mesh.shard`) for their weights to be split; sizes need not divide.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from wire.errors import ShapeError

from .. import numpy as mnp
from ..core.array import Array, Operand
from ..numpy.contraction import Labelled, contract
from ..numpy.promotion import asarray, operands
from ..spmd.annotations import shard
from ..spmd.grid import Grid, PartitionSpec
from ..util.annotation_checks import checked
from . import functions, initialisers
from .initialisers import Initialiser
from .layers import STATIC, Linear


@dataclass(frozen=True, slots=True)
class AllToShardedLinear:
    """A linear map of which every rank along an axis computes some output features.

    Called with x (..., in), it gives (..., out), or a tuple of one array (..., out) per segment.

    Parameters
    ----------
    weight : Array, (out, in) or (segments, out, in)
        The matrix, or one per segment.
    bias : Array, (out,) or (segments, out), or None
        What is added to every row.
    grid : Grid
        The ranks.
    axis : str
        The grid's axis that splits the weights.

    Raises
    ------
    ShapeError
        If the shapes do not fit.

    Notes
    -----
    Shoeybi et al., 2019, "Megatron-LM" (arXiv 1909.08053).

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> from mesh import nn, random
    >>> grid = mesh.Grid((2,), ("tp",))
    >>> up = nn.AllToShardedLinear.init(random.key(0), 4, 8, grid=grid, axis="tp")
    >>> down = nn.ShardedToAllLinear.of(nn.Linear.init(random.key(1), 8, 4), grid=grid, axis="tp")
    >>> down(nn.relu(up(np.ones((3, 4), np.float32)))).shape
    (3, 4)
    >>> qkv = nn.AllToShardedLinear.init(random.key(0), 4, 12, grid=grid, axis="tp", segments=3)
    >>> q, k, v = qkv(np.ones(4))
    >>> q.shape
    (4,)
    """

    weight: Operand
    bias: Operand | None
    grid: Grid = field(metadata=STATIC)
    axis: str = field(metadata=STATIC)

    @classmethod
    @checked
    def init(
        cls, key: Operand, inputs: int, outputs: int, *, grid: Grid, axis: str, segments: int = 1, bias: bool = True,
        initialiser: Initialiser = initialisers.lecun_normal, dtype: DTypeLike = np.float32,
    ) -> AllToShardedLinear:  # fmt: skip
        """Make a layer with first weights and a bias of 0.

        Parameters
        ----------
        key : array_like, uint32 (2,)
            A key of `mesh.random`.
        inputs : int
            The number of features of x.
        outputs : int
            The number of features that come out, of all segments together.
        grid : Grid
            The ranks.
        axis : str
            The grid's axis that splits the weights.
        segments : int, optional
            In how many arrays the outputs come, such as query, key and value of the same heads.
        bias : bool, optional
            Whether there is a bias.
        initialiser : callable, optional
            A function (key, shape, dtype) of the first weight, as in `mesh.nn.initialisers`.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        AllToShardedLinear
            The layer.

        Raises
        ------
        InputError
            If a size is no int, or the grid has no such axis.
        ShapeError
            If the segments do not divide the outputs.
        """
        linear = Linear.init(key, inputs, outputs, bias=bias, initialiser=initialiser, dtype=dtype)
        return cls.of(linear, grid=grid, axis=axis, segments=segments)

    @classmethod
    @checked
    def of(cls, linear: Linear, *, grid: Grid, axis: str, segments: int = 1) -> AllToShardedLinear:
        """Split the output features of a Linear.

        Parameters
        ----------
        linear : Linear
            The layer to split.
        grid : Grid
            The ranks.
        axis : str
            The grid's axis that splits the weights.
        segments : int, optional
            In how many arrays the outputs come, such as query, key and value of the same heads.

        Returns
        -------
        AllToShardedLinear
            The layer, with the weights of the given one.

        Raises
        ------
        ShapeError
            If the segments do not divide the outputs.
        InputError
            If the grid has no such axis.
        """
        grid.axes(axis)
        weight, bias = asarray(linear.weight), None if linear.bias is None else asarray(linear.bias)
        if weight.ndim != 2:
            raise ShapeError(f"a Linear has a weight (out, in), got {weight.shape}")
        outputs, inputs = weight.shape
        if segments < 1 or outputs % segments:
            raise ShapeError(f"{outputs} features are not cut into {segments} segments")
        if segments > 1:
            weight = mnp.reshape(weight, (segments, outputs // segments, inputs))
            bias = None if bias is None else mnp.reshape(bias, (segments, outputs // segments))
        return cls(weight, bias, grid, axis)

    def __call__(self, x: Operand) -> Any:
        rows, weight = operands(x, self.weight)
        if weight.ndim not in (2, 3):
            raise ShapeError(f"the weight is (out, in) or (segments, out, in), got {weight.shape}")
        if rows.ndim < 1 or rows.shape[-1] != weight.shape[-1]:
            raise ShapeError(f"expected x (..., {weight.shape[-1]}), got {rows.shape}")
        labels = ("segment", "out")[3 - weight.ndim :]
        split = PartitionSpec(*[self.axis if label == "out" else None for label in labels])
        free = tuple(range(rows.ndim - 1))
        made = contract(
            Labelled(rows, (*free, "in")),
            Labelled(shard(weight, split, self.grid), (*labels, "in")),
            (*free, *labels),
        )
        if self.bias is not None:
            made = made + shard(asarray(self.bias), split, self.grid)
        return made if weight.ndim == 2 else tuple([made[..., place, :] for place in range(weight.shape[0])])


@dataclass(frozen=True, slots=True)
class ShardedToAllLinear:
    """A linear map of which every rank along an axis has some input features; the ranks' results are added up.

    Called with x (..., in), it gives (..., out).

    Parameters
    ----------
    weight : Array, (out, in)
        The matrix.
    bias : Array, (out,), or None
        What is added to every row.
    grid : Grid
        The ranks.
    axis : str
        The grid's axis that splits the weights.

    Raises
    ------
    ShapeError
        If the shapes do not fit.

    Notes
    -----
    Shoeybi et al., 2019, "Megatron-LM" (arXiv 1909.08053).

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> from mesh import nn, random
    >>> grid = mesh.Grid((2,), ("tp",))
    >>> up = nn.AllToShardedLinear.init(random.key(0), 4, 8, grid=grid, axis="tp")
    >>> down = nn.ShardedToAllLinear.of(nn.Linear.init(random.key(1), 8, 4), grid=grid, axis="tp")
    >>> down(nn.relu(up(np.ones((3, 4), np.float32)))).shape
    (3, 4)
    """

    weight: Operand
    bias: Operand | None
    grid: Grid = field(metadata=STATIC)
    axis: str = field(metadata=STATIC)

    @classmethod
    @checked
    def init(
        cls, key: Operand, inputs: int, outputs: int, *, grid: Grid, axis: str, bias: bool = True,
        initialiser: Initialiser = initialisers.lecun_normal, dtype: DTypeLike = np.float32,
    ) -> ShardedToAllLinear:  # fmt: skip
        """Make a layer with first weights and a bias of 0.

        Parameters
        ----------
        key : array_like, uint32 (2,)
            A key of `mesh.random`.
        inputs : int
            The number of features of x.
        outputs : int
            The number of features that come out.
        grid : Grid
            The ranks.
        axis : str
            The grid's axis that splits the weights.
        bias : bool, optional
            Whether there is a bias.
        initialiser : callable, optional
            A function (key, shape, dtype) of the first weight, as in `mesh.nn.initialisers`.
        dtype : dtype_like, optional
            The dtype of the weights.

        Returns
        -------
        ShardedToAllLinear
            The layer.

        Raises
        ------
        InputError
            If a size is no int, or the grid has no such axis.
        """
        linear = Linear.init(key, inputs, outputs, bias=bias, initialiser=initialiser, dtype=dtype)
        return cls.of(linear, grid=grid, axis=axis)

    @classmethod
    @checked
    def of(cls, linear: Linear, *, grid: Grid, axis: str) -> ShardedToAllLinear:
        """Split the input features of a Linear.

        Parameters
        ----------
        linear : Linear
            The layer to split.
        grid : Grid
            The ranks.
        axis : str
            The grid's axis that splits the weights.

        Returns
        -------
        ShardedToAllLinear
            The layer, with the weights of the given one.

        Raises
        ------
        InputError
            If the grid has no such axis.
        """
        grid.axes(axis)
        return cls(linear.weight, linear.bias, grid, axis)

    def __call__(self, x: Operand) -> Array:
        weight = shard(asarray(self.weight), PartitionSpec(None, self.axis), self.grid)
        return functions.linear(x, weight, self.bias)


__all__ = ["AllToShardedLinear", "ShardedToAllLinear"]
