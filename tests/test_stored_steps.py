"""A framework that stores every step rounds subnormal dS before and after it is scaled."""

from __future__ import annotations

import numpy as np
import pytest

from attnspec.oracle import FORMATS, Problem, reference, tolerance
from attnspec.oracle.rounding import EAGER

STORAGE = FORMATS["float16"]


def stored(x: np.ndarray) -> np.ndarray:
    return STORAGE.round(x).astype(np.float64)


def stored_steps(problem: Problem) -> dict[str, np.ndarray]:
    """dq and dk of one head, each step exact and then rounded to storage."""
    q, k, v, dout = (
        x[0, 0].astype(np.float64) for x in (problem.q, problem.k, problem.v, problem.dout)
    )
    score = stored(stored(q @ k.T) * problem.scale)
    weights = np.exp(score - score.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    dp = stored(dout @ v.T)
    ds = stored(weights * (dp - (weights * dp).sum(1, keepdims=True)))
    ds = stored(ds * problem.scale)
    return {"dq": ds @ k, "dk": ds.T @ q}


@pytest.mark.parametrize("scale", [0.25, 2.0**-5, 2.0])
def test_the_bound_holds_where_ds_is_subnormal(scale):
    worst = 0.0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        q, k, v, dout = (STORAGE.round(rng.standard_normal((1, 1, n, 16))) for n in (1, 65, 65, 1))
        q = STORAGE.round(q * 4 / scale)  # one key wins; dS of the others is about 2^-24
        problem = Problem(q=q, k=k, v=v, scale=scale, dout=dout)
        exact = reference(problem, want=("dq", "dk"))
        bounds = tolerance(problem, arithmetic=EAGER, want=("dq", "dk"))
        for name, found in stored_steps(problem).items():
            error = np.abs(found - exact[name].value[0, 0])
            hard = bounds[name].hard[0, 0]
            worst = max(worst, float((error / hard)[np.isfinite(hard)].max(initial=0)))
    assert 0.2 < worst <= 1  # and the bound says something


def test_a_row_that_overflows_reaches_the_gradients_of_hidden_keys():
    # Scores of 1e5 are infinite in float16, their row's softmax is NaN, and NaN times 0 is NaN.
    rng = np.random.default_rng(0)
    q, k, v, dout = (STORAGE.round(rng.standard_normal((1, 2, n, 16))) for n in (6, 9, 9, 6))
    q[:, 0] = np.sign(q[:, 0]) * 100
    k[:, 0] = np.sign(q[:, 0, :1]) * 100
    window = (2, 0)  # rows 0 … 5 stand at keys 3 … 8: no row sees key 0, row 5 not key 3
    problem = Problem(q=q, k=k, v=v, scale=1.0, dout=dout, window=window)
    bounds = tolerance(problem, arithmetic=EAGER, want=("dk", "dv"))
    for bound in bounds.values():
        assert np.isinf(bound.hard[0, 0]).all()
        assert np.isinf(bound.sigma[0, 0, 0]).all()
        assert (bound.hard[0, 1, 0] == 0).all()  # the other head does not overflow
        assert np.isfinite(bound.hard[0, 1]).all()
