"""The definition is tested by what does not come from it: hand computation and differences."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from attnspec.oracle.definition import attention
from attnspec.oracle.problem import OUTPUTS, Problem, ProblemError

BITS = 400


def single(keys: list[list[float]], values: list[list[float]], **options: Any) -> Problem:
    """One query (1, …, 1), in one head, with scale 1: the scores are the sums of the keys."""
    k, v = np.array([[keys]]), np.array([[values]])
    return Problem(
        **({"q": np.ones((1, 1, 1, k.shape[3])), "k": k, "v": v, "scale": 1.0} | options)
    )


def parts(x: mpf, count: int = 8) -> list[float]:
    """Floats whose exact sum is x to some 53 · count bits."""
    floats = []
    for _ in range(count):
        floats.append(float(x))
        x -= mpf(floats[-1])
    return floats


@pytest.fixture(autouse=True)
def _exactly():
    with mpmath.workprec(BITS + 50):
        yield


def close(actual: Any, expected: Any, bits: int = BITS - 20) -> None:
    for a, e in zip(np.ravel(actual), np.ravel(expected), strict=True):
        assert abs(a - e) <= mpf(2) ** -bits * (1 + abs(e)), (a, e)


def answers(problem: Problem, *want: str) -> list[Any]:
    outputs = attention(problem, want=want, bits=BITS)
    return [outputs[output].ravel() for output in want]


# -- by hand -----------------------------------------------------------------------------------


def test_one_visible_key_gives_its_value_and_its_score() -> None:
    mask = np.array([False, True, False])
    p = single([[9.0], [0.75], [8.0]], [[1.0, 2.0], [0.1, -1e300], [3.0, 4.0]], mask=mask)
    out, lse = answers(p, "out", "lse")
    assert out.tolist() == [mpf(0.1), mpf(-1e300)]
    close(lse, [mpf(0.75)])


def test_scale_zero_averages_the_visible_values() -> None:
    p = single([[5.0], [-7.0], [1e9]], [[1.0], [0.0], [6.0]], scale=0.0)
    out, lse = answers(p, "out", "lse")
    close(out, [mpf(7) / 3])
    close(lse, [mpmath.log(3)])
    causal = p.replace(q=np.ones((1, 1, 3, 1)), causal=True)
    close(answers(causal, "out")[0], [mpf(1), mpf(1) / 2, mpf(7) / 3])


def test_scores_log_3_apart_weigh_three_to_one() -> None:
    log3 = parts(mpmath.log(3))
    out, lse = answers(single([log3, [0.0] * 8], [[1.0], [5.0]]), "out", "lse")
    close(out, [2])
    close(lse, [mpmath.log(4)])
    # A negative scale turns the order round: 1 to 3.
    out, _ = answers(single([log3, [0.0] * 8], [[1.0], [5.0]], scale=-1.0), "out", "lse")
    close(out, [4])
    # Scale 2 squares the ratio: 9 to 1.
    out, _ = answers(single([log3, [0.0] * 8], [[1.0], [11.0]], scale=2.0), "out", "lse")
    close(out, [2])


def test_a_sink_takes_weight_and_enters_lse_but_gives_no_value() -> None:
    p = single([parts(mpmath.log(3))], [[8.0]], sinks=np.zeros(1))
    out, lse = answers(p, "out", "lse")
    close(out, [6])
    close(lse, [mpmath.log(4)])


def test_the_cap_is_c_tanh_of_the_score_over_c_and_the_bias_comes_after_it() -> None:
    log3 = parts(mpmath.log(3))  # 2 tanh(log(3) / 2) = 1
    bias = np.array([[0.25]])
    (lse,) = answers(single([log3], [[1.0]], softcap=2.0, bias=bias), "lse")
    close(lse, [1.25])
    slope, later = np.array([0.5]), single([log3], [[1.0]], softcap=2.0, diagonal=3)
    close(answers(later.replace(alibi=slope, bias=bias), "lse")[0], [1.25 - 1.5])
    (lse,) = answers(single([log3], [[1.0]], softcap=2.0, sinks=np.array([1.0])), "lse")
    close(lse, [1 + mpmath.log(2)])  # a sink is not capped: 2 tanh(1/2) is not 1


@pytest.mark.parametrize("diagonal, distances", [(0, [0, 1, 2]), (2, [2, 1, 0]), (-1, [1, 2, 3])])
def test_alibi_subtracts_slope_times_distance_on_either_side(
    diagonal: int, distances: list
) -> None:
    p = single([[0.0]] * 3, [[1.0]] * 3, alibi=np.array([0.5]), diagonal=diagonal)
    for j, distance in enumerate(distances):
        (lse,) = answers(p.replace(mask=np.arange(3) == j), "lse")
        close(lse, [-mpf(distance) / 2])


def test_a_row_that_sees_nothing() -> None:
    cotangents = {"dout": np.ones((1, 1, 1, 1)), "dlse": np.full((1, 1, 1), 3.0)}
    empty = single([[1.0]], [[1.0]], mask=np.array([False]), bias=np.zeros((1, 1)), **cotangents)
    out, lse, *gradients = answers(empty, *OUTPUTS[:-1])
    assert (out.tolist(), lse.tolist()) == ([0], [mpf("-inf")])
    assert [g.tolist() for g in gradients] == [[0]] * 4
    sunk = empty.replace(sinks=np.array([0.3]))
    out, lse, *gradients, dsinks = answers(sunk, *OUTPUTS)
    assert out.tolist() == [0]
    close(lse, [mpf(0.3)])
    assert [g.tolist() for g in gradients] == [[0]] * 4
    close(dsinks, [3])


def test_no_keys_and_no_queries() -> None:
    p = Problem(
        q=np.ones((1, 2, 2, 3)), k=np.ones((1, 1, 0, 3)), v=np.ones((1, 1, 0, 4)), scale=1.0
    )
    outputs = attention(p)
    assert not outputs["out"].any()
    assert outputs["out"].shape == (1, 2, 2, 4)
    assert (outputs["lse"] == mpf("-inf")).all()
    p = Problem(
        q=np.ones((1, 2, 0, 3)), k=np.ones((1, 1, 2, 3)), v=np.ones((1, 1, 2, 4)), scale=1.0
    )
    assert attention(p)["out"].shape == (1, 2, 0, 4)


def test_a_nan_reaches_exactly_what_sees_it() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(1, 1, 3, 2)) for _ in range(3))
    k[0, 0, 2] = np.nan  # seen by the last row only
    v[0, 0, 1, 0] = np.nan  # seen by the last two rows, in channel 0
    p = Problem(q=q, k=k, v=v, scale=1.0, causal=True)
    isnan = np.vectorize(mpmath.isnan)
    outputs = attention(p)
    np.testing.assert_array_equal(isnan(outputs["lse"][0, 0]), [0, 0, 1])
    np.testing.assert_array_equal(isnan(outputs["out"][0, 0]), [[0, 0], [1, 0], [1, 1]])


def test_an_output_that_is_not_defined_is_refused() -> None:
    with pytest.raises(ProblemError, match="'dq' is not defined"):
        attention(single([[1.0]], [[1.0]]), want=("dq",))


# -- gradients, by central differences of the loss ---------------------------------------------
#
# With step h = 2^-100, an analytic loss and 400 bits, the difference quotient is right to about
# h² = 2^-200. The step must be exact in float64, so each coordinate is differentiated
# where it is 0.


def loss(problem: Problem) -> mpf:
    outputs = attention(problem, bits=BITS)
    total = mpf(0)
    for output, cotangent in (("out", problem.dout), ("lse", problem.dlse)):
        if cotangent is not None:
            pairs = zip(outputs[output].ravel(), cotangent.ravel().tolist(), strict=True)
            total += mpmath.fsum(y * mpf(g) for y, g in pairs if mpmath.isfinite(y))
    return total


def difference(problem: Problem, field: str, place: tuple[int, ...]) -> tuple[mpf, mpf]:
    """dL/dx by differences and by the definition, at the problem where x = field[place] is 0."""

    def at(x: float) -> Problem:
        array = getattr(problem, field).copy()
        array[place] = x
        return problem.replace(**{field: array})

    h = 2.0**-100
    gradient = attention(at(0.0), want=("d" + field,), bits=BITS)["d" + field]
    return (loss(at(h)) - loss(at(-h))) / (2 * mpf(h)), gradient[place]


def random_problem(*, heads: int = 2, kv_heads: int = 1, **options: Any) -> Problem:
    rng = np.random.default_rng(7)
    q, dout = rng.normal(size=(1, heads, 2, 2)), rng.normal(size=(1, heads, 2, 1))
    k, v = rng.normal(size=(1, kv_heads, 3, 2)), rng.normal(size=(1, kv_heads, 3, 1))
    return Problem(**({"q": q, "k": k, "v": v, "scale": 0.75, "dout": dout} | options))


DLSE = np.random.default_rng(8).normal(size=(1, 2, 2))
BIAS = np.random.default_rng(9).normal(size=(2, 2, 3))
SINKS = np.array([0.5, -1.0])
GRADIENTS = {
    "plain": {},
    "two groups": {"kv_heads": 2, "causal": True},
    "dlse alone": {"dout": None, "dlse": DLSE},
    "both cotangents": {"dlse": DLSE},
    "negative scale": {"scale": -1.5},
    "softcap": {"softcap": 0.5, "dlse": DLSE},
    "sinks": {"sinks": SINKS, "dlse": DLSE},
    "alibi": {"alibi": np.array([0.5, -2.0]), "diagonal": -1},
    "bias of a head": {"bias": BIAS},
    "bias shared by the rows": {"bias": BIAS[:, :1], "softcap": 1.5},
    "bias shared by the heads": {"bias": BIAS[:1, :, :1], "sinks": SINKS},
    "bias of the keys": {"bias": BIAS[0, 0], "mask": np.array([[1, 0, 1], [1, 1, 0]], bool)},
    "lengths": {"key_lengths": np.array([2]), "query_lengths": np.array([1]), "sinks": SINKS},
    "row that sees only the sink": {"causal": True, "diagonal": -1, "sinks": SINKS, "dlse": DLSE},
    "all": {
        "softcap": 2.0,
        "sinks": SINKS,
        "alibi": np.array([0.5, 0.25]),
        "bias": BIAS[:, :1],
        "window": (1, 0),
        "dlse": DLSE,
    },
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_the_differences_of_the_loss(name: str) -> None:
    p = random_problem(**GRADIENTS[name])
    fields = [f for f in ("q", "k", "v", "bias", "sinks") if getattr(p, f) is not None]
    for field in fields:
        pairs = [difference(p, field, place) for place in np.ndindex(getattr(p, field).shape)]
        close(*zip(*pairs, strict=True), bits=190)
        if field != "v" or p.dout is not None:  # lse does not depend on v
            assert any(gradient != 0 for _, gradient in pairs)
