"""What engines are called, and which of them compute on the processor, in the host's own memory."""

from __future__ import annotations

CPU = "cpu"  # numpy
NATIVE = "native"  # machine code for this processor
ON_CPU = frozenset({CPU, NATIVE})
