"""The meaning of a `Problem`: attention and its gradients, row by row, as the paper writes them.

For row i, over the keys j that it sees, with q_i read by its group's k and v:

    s_ij = c tanh(scale q_i·k_j / c) + b_ij - slope |ahead_ij|          scores        (3) (7) (14)
    Z_i  = Σ_j exp(s_ij) + exp(sink)                                    partition
    P_ij = exp(s_ij) / Z_i                                              weights       (8)
    out_i = Σ_j P_ij v_j,   lse_i = log Z_i                             (10) (11)

and for the loss L = Σ dout·out + Σ dlse·lse, whose cotangents are `dout` and `dlse`:

    dP_ij = dout_i·v_j,   D_i = Σ_j P_ij dP_ij                          (16)
    dS_ij = P_ij (dP_ij - D_i + dlse_i)                                 (9) (17)
    dq_i = scale Σ_j dS_ij c'_ij k_j,   dk_j = scale Σ_i dS_ij c'_ij q_i   (18)
    dv_j = Σ_i P_ij dout_i                                              (16)
    dbias_ij = dS_ij,   dsink = Σ_i exp(sink) / Z_i (dlse_i - D_i)

where c' = sech²(scale q·k / c) is the slope of the cap, and 1 where there is none. Sums over i
run over every row and query head that reads the key; dbias sums over the axes that `bias`
broadcasts. The numbers in brackets are the equations of "Self-Attention Mechanism", chapter 11;
the soft-cap, bias, slopes and sink are this specification's, and none of them changes (8)-(18)
but as written here. Hidden slots do not occur in any sum, so their content cannot matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt
from mpmath import exp, fdot, fsum, log, mpf, sech, tanh

from attnspec.oracle.formats import Float64Array
from attnspec.oracle.problem import Head, Problem

__all__ = ["attention"]

Exact = npt.NDArray[np.object_]  # of mpf


def attention(
    problem: Problem, *, want: Sequence[str] = ("out", "lse"), bits: int = 200
) -> dict[str, Exact]:
    """The outputs named in `want`, as object arrays of mpf in the shapes of `Problem.shape_of`.

    Every operation is rounded to `bits` bits, so an error is about 2^-bits times the magnitudes
    that its terms had before they cancelled: give scores of 2^n another n bits. It states no
    bound; to gauge one, compare with a higher precision. A NaN among the visible numbers makes
    NaN what it reaches. lse is -inf where a row sees nothing and has no sink.

    Raises `ProblemError` for an output that the problem does not define. Meant for small
    problems: about 10,000 times the cost of a float64 computation.
    """
    with mpmath.workprec(bits):
        answer = {output: np.full(problem.shape_of(output), mpf(0)) for output in want}
        for head in problem.heads():
            for row in range(problem.query_count):
                _add_row(problem, head, row, answer)
    return answer


def _exact(x: Float64Array) -> Exact:
    return np.array([mpf(number) for number in x.ravel().tolist()], object).reshape(x.shape)


def _add_row(problem: Problem, head: Head, i: int, answer: dict[str, Exact]) -> None:
    """Set what row i of `head` determines (out, lse, dq) and add what it contributes."""
    b, h, g = head.batch, head.index, head.kv_index
    seen = np.flatnonzero(head.visible[i]).tolist()
    q, k, v = _exact(head.query[i]), _exact(head.key[seen]), _exact(head.value[seen])
    scale = mpf(head.scale)

    dots = [scale * fdot(q, k_j) for k_j in k]
    terms = [exp(s) for s in _scores(head, i, seen, dots)]
    sink = mpf(0) if head.sink is None else exp(mpf(head.sink))
    Z = fsum([*terms, sink])
    P = [term / Z for term in terms]
    _set(answer, "out", (b, h, i), [fdot(P, column) for column in v.T])
    _set(answer, "lse", (b, h, i), log(Z) if Z != 0 else mpf("-inf"))
    if Z == 0 or answer.keys() <= {"out", "lse"}:
        return

    dout = _exact(np.zeros(problem.value_size) if head.dout is None else head.dout[i])
    dlse = mpf(0) if head.dlse is None else mpf(head.dlse[i])
    dP = [fdot(dout, v_j) for v_j in v]
    D = fdot(P, dP)
    dS = [P_j * (dP_j - D + dlse) for P_j, dP_j in zip(P, dP, strict=True)]
    dX = [scale * dS_j * c for dS_j, c in zip(dS, _cap_slopes(head, dots), strict=True)]
    _set(answer, "dq", (b, h, i), [fdot(dX, column) for column in k.T])
    for j, P_j, dS_j, dX_j in zip(seen, P, dS, dX, strict=True):
        _add(answer, "dk", (b, g, j), dX_j * q)
        _add(answer, "dv", (b, g, j), P_j * dout)
        if "dbias" in answer:
            _add(answer, "dbias", _bias_index(problem, (b, h, i, j)), dS_j)
    _add(answer, "dsinks", (h,), sink / Z * (dlse - D))


def _scores(head: Head, i: int, seen: list[int], dots: list[Any]) -> list[Any]:
    """s_ij for the visible j: the cap, then the bias and the slope's distance."""
    scores = dots
    if head.softcap is not None:
        cap = mpf(head.softcap)
        scores = [cap * tanh(dot / cap) for dot in dots]
    bias = [mpf(0)] * len(seen) if head.bias is None else _exact(head.bias[i, seen])
    slope = mpf(0 if head.slope is None else head.slope)
    distance = [abs(int(ahead)) for ahead in head.ahead[i, seen]]
    return [s + b - slope * n for s, b, n in zip(scores, bias, distance, strict=True)]


def _cap_slopes(head: Head, dots: list[Any]) -> list[Any]:
    """c'_ij = 1 - tanh²(s/c), as sech² because the difference cancels where the cap saturates."""
    if head.softcap is None:
        return [mpf(1)] * len(dots)
    return [sech(dot / mpf(head.softcap)) ** 2 for dot in dots]


def _bias_index(problem: Problem, slot: tuple[int, ...]) -> tuple[int, ...]:
    """Which element of `bias` reaches the slot (b, h, i, j): axes of length 1 are broadcast."""
    shape = problem.shape_of("dbias")
    return tuple(0 if n == 1 else x for n, x in zip(shape, slot[4 - len(shape) :], strict=True))


def _set(answer: dict[str, Exact], output: str, index: tuple[int, ...], value: Any) -> None:
    if output in answer:
        answer[output][index] = value


def _add(answer: dict[str, Exact], output: str, index: tuple[int, ...], value: Any) -> None:
    if output in answer:
        answer[output][index] += value
