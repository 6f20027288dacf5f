"""The rows of the ONNX importer: one function per op, in a table per family.

A row takes its `Call` and the node's inputs (None for one that is absent) and returns its outputs.  It covers every
opset version of its op that differs in form only (an attribute that became an input); `call.version` tells the rest.
To add an op: a function and a row in the table of its family.
"""

from __future__ import annotations

from ..evaluate import Row
from ..program import DOMAIN
from . import (
    control,
    conv,
    elementwise,
    indexing,
    linalg,
    normalise,
    ordering,
    pooling,
    quantised,
    random,
    recurrent,
    reductions,
    resize,
    sampling,
    shapes,
    signal,
    tfidf,
)

FAMILIES = (
    random,
    conv,
    control,
    elementwise,
    tfidf,
    indexing,
    linalg,
    normalise,
    ordering,
    pooling,
    quantised,
    recurrent,
    reductions,
    resize,
    sampling,
    shapes,
    signal,
)
ROWS: dict[tuple[str, str], Row] = {(DOMAIN, name): row for family in FAMILIES for name, row in family.ROWS.items()}
