"""The tolerance itself: its limits, what is exact, how classes compare, extremes, requests."""

import dataclasses
import itertools

import numpy as np
import pytest

from attnspec.oracle.formats import FORMATS
from attnspec.oracle.problem import OUTPUTS, Problem, ProblemError
from attnspec.oracle.rounding import (
    APPROXIMATE_EXP,
    CLASSES,
    EAGER,
    FLOAT32_INSIDE,
    PLAIN,
    PROBABILITIES_ROUNDED,
    STORAGE_GRADIENTS,
    Arithmetic,
    statistics,
    tolerance,
)

F32 = np.float32


def wanted(problem):
    """Every output that is defined for the problem."""
    missing = {"dbias": problem.bias is None, "dsinks": problem.sinks is None}
    grads = problem.dout is not None or problem.dlse is not None
    return [n for n in OUTPUTS if not missing.get(n) and (grads or not n.startswith("d"))]


def draw(rng, *, dtype="float32", heads=(1, 1), rows=24, keys=40, size=16, spread=1.0, **options):
    """A random problem; options are fields of `Problem`, or functions of its scores' shape."""
    form, (queries, kvs) = FORMATS[dtype], heads
    shapes = [(1, queries, rows, size), (1, kvs, keys, size), (1, kvs, keys, size)]
    q, k, v = (form.round(spread * rng.standard_normal(s)) for s in shapes)
    dout = form.round(rng.standard_normal(shapes[0]))
    options = {n: x((1, queries, rows, keys)) if callable(x) else x for n, x in options.items()}
    return Problem(q=q, k=k, v=v, dout=dout, **{"scale": size**-0.5} | options)


# -- limits --------------------------------------------------------------------------------------


def test_what_nothing_contributes_to_is_exact():
    mask = np.ones((1, 1, 24, 40), bool)
    mask[..., 3, :] = False  # row 3 sees nothing
    mask[..., 5] = False  # nobody sees key 5
    problem = draw(np.random.default_rng(2), mask=mask)
    found = tolerance(problem, arithmetic=EAGER, want=wanted(problem))
    for name, where in {"out": 3, "lse": 3, "dq": 3, "dk": 5, "dv": 5}.items():
        assert np.all(found[name].hard[0, 0, where] == 0)
        assert np.all(found[name].sigma[0, 0, where] == 0)
        assert np.all(np.delete(found[name].hard[0, 0], where, 0) > 0)


@pytest.mark.parametrize(("rows", "keys"), [(0, 5), (5, 0), (0, 0)])
def test_empty_sides(rows, keys):
    problem = draw(np.random.default_rng(0), rows=rows, keys=keys, sinks=np.zeros(1, F32))
    for name, found in tolerance(problem, arithmetic=PLAIN, want=wanted(problem)).items():
        assert found.hard.shape == found.sigma.shape == problem.shape_of(name)
        if name != "lse":  # a sink alone: its own conversions
            assert np.all(found.hard == 0) or name == "dsinks"


def test_one_visible_key_leaves_the_roundings_of_its_value():
    """P is 1 whatever the score: a product, additions of 0, and a division by 1."""
    problem = draw(np.random.default_rng(3), keys=1, spread=4.0)
    found = tolerance(problem, arithmetic=FLOAT32_INSIDE)["out"]
    size = np.abs(problem.v.astype(np.float64))
    assert np.all(found.hard <= 24 * 2.0**-24 * size + 1e-30)
    assert np.all(found.hard >= 2.0**-24 * size)


def test_equal_values_cancel_the_scores_errors():
    """Weights that sum to 1 cannot move the mean of equal numbers."""
    problem = draw(np.random.default_rng(4), spread=3.0)
    equal = problem.replace(v=np.ones_like(problem.v))
    bound, wide = (tolerance(p, arithmetic=FLOAT32_INSIDE)["out"].hard for p in (equal, problem))
    assert np.all(bound <= 2 * (40 + 2 * 2 + 6) * 2.0**-24)
    assert wide.max() > 10 * bound.max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_looser_class_has_larger_bounds(dtype):
    problem = draw(np.random.default_rng(5), dtype=dtype, heads=(2, 1), softcap=4.0, causal=True)
    shared = statistics(problem)
    chains = [
        (FLOAT32_INSIDE, PROBABILITIES_ROUNDED, STORAGE_GRADIENTS, APPROXIMATE_EXP),
        (FLOAT32_INSIDE, PROBABILITIES_ROUNDED, EAGER),
        (FLOAT32_INSIDE, dataclasses.replace(FLOAT32_INSIDE, operands="tfloat32")),
        (FLOAT32_INSIDE, PLAIN),
    ]
    for chain in chains:
        found = [
            tolerance(problem, arithmetic=a, want=wanted(problem), statistics=shared) for a in chain
        ]
        for tight, loose in itertools.pairwise(found):
            for name in tight:
                assert np.all(tight[name].hard <= loose[name].hard * (1 + 1e-12)), name
                assert np.all(tight[name].sigma <= loose[name].sigma * (1 + 1e-12)), name


def test_classes_run_from_tight_to_loose():
    problem = draw(np.random.default_rng(6), dtype="bfloat16", keys=64)
    sizes = [tolerance(problem, arithmetic=a, want=["dv"])["dv"].hard.mean() for _, a in CLASSES]
    assert sizes == sorted(sizes)


def test_shared_statistics_change_nothing():
    problem = draw(np.random.default_rng(6), heads=(2, 1), causal=True)
    for name, found in tolerance(problem, arithmetic=EAGER, want=wanted(problem)).items():
        again = tolerance(problem, arithmetic=EAGER, want=[name], statistics=statistics(problem))[
            name
        ]
        np.testing.assert_array_equal(found.hard, again.hard)
        np.testing.assert_array_equal(found.sigma, again.sigma)


def test_without_sigma_the_hard_bound_is_the_same():
    problem = draw(np.random.default_rng(6), heads=(2, 1), causal=True)
    for name in ("out", "lse"):
        both, one = (
            tolerance(problem, arithmetic=PLAIN, want=[name], sigma=s) for s in (True, False)
        )
        np.testing.assert_array_equal(both[name].hard, one[name].hard)
        assert np.all(np.isinf(one[name].sigma))


# -- extremes ------------------------------------------------------------------------------------

EXTREMES = {
    "huge scores": {"spread": 1e15},
    "overflowing scores": {"spread": 1e25, "scale": 1.0},
    "tiny": {"spread": 1e-38},
    "minimum as a mask": {
        "bias": lambda shape: (
            np.where(np.arange(shape[3]) % 2, np.finfo(F32).min, F32(0)) * np.ones(shape, F32)
        )
    },
    "minimum everywhere": {"bias": lambda shape: np.full(shape, np.finfo(F32).min)},
    "large soft-cap": {"softcap": 1e30},
    "small soft-cap": {"softcap": 1e-30},
    "huge scale": {"scale": 1e30},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_give_no_nan(name, dtype):
    problem = draw(np.random.default_rng(7), dtype=dtype, **EXTREMES[name])
    for _, arithmetic in CLASSES:
        found = tolerance(problem, arithmetic=arithmetic, want=wanted(problem))
        for t in found.values():
            assert np.all(t.hard >= 0)
            assert np.all(t.sigma >= 0)


def test_hidden_extremes_are_not_counted():
    """float32's minimum as a mask: the bound is that of the same keys hidden by a mask."""
    hidden = np.zeros((24, 40), bool)
    hidden[:, ::3] = True
    problem = draw(np.random.default_rng(8))
    lowest = problem.replace(bias=np.where(hidden, np.finfo(F32).min, F32(0)))
    masked = problem.replace(mask=~hidden)
    for name in ("out", "lse", "dq"):
        one, other = (
            tolerance(p, arithmetic=FLOAT32_INSIDE, want=[name])[name].hard
            for p in (lowest, masked)
        )
        assert np.all(one <= 3 * other)


def test_a_sum_that_may_overflow_has_no_bound():
    problem = draw(np.random.default_rng(9), dtype="float16", keys=64, scale=0.0)
    large = problem.replace(v=np.full_like(problem.v, 60000))
    inside, half = (tolerance(large, arithmetic=a)["out"].hard for a in (FLOAT32_INSIDE, PLAIN))
    assert np.all(np.isfinite(inside))
    assert np.all(np.isinf(half))


def test_scores_that_storage_cannot_hold_have_no_bound():
    problem = draw(np.random.default_rng(9), dtype="float16", spread=300.0, scale=2.0**-10)
    kept, stored = (
        tolerance(problem, arithmetic=a)["out"].hard for a in (PROBABILITIES_ROUNDED, EAGER)
    )
    assert np.all(np.isfinite(kept))
    assert np.any(np.isinf(stored))


# -- requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"accumulate": "float8"}, "accumulate"), ({"operands": "float16"}, "operands")],
)
def test_an_unknown_format_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        tolerance(draw(np.random.default_rng(0)), arithmetic=Arithmetic(**changes))


@pytest.mark.parametrize("want", ["dsinks", "dbias", "weights"])
def test_an_undefined_output_is_refused(want):
    with pytest.raises(ProblemError, match=want):
        tolerance(draw(np.random.default_rng(0)), arithmetic=PLAIN, want=[want])


def test_gradients_need_a_cotangent():
    problem = draw(np.random.default_rng(0)).replace(dout=None)
    with pytest.raises(ProblemError, match="cotangent"):
        tolerance(problem, arithmetic=PLAIN, want=["dq"])


def test_the_accumulator_is_the_wider_of_the_two():
    assert FLOAT32_INSIDE.resolve("float64").unit == 2.0**-53
    assert FLOAT32_INSIDE.resolve("bfloat16").unit == 2.0**-24
    assert PLAIN.resolve("bfloat16").unit == 2.0**-8
    assert EAGER.resolve("float32").score == 0.0
    assert EAGER.resolve("bfloat16").score == 2.0**-8


def test_a_variance_that_underflows_is_not_a_deviation_of_zero():
    rng = np.random.default_rng(3)
    q, k, v, dout = (rng.standard_normal((1, 1, n, 4)) for n in (1, 800, 800, 1))
    far = Problem(q=q, k=k, v=v, scale=0.5, alibi=np.array([0.5]), dout=dout)
    bound = tolerance(far, arithmetic=PLAIN, want=("dv",))["dv"]
    assert 0 < bound.hard[0, 0, 0, 0] < 2.0**-500
    assert bound.sigma.min() > 0
