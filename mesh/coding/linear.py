"""CodedLinear: a Linear of which every worker computes one share; what comes out is decoded here.

The rows of weight and bias are cut in k blocks, as many zeros behind the last as it takes; so share i of the result is
x @ share_i(weight)^T + share_i(bias).  What is between linear layers is no sum of shares, and is computed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wire.erasure.real_mds import FLOATS, blocks_of, joined
from wire.ir.graph import WireGraph

from .. import numpy as mnp
from ..core.array import Array, Operand
from ..core.realise import realise, using
from ..nn import Linear
from ..nn.functions import linear
from ..tracing.trace import trace

if TYPE_CHECKING:
    from .coded_calls import Coding


class CodedLinear:
    """A Linear of which every worker computes one share.

    `Coding.layers` makes them.  Called with values x (..., in), it gives (..., out); within a traced function there is
    no
    decoding.

    Parameters
    ----------
    coding : Coding
        The workers and the code.
    layer : Linear
        The layer.

    Raises
    ------
    NodeLost
        If fewer than k workers answer a call.

    Notes
    -----
    The rows of weight and bias are cut in k blocks; share i of the result is `x @ share_i(weight).T + share_i(bias)`.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> from mesh import nn, random
    >>> with mesh.Mesh.builder().simulate(2).build() as m:
    ...     coded = mesh.Coding(m, n=2, k=1).layers(nn.Linear(np.array([[1.0, 2.0]]), np.array([0.5])))
    ...     print(np.round(np.asarray(coded(np.array([1.0, 1.0]))), 3), len(coded.trial(0)))
    [3.5] 2
    """

    __tree_leaf__: ClassVar[bool] = True

    def __init__(self, coding: Coding, layer: Linear) -> None:
        self._coding = coding
        weight = _floats(layer.weight)
        self._outputs = weight.shape[0]
        shares = {"weight": self._shares(weight)}
        if layer.bias is not None:
            shares["bias"] = self._shares(_floats(layer.bias))
        numbers = range(coding.code.n)
        self._held = coding.mesh.put([{name: share[number] for name, share in shares.items()} for number in numbers])
        self._graphs: dict[Any, WireGraph] = {}

    @property
    def share_bytes(self) -> int:
        """The bytes of one share, about 1 / k of the layer."""
        return sum(handle.type.size_bytes for handle in self._held[0].values())

    def __call__(self, x: Operand) -> Array:
        """x @ weight^T + bias, (..., out); NodeLost if fewer than k workers answer."""
        with using(None):  # what is between coded layers is computed here, and waits for no worker
            if isinstance(x, Array):
                realise([x], "a coded layer")
            rows: NDArray[Any] = np.asarray(x)
        graph = self._graph(rows)
        answers = self._coding.ask(graph, [(rows, *held.values()) for held in self._held])
        return mnp.asarray(joined(self._coding.code.decode(answers), self._outputs, axis=-1))

    def trial(self, number: int) -> tuple[WireGraph, tuple[Any, ...]]:
        """The smallest call that needs a share.

        Parameters
        ----------
        number : int
            The share's number, from 0.

        Returns
        -------
        tuple of WireGraph and tuple
            Its graph and arguments.
        """
        row = np.zeros(self._held[number]["weight"].shape[1:], np.float32)
        return self._graph(row), (row, *self._held[number].values())

    def _graph(self, rows: NDArray[Any]) -> WireGraph:
        """The graph of a call, the same for every share, so that an engine compiles it once."""
        key = rows.shape, rows.dtype
        if key not in self._graphs:
            self._graphs[key] = trace(_share, rows, *self._held[0].values())
        return self._graphs[key]

    def _shares(self, tensor: NDArray[Any]) -> NDArray[Any]:
        code = self._coding.code
        return code.encode(blocks_of(tensor, code.k))


def _share(x: Any, weight: Any, bias: Any = None) -> Array:
    return linear(x, weight, bias)


def _floats(tensor: Operand) -> NDArray[Any]:
    """The tensor as an array; weights of half precision become float32, so that coding costs none of theirs."""
    array: NDArray[Any] = np.asarray(tensor)
    return array if array.dtype.name in FLOATS else array.astype(np.float32)
