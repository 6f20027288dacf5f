"""Coded redundancy: layers and weights as n shares on n workers, of which any k suffice (docs/coding.md)."""

from .asking import Coding
from .linear import CodedLinear
from .weights import CodedWeights

__all__ = ["CodedLinear", "CodedWeights", "Coding"]
