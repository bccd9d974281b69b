"""How much an output cancels: the magnitudes of the terms that it is a sum of, added up.

An output that is much smaller than its conditioning keeps few digits in any arithmetic: a backward
stable kernel errs by some unit roundoffs of the conditioning, not of the output.
"""

from __future__ import annotations

import numpy as np

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Head, Problem

__all__ = ["conditioning"]


def conditioning(problem: Problem, output: str) -> Float64Array:
    """The sum of the magnitudes of an output's terms, in its shape; float64, not certified.

    out: A|v|. lse: the largest magnitude of a visible score. dv: Aᵀ|dout|. With dS = A (dP - D +
    dlse) before the soft-cap's slope: dq: |scale| |dS||k|, dk: |scale| |dS|ᵀ|q|; dbias and dsinks:
    their |dS| added up. NaN where float64 overflows. Raises `ProblemError` as `shape_of` does.
    """
    total = np.zeros(problem.shape_of(output))
    with np.errstate(all="ignore"):
        for head in problem.heads():
            _add(total, head, output)
    return total


def _add(total: Float64Array, head: Head, output: str) -> None:
    weights, score, sink = _weights(head)
    mine, shared = (head.batch, head.index), (head.batch, head.kv_index)
    if output == "out":
        total[mine] = weights @ np.abs(head.value)
        return
    if output == "lse":
        total[mine] = np.where(head.visible, np.abs(score), 0).max(1, initial=0)
        return
    dout = np.zeros((len(head.query), head.value.shape[1])) if head.dout is None else head.dout
    if output == "dv":
        total[shared] += weights.T @ np.abs(dout)
        return
    common = (0 if head.dlse is None else head.dlse) - (dout * (weights @ head.value)).sum(1)
    dscores = np.abs(weights * (dout @ head.value.T + common[:, None]))
    if output == "dq":
        total[mine] = abs(head.scale) * dscores @ np.abs(head.key)
    elif output == "dk":
        total[shared] += abs(head.scale) * dscores.T @ np.abs(head.query)
    elif output == "dsinks":
        total[head.index] += (sink * np.abs(common)).sum()
    else:
        _fold(total, head, dscores)


def _weights(head: Head) -> tuple[Float64Array, Float64Array, Float64Array]:
    """A (Nq, Nk), the scores, and the sink's weight (Nq,)."""
    score = head.scale * (head.query @ head.key.T)
    if head.softcap is not None:
        score = head.softcap * np.tanh(score / head.softcap)
    if head.bias is not None:
        score = score + head.bias
    if head.slope is not None:
        score = score - head.slope * np.abs(head.ahead)
    sink = -np.inf if head.sink is None else head.sink
    top = np.where(head.visible, score, -np.inf).max(1, initial=sink, keepdims=True)
    top = np.where(np.isneginf(top), 0, top)
    exponentials = np.where(head.visible, np.exp(score - top), 0)
    own = np.exp(sink - top)
    mass = exponentials.sum(1, keepdims=True) + own
    mass = np.where(mass == 0, 1, mass)
    return exponentials / mass, score, (own / mass)[:, 0]


def _fold(total: Float64Array, head: Head, dscores: Float64Array) -> None:
    """Add into dbias, whose axes of length 1, and missing leading axes, are summed over."""
    full = total.reshape((1,) * (4 - total.ndim) + total.shape)
    batch, index = min(head.batch, full.shape[0] - 1), min(head.index, full.shape[1] - 1)
    for axis, length in enumerate(full.shape[2:]):
        if length == 1:
            dscores = dscores.sum(axis, keepdims=True)
    full[batch, index] += dscores
