"""Tier `double-double`: attention and its gradients to twice the digits of float64, in NumPy."""

from attnspec.oracle.double_double.engine import enclose

__all__ = ["enclose"]
