"""The classes of faults: kinds that have one cause in common, as bug reports are sorted by it."""

from __future__ import annotations

__all__ = ["CLASSES", "class_of"]

CLASSES = {
    "visible set": (
        *("causal-alignment", "causality", "window", "mask-polarity", "option-ignored"),
        *("kv-offset", "block-mask", "bwd-mask"),
    ),
    "layout": ("stride-ignored", "broadcast", "output-layout", "layout-mixup"),
    "arithmetic": ("overflow", "acc-precision", "wrong-scale", "softcap-order", "quant-leak"),
    "empty rows": ("mask-neginf", "nan-leak", "nan-swallow", "missing-rescale"),
    "lse, splits, sinks": ("lse", "split", "sink"),
    "tails": ("tail-tile", "bwd-tail", "varlen-leak"),
    "state": ("nondeterminism", "uninit", "input-mutation", "stale-cache", "contract"),
    "cheats": ("harness", "oracle-shared-fault"),
    "index overflow": ("index-overflow",),
    "backward alone": ("bwd-block", "bwd-batch", "bwd-null", "bwd-scale"),
    "heads": ("gqa-map",),
    "dropout": ("dropout-rng", "dropout-order", "dropout-bwd", "dropout-eval"),
    "batches, pages": ("batch-dependence", "paged"),
    "memory": ("memory",),
}
"""Every kind that a fault may be registered with, by its class."""

_CLASS_OF = {kind: name for name, kinds in CLASSES.items() for kind in kinds}


def class_of(kind: str) -> str:
    """The class of a kind of fault; ValueError for a kind that has none."""
    if kind not in _CLASS_OF:
        raise ValueError(f"no kind of fault {kind!r}: one of {', '.join(sorted(_CLASS_OF))}")
    return _CLASS_OF[kind]
