"""The bytes of the protocol as text: one line of hex per frame, message and graph, by name.

`PYTHONPATH=tests:. python tests/support/golden.py` writes them anew, which is right only when the bytes were meant to
change (docs/protocol.md, "Versions", says what else must change then).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.frames import BODY, FRAMES
from support.messages import MESSAGES

from wire.ir.codec import encode_graph
from wire.ir.dtypes import F32, I32
from wire.ir.graph import GraphBuilder, WireGraph
from wire.protocol.frames import encode, encode_hello_body
from wire.protocol.messages import encode_message

PATH = Path(__file__).parent.parent / "golden" / "bytes.txt"


def square_sum() -> WireGraph:
    """One node of most kinds: input, param, constant, attributes of every kind, a composite, two outputs."""
    body = GraphBuilder()
    root = body.build([body.add("sqrt", body.input("a", (), F32))])
    builder = GraphBuilder()
    x = builder.input("x", (2, 3), F32)
    w = builder.param("w", (3,), F32)
    scaled = builder.add("add", builder.add("mul", x, w), builder.const(np.float32(0.5)))
    total = builder.add("reduce_sum", scaled, axes=(0, 1))
    norm = builder.add("composite", total, name="root", body=root, eps=1e-5)
    places = builder.add("iota", shape=(2,), dtype=I32.name, axis=0)
    return builder.build([norm, places], names=["norm", "places"])


def negated() -> WireGraph:
    """The smallest graph that does something."""
    builder = GraphBuilder()
    return builder.build([builder.add("neg", builder.input("x", (2,), F32))], names=["y"])


def current() -> str:
    """What this version of the code writes."""
    rows = {
        "graph small": negated().encoded,
        "graph": square_sum().encoded,
        "graph named": encode_graph(square_sum(), "sum"),
    }
    rows |= {f"frame {type(frame).__name__}": encode(frame) for frame in FRAMES}
    rows["identity"] = encode_hello_body(BODY)
    rows |= {f"message {type(message).__name__}": encode_message(message) for message in MESSAGES}
    return "".join(f"{name}: {data.hex()}\n" for name, data in rows.items())


def stored() -> dict[str, bytes]:
    """The bytes by name, as they were when they were last meant to change."""
    rows = (line.split(": ") for line in PATH.read_text().splitlines())
    return {name: bytes.fromhex(digits) for name, digits in rows}


if __name__ == "__main__":
    PATH.write_text(current())
