"""Heads side by side: all of them, in order, and none changes what another one gets."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from attnspec.oracle import float64, statistics
from attnspec.oracle.formats import FORMATS
from attnspec.oracle.heads import disjoint, stacked
from attnspec.oracle.problem import OUTPUTS, Problem
from attnspec.oracle.rounding import CLASSES, tolerance

F32 = np.float32
ROWS, KEYS = 5, 7


def problem(**options: Any) -> Problem:
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(F32)

    arrays = {
        "q": normal(2, 4, ROWS, 3),
        "k": normal(2, 2, KEYS, 3),
        "v": normal(2, 2, KEYS, 6),
        "dout": normal(2, 4, ROWS, 6),
        "dlse": normal(2, 4, ROWS),
        "bias": normal(4, 1, KEYS),
        "sinks": normal(4),
        "alibi": np.abs(normal(4)),
        "mask": rng.random((2, 1, ROWS, KEYS)) < 0.7,
    }
    return Problem(**arrays | {"scale": 0.7, "softcap": 3.0, "causal": True} | options)


@pytest.mark.parametrize("scores", [0, ROWS * KEYS, 3 * ROWS * KEYS + 1, 10**9])
def test_every_head_is_there_once_and_in_order(scores: int) -> None:
    heads = iter(problem().heads())
    for stack in stacked(problem(), scores=scores):
        assert len(stack.index) == 1 or stack.visible.size <= scores
        for i in range(len(stack.index)):
            head = next(heads)
            for name in vars(head):
                field = getattr(stack, name)
                one = field if name in ("scale", "softcap") else field[i]
                np.testing.assert_array_equal(np.squeeze(one), np.squeeze(getattr(head, name)))
    assert next(heads, None) is None


def test_what_the_problem_lacks_a_stack_lacks() -> None:
    absent = dict.fromkeys(("bias", "alibi", "sinks", "dout", "dlse", "softcap"))
    stack = next(stacked(problem(**absent)))
    fields = (stack.bias, stack.slope, stack.sink, stack.dout, stack.dlse, stack.softcap)
    assert fields == (None,) * 6


def test_disjoint_groups_hold_each_head_once_and_no_place_twice() -> None:
    batch, index = np.array([0, 0, 0, 1, 1, 0]), np.array([2, 2, 3, 2, 2, 2])
    groups = [group.tolist() for group in disjoint(batch, index)]
    assert groups == [[0, 2, 3], [1, 4], [5]]


def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (float64, statistics):
        monkeypatch.setattr(module, "stacked", lambda p, **_: stacked(p, scores=0))


# Some heads have what makes the tolerance take another branch: scores far beyond resolution,
# overflow, a key that dominates.
SPREADS = {
    "alike": np.ones(4),
    "huge": np.array([1, 1e6, 1, 1e30]),
    "dominated": np.array([0, 3, 0, 6]),
}


@pytest.mark.parametrize("name", SPREADS)
@pytest.mark.parametrize("bias", [(4, 1, KEYS), (2, 1, ROWS, 1), (ROWS, KEYS)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_gets_what_it_gets_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, bias: tuple[int, ...], dtype: str
) -> None:
    p = problem(bias=np.linspace(-1, 1, int(np.prod(bias)), dtype=F32).reshape(bias))
    operands = {"q": p.q * SPREADS[name].astype(F32)[:, None, None], "k": p.k, "v": p.v}
    form = FORMATS[dtype]
    p = p.replace(**{n: form.round(x) for n, x in operands.items()}, softcap=None)
    check_alone(monkeypatch, p)


def test_weights_that_vanish_in_one_head_do_not_count_in_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Below u in sum in the first head, and above in the second."""
    plain = dict.fromkeys(("alibi", "sinks", "mask", "softcap")) | {"causal": False}
    bias = np.zeros((4, 1, KEYS), F32)
    bias[0, 0, -1], bias[1, 0, 1:] = -18, -15
    check_alone(monkeypatch, problem(bias=bias, **plain).replace(scale=0.0))


def check_alone(monkeypatch: pytest.MonkeyPatch, p: Problem) -> None:
    """What each head gets together with others is what it gets alone."""
    want = [name for name in OUTPUTS if name != "dsinks" or p.sinks is not None]
    together = [tolerance(p, arithmetic=a, want=want) for _, a in CLASSES]
    enclosed = float64.enclose(p, want=want)
    one_at_a_time(monkeypatch)
    close = partial(np.testing.assert_allclose, rtol=1e-12)
    for (_, arithmetic), found in zip(CLASSES, together, strict=True):
        for output, alone in tolerance(p, arithmetic=arithmetic, want=want).items():
            close(found[output].hard, alone.hard)
            close(found[output].sigma, alone.sigma)
    for output, enclosure in float64.enclose(p, want=want).outputs.items():
        close(enclosed[output].value, enclosure.value)
        close(enclosed[output].bound, enclosure.bound)
