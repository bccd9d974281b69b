"""The comparison itself: what is inside the bound, what is not, and what can have no bound."""

import numpy as np
import pytest

from attnspec.conformance.judge import RMS_ELEMENTS, Finding, excess, judge
from attnspec.oracle.enclosure import Enclosure
from attnspec.oracle.formats import FORMATS
from attnspec.oracle.rounding import LAMBDA, Tolerance


def verdict(actual, exact, *, hard=0.0, sigma=None, dtype="float32", generic=False) -> Finding:
    form = FORMATS[dtype]
    value = np.atleast_1d(np.asarray(exact, dtype=np.float64))
    hard = np.broadcast_to(hard, value.shape).astype(np.float64)
    sigma = hard if sigma is None else np.broadcast_to(sigma, value.shape).astype(np.float64)
    return judge(
        np.broadcast_to(np.asarray(actual), value.shape).astype(form.dtype),
        exact=Enclosure.of(value, np.zeros_like(value)),
        tolerance=Tolerance(hard=hard, sigma=sigma, format=form),
        generic=generic,
    )


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_nearest_number_uses_none_of_the_bound(dtype):
    form = FORMATS[dtype]
    for exact in (1 / 3, -1 / 3, 1.0, form.smallest_subnormal / 3, 0.4 * form.largest):
        assert verdict(form.round(exact), exact, dtype=dtype).fraction == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("side", [-1, 1])
def test_exactly_at_the_bound_passes_and_one_ulp_past_it_does_not(dtype, side):
    form = FORMATS[dtype]
    ulp = 2 * form.unit_roundoff  # of numbers in [1, 2)
    at_bound = 1.5 + side * 8 * ulp
    bound = 7.5 * ulp  # reaches the edge of the reals that round to `at_bound`
    assert verdict(at_bound, 1.5, hard=bound, dtype=dtype).fraction == 1
    assert not verdict(at_bound + side * ulp, 1.5, hard=bound, dtype=dtype).passed
    assert not verdict(at_bound, 1.5, hard=np.nextafter(bound, 0), dtype=dtype).passed


def test_float64_is_judged_beyond_its_own_digits():
    low = 2.0**-54
    exact = Enclosure(np.array([1.0]), np.array([low]), np.array([0.0]))
    tolerance = Tolerance(hard=np.zeros(1), sigma=np.zeros(1), format=FORMATS["float64"])
    one_above = np.array([np.nextafter(1.0, 2.0)])
    assert judge(np.array([1.0]), exact=exact, tolerance=tolerance, generic=False).fraction == 0
    assert not judge(one_above, exact=exact, tolerance=tolerance, generic=False).passed
    assert excess(one_above, exact)[0] == 2.0**-53 - low  # half an ulp is the output's own


def test_the_gap_below_a_power_of_two_is_the_smaller_one():
    below = 1 - FORMATS["float32"].unit_roundoff / 2
    assert verdict(1.0, below).fraction == 0  # the midpoint to the next smaller number
    assert not verdict(1.0, np.nextafter(below, 0)).passed


def test_the_oracles_own_error_is_never_held_against_the_kernel():
    value = np.array([1.0])
    tolerance = Tolerance(hard=np.array([0.0]), sigma=np.zeros(1), format=FORMATS["float32"])
    ulp = 2.0**-23
    for bound, passes in ((0.5 * ulp, True), (0.49 * ulp, False)):
        exact = Enclosure.of(value, np.array([bound]))
        actual = np.array([1 + ulp], dtype=np.float32)
        assert judge(actual, exact=exact, tolerance=tolerance, generic=False).passed == passes


@pytest.mark.parametrize(
    "actual, exact, fraction",
    [
        (np.nan, 1.0, np.inf),
        (1.0, np.nan, np.inf),
        (np.nan, np.nan, 0),
        (-np.inf, -np.inf, 0),
        (np.inf, -np.inf, np.inf),
        (-3e38, -np.inf, np.inf),
        (np.nan, -np.inf, np.inf),
        (-0.0, 0.0, 0),
        (0.0, -0.0, 0),
    ],
)
def test_what_is_not_a_number_has_no_tolerance(actual, exact, fraction):
    assert verdict(actual, exact, hard=1e-3 if np.isfinite(exact) else 0).fraction == fraction


def test_infinity_for_a_number_is_a_violation_as_large_as_the_format():
    assert verdict(-np.inf, 0.0, hard=1.0).fraction > FORMATS["float32"].largest


def test_overflow_is_right_exactly_where_rounding_overflows():
    form = FORMATS["float16"]
    assert verdict(np.inf, 65520.0, dtype="float16").fraction == 0  # half an ulp beyond 65504
    assert not verdict(np.inf, 65519.0, dtype="float16").passed
    assert verdict(np.inf, 65519.0, hard=1.0, dtype="float16").fraction == 1
    assert not verdict(form.largest, 65600.0, hard=10.0, dtype="float16").passed


def test_a_masked_row_must_be_exactly_zero():
    assert verdict(0.0, 0.0).passed
    assert not verdict(FORMATS["float32"].smallest_subnormal, 0.0).passed


def test_an_unbounded_element_forbids_nothing():
    assert verdict(np.nan, 1.0, hard=np.inf).passed


def test_empty_outputs_pass():
    assert verdict(np.zeros(0), np.zeros(0), hard=np.zeros(0)).passed


def test_the_worst_element_is_named():
    exact = np.zeros((2, 3))
    actual = exact.copy()
    actual[1, 2], actual[0, 1] = 5.0, 2.0
    finding = verdict(actual, exact, hard=1.0)
    assert finding.where == (1, 2)
    assert finding.fraction == pytest.approx(5)
    assert "got 5, exact 0" in finding.detail


def test_the_variance_model_judges_generic_inputs_only():
    one = {"actual": 1 + 2.0**-10, "exact": 1.0, "hard": 1.0, "sigma": 2.0**-20}
    assert verdict(**one, generic=False).passed
    finding = verdict(**one, generic=True)
    assert finding.rule == "model"
    assert finding.fraction == pytest.approx(2.0**10 / LAMBDA, rel=1e-3)


def test_a_uniform_loss_of_precision_shows_in_the_mean_square_alone():
    shape = (1, 1, 64, RMS_ELEMENTS // 64)
    rng = np.random.default_rng(1)
    sigma = 2.0**-12
    exact = 1 + rng.random(shape)
    for spread, passes in ((0.9, True), (1.1, False)):
        error = spread * sigma * np.where(rng.random(shape) < 0.5, -1, 1)
        finding = verdict(exact + error, exact, hard=1.0, sigma=sigma, generic=True)
        assert finding.passed == passes
        assert finding.rule == ("rms")
    halved = verdict(
        (exact + error)[:, :, :32], exact[:, :, :32], hard=1.0, sigma=sigma, generic=True
    )
    assert halved.passed  # too few elements for a mean square


def test_subnormal_results_are_no_loss_of_precision():
    shape = (1, 1, 64, RMS_ELEMENTS // 64)
    form = FORMATS["float16"]
    exact = np.random.default_rng(2).random(shape) * form.smallest_subnormal * 8
    assert verdict(form.round(exact), exact, dtype="float16", generic=True).fraction < 1
