"""Tier `double-double`: attention and its gradients to twice the digits of float64, in NumPy."""

from attnspec.oracle.double_double.engine import enclose, key_gradients

__all__ = ["enclose", "key_gradients"]
