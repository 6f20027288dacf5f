"""`mesh.quantise`: a loaded model with its matrices in 8 or 4 bits per weight."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wire.errors import InputError
from wire.ir.dtypes import dtype_of

from ..nn.packed import packed_levels
from ..util.annotation_checks import checked
from .model import Model

BITS = {"int8": 8, "int4": 4}
BLOCK = 32
TABLE_BITS = 8  # rows of a table are looked up as they are, without a sum in which errors cancel
OUTPUTS = 1024  # that are rounded at once


@checked
def quantise(model: Model, to: str) -> Model:
    """Quantise the matrices of a model to few bits per weight, with a scale for each block of 32.

    They stay packed in memory, on the network, and in files (`mesh.save_safetensors(model.weights, ...)` beside the
    model's config.json).  Matrix products read the packed weights.

    Parameters
    ----------
    model : Model
        A model of a Hugging Face folder, or of a GGUF file whose weights are not packed.
    to : {"int8", "int4"}
        8.5 or 4.5 bits per weight, with the scales.  Embedding tables have 8.5 bits in either case.

    Returns
    -------
    Model
        The same model with quantised weights, which are `buffers` and are not trained.  Norms, biases, and matrices
        whose inputs are no multiple of 32 stay as they are.

    Raises
    ------
    InputError
        If there is no such form, the model does not tell which of its params are matrices, none of them can be packed,
        or a weight is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> import mesh
    >>> from mesh.models.model import InputSpec
    >>> from wire.ir.dtypes import F32
    >>> model = mesh.Model("empty", dict, [InputSpec("x", F32, (32,))], [], {})
    >>> mesh.quantise(model, "int8")
    Traceback (most recent call last):
        ...
    wire.errors.InputError: empty does not tell which of its params are matrices. Load it from a Hugging Face folder
    """
    if to not in BITS:
        raise InputError(f"weights are quantised to {' or '.join(BITS)}, not {to!r}")
    name = model.name or "the model"
    if not model.matrices:
        raise InputError(
            f"{name} does not tell which of its params are matrices", next_step="Load it from a Hugging Face folder"
        )
    params, packed = dict(model.params), dict(model.buffers)
    for weight, kind in model.matrices.items():
        matrix = params.get(weight)
        if matrix is None or matrix.ndim != 2 or dtype_of(matrix).kind != "f":
            continue
        rows = matrix.T if kind == "transposed" else matrix
        if rows.shape[1] % BLOCK or not rows.size:
            continue
        del params[weight]
        bits = TABLE_BITS if kind == "table" else BITS[to]
        packed |= {f"{weight}.{part}": array for part, array in _rounded(rows, bits, weight).items()}
    if len(params) == len(model.params):
        raise InputError(f"{name} has no matrix whose inputs are a multiple of {BLOCK}, so none can be packed")
    return Model(
        model.name, model._function, model.inputs, model.outputs, params, model.text,
        buffers=packed, tied=model.tied, hint=model.hint, matrices=model.matrices,
    )  # fmt: skip


def _rounded(rows: NDArray[Any], bits: int, name: str) -> dict[str, NDArray[Any]]:
    """The parts of a matrix (out, in): levels around 2^(bits - 1), with a step of float16 for each block."""
    pieces = [_some(np.asarray(rows[first : first + OUTPUTS], np.float32), bits, name)
              for first in range(0, len(rows), OUTPUTS)]  # fmt: skip
    made = {part: np.concatenate([piece[part] for piece in pieces], axis=1) for part in pieces[0]}
    for array in made.values():
        array.flags.writeable = False
    return made


def _some(rows: NDArray[np.float32], bits: int, name: str) -> dict[str, NDArray[Any]]:
    if not np.isfinite(rows).all():
        raise InputError(f"{name} has weights that are infinite or no number")
    outputs, inputs = rows.shape
    blocks, most = rows.reshape(outputs, -1, BLOCK), 1 << (bits - 1)
    if bits == 8:
        steps = np.abs(blocks).max(axis=2) / (most - 1)
    else:  # the weight of the largest magnitude is -8 steps, as in GGUF's Q4_0
        largest = np.abs(blocks).argmax(axis=2)
        steps = np.take_along_axis(blocks, largest[..., None], axis=2)[..., 0] / -most
    with np.errstate(over="ignore"):
        scales = steps.astype(np.float16)
    if not np.isfinite(scales).all():
        raise InputError(f"{name} has weights of {np.abs(rows).max():.1e}, whose steps float16 can't hold")
    divisors = np.where(scales, scales, 1).astype(np.float32)  # the steps as they are kept
    levels = np.clip(np.rint(blocks / divisors[..., None]), -most, most - 1) + most
    levels = np.where(scales[..., None], levels, most)  # of steps too small for float16
    return {**packed_levels(levels.astype(np.uint8).reshape(outputs, inputs), bits),
            "scales": np.ascontiguousarray(scales.T)}  # fmt: skip
