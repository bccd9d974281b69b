"""Tier `double-double`: attention and its gradients to twice the digits of float64, in NumPy."""

from attnspec.oracle.double_double.engine import enclose
from attnspec.oracle.double_double.streaming import key_gradients

__all__ = ["enclose", "key_gradients"]
