"""Conditioning: the magnitudes of an output's terms, against sums written out term by term."""

from __future__ import annotations

import numpy as np
import pytest

from attnspec.oracle import Problem, ProblemError, reference
from attnspec.oracle.enclosure import Reference

GRADIENTS = ("dq", "dk", "dv", "dbias", "dsinks")


@pytest.fixture
def problem() -> Problem:
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((2, heads, n, 4)) for heads, n in ((4, 3), (2, 5), (2, 5)))
    return Problem(
        q=q, k=k, v=v, scale=-0.7, causal=True, softcap=3.0, sinks=rng.standard_normal(4),
        alibi=rng.random(4), bias=rng.standard_normal((4, 1, 5)),
        dout=rng.standard_normal((2, 4, 3, 4)), dlse=rng.standard_normal((2, 4, 3)),
    )  # fmt: skip


def test_out_and_dv_are_the_answer_for_values_and_cotangents_without_sign(problem):
    positive = problem.replace(v=np.abs(problem.v), dout=np.abs(problem.dout))
    exact = reference(positive, want=("out", "dv"))
    for output in ("out", "dv"):
        found = reference(problem, want=(output,)).conditioning(output)
        np.testing.assert_allclose(found, exact[output].value, rtol=1e-12)


@pytest.mark.parametrize("output", GRADIENTS)
def test_no_output_exceeds_its_conditioning(problem, output):
    answer = reference(problem, want=(output,))
    share = np.abs(answer[output].value) / answer.conditioning(output)
    assert 0.1 < np.nanmax(share) <= 1 + 1e-12


def test_a_sum_of_one_term_equals_its_conditioning(problem):
    answer = reference(problem.replace(window=(0, 0), softcap=None), want=("dq",))
    np.testing.assert_allclose(
        np.abs(answer["dq"].value), answer.conditioning("dq"), rtol=1e-9, atol=1e-12
    )


def test_lse_is_as_large_as_its_scores():
    q = np.full((1, 1, 1, 1), 3.0)
    k = np.array([1.0, -5.0]).reshape(1, 1, 2, 1)
    assert reference(Problem(q=q, k=k, v=k, scale=1.0)).conditioning("lse").item() == 15.0


def test_an_engines_own_answer_does_not_know_its_problem():
    with pytest.raises(ProblemError, match="reference"):
        Reference("balls", {}).conditioning("out")
