"""Coded redundancy: layers and weights as n shares on n workers, of which any k suffice (docs/coding.md)."""

from .coded_calls import Coding
from .linear import CodedLinear
from .weights import CodedWeights

__all__ = ["CodedLinear", "CodedWeights", "Coding"]
