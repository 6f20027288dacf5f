"""The cpu engine: numpy, the oracle of every other engine, and the production path where there is no GPU."""

from .engine import CpuEngine, evaluate

__all__ = ["CpuEngine", "evaluate"]
