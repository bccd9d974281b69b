"""Layouts: where the numbers of one operand lie in memory does not change the result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from attnspec.adapters import CallFailed
from attnspec.adapters.frameworks import bridge
from attnspec.conformance.case import Shape
from attnspec.conformance.cases import OPTION, SMALL, SQUARE
from attnspec.conformance.question import Question
from attnspec.conformance.trials import agree, asked_under, wanted

Array = npt.NDArray[Any]

ONE_ROW = Shape(2, 2, 2, 1, 65, 16, 16)
LARGE_HEAD = Shape(1, 2, 2, 9, 21, 128, 128)
SHAPES = (ONE_ROW, LARGE_HEAD)

_plain = asked_under("", shapes=(SMALL, *SHAPES))
_plain_gradients = asked_under("", shapes=(OPTION, *SHAPES), smoke=1)
_mask = asked_under("mask:full", "mask:batch", "mask:keys", shapes=(OPTION, *SHAPES), smoke=1)
_bias = asked_under("bias:full", "bias:batch", "bias:keys", shapes=(OPTION, *SHAPES), smoke=1)
_packed = asked_under("", "causal:on", shapes=(SQUARE,), smoke=1)


@pytest.mark.attnspec("layout-q", "layout-k", "layout-v", cases=_plain)
@pytest.mark.attnspec("layout-mask", "layout-mask-gradients", cases=_mask)
@pytest.mark.attnspec("layout-bias", "layout-bias-gradients", cases=_bias)
@pytest.mark.attnspec(
    *(f"layout-{name}-gradients" for name in ("q", "k", "v", "dout")), cases=_plain_gradients
)
def test_layout(question: Question) -> None:
    """One operand, laid out otherwise, or the same number along an axis from one place."""
    strides, want, problem = _strides(question), wanted(question), question.problem
    name = question.claim.split("-")[1]
    array = getattr(problem, name)
    first = question.ask(problem, want=want)
    for layout, x in _layouts(array, negative=strides == "any"):
        got = question.ask(problem.replace(**{name: x}), want=want)
        agree(question, problem, got, first, what=f"{name} laid out as {layout}")
    for axis, word in enumerate(("batch", "heads", "rows")):
        if array.shape[axis] == 1:
            continue
        repeated = np.broadcast_to(array.take([0], axis), array.shape)
        whole = problem.replace(**{name: np.array(repeated, order="C")})
        first_of_whole = question.ask(whole, want=want)
        got = question.ask(problem.replace(**{name: repeated}), want=want)
        agree(question, whole, got, first_of_whole, what=f"{name} with stride 0 along {word}")


@pytest.mark.attnspec("layout-packed", "layout-packed-gradients", cases=_packed)
def test_packed(question: Question) -> None:
    """q, k and v laid out as the slices of one (B, N, 3, H, D) array, as a projection gives."""
    _strides(question)
    want, problem = wanted(question), question.problem
    operands = {name: getattr(problem, name) for name in ("q", "k", "v")}
    slices_in_order = [x.swapaxes(1, 2) for x in operands.values()]
    packed = np.stack(slices_in_order, axis=2).copy(order="C")  # np.stack keeps its parts' order
    slices = {name: packed[:, :, i].swapaxes(1, 2) for i, name in enumerate(operands)}
    got = question.ask(problem.replace(**slices), want=want)
    agree(question, problem, got, question.ask(problem, want=want), what="a packed q, k, v")


def _strides(question: Question) -> str:
    strides = bridge(question.kernel.framework).strides
    if strides == "none":
        raise CallFailed("not claimed", f"arrays of {question.kernel.framework} have no strides")
    return strides


def _layouts(x: Array, *, negative: bool) -> Iterator[tuple[str, Array]]:
    """The same numbers of a (B, H, N, D) array elsewhere in memory."""
    batch, heads, rows, size = x.shape
    yield "(B, N, H, D) in memory", np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    yield "(B, H, D, N) in memory", np.ascontiguousarray(x.swapaxes(2, 3)).swapaxes(2, 3)
    wide = np.zeros((batch, heads, rows, 2 * size), x.dtype)
    wide[..., ::2] = x
    yield "every second number of a wider array", wide[..., ::2]
    long = np.zeros((batch, heads, 2 * rows, size), x.dtype)
    long[:, :, ::2] = x
    yield "every second row of a longer array", long[:, :, ::2]
    shifted = np.zeros(x.size + 1, x.dtype)[1:].reshape(x.shape)
    shifted[...] = x
    yield "a slice that starts at an odd place", shifted
    if negative:
        yield "rows in reverse order", np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1]
        yield "numbers in reverse order", np.ascontiguousarray(x[..., ::-1])[..., ::-1]
