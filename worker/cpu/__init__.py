"""The cpu engine: numpy, the reference in tests of all other engines; it computes where no GPU or machine code can."""

from .engine import CpuEngine, evaluate

__all__ = ["CpuEngine", "evaluate"]
