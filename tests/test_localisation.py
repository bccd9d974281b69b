"""Where an implementation fails: found in verdicts and in numbers, and nothing where nothing is."""

from __future__ import annotations

import itertools

import numpy as np

from attnspec.adapters import kernel
from attnspec.conformance.diagnosis_evidence import again
from attnspec.conformance.diagnosis_places import places
from attnspec.conformance.localisation import separation, spoilt_outputs
from attnspec.conformance.verdict import Verdict

SHAPES = ("b1h2g2q9k9d8v8", "b1h2g2q9k17d8v8", "b2h2g2q17k9d8v8", "b1h2g2q33k65d8v8")
SETTINGS = ("plain", "causal:on", "bias:full", "causal:on+bias:full", "mask:full")


def verdict(case: str, *, claim: str = "out", dtype: str = "float32", failed: bool) -> Verdict:
    return Verdict(
        impl="mine",
        claim=claim,
        dtype=dtype,
        case=case,
        generic=True,
        status="fail" if failed else "pass",
    )


def cases() -> list[str]:
    return [f"normal/{shape}/{chosen}" for shape, chosen in itertools.product(SHAPES, SETTINGS)]


def test_the_option_that_failures_share_is_found_with_its_counts():
    found = separation([verdict(case, failed="causal" in case) for case in cases()])
    assert str(found) == "all 8 failures of out, and none of 12 passes, have causal"


def test_an_option_and_a_length_are_found_together():
    verdicts = [verdict(c, failed="causal" in c and "q9k9" not in c) for c in cases()]
    assert str(separation(verdicts)).endswith("have causal and Nq != Nk")


def test_two_options_together():
    verdicts = [verdict(c, failed="causal" in c and "bias" in c) for c in cases()]
    assert "bias and causal" in str(separation(verdicts)).replace(
        "causal and bias", "bias and causal"
    )


def test_a_length_is_named_with_its_remainder():
    wanted = ("k17", "k65")
    verdicts = [verdict(c, failed=any(word in c for word in wanted)) for c in cases()]
    said = separation(verdicts)
    assert said is not None
    assert said.leaks == 0
    assert "Nk" in said.words


def test_a_type_is_named():
    verdicts = [
        verdict(case, dtype=dtype, failed=dtype == "float16")
        for case, dtype in itertools.product(cases(), ("float32", "float16", "bfloat16"))
    ]
    assert str(separation(verdicts)).endswith("have type float16")


def test_nothing_is_said_where_nothing_separates():
    rng = np.random.default_rng(0)
    assert separation([verdict(c, failed=bool(rng.random() < 0.5)) for c in cases()]) is None
    assert separation([verdict(c, failed=True) for c in cases()]) is None
    assert separation([verdict(c, failed=False) for c in cases()]) is None


def test_an_option_is_not_named_for_half_of_the_cases_that_have_it():
    verdicts = [
        verdict(c, claim=claim, failed="causal" in c and (claim == "out") == ("q9" in c))
        for c, claim in itertools.product(cases(), ("out", "lse"))
    ]
    assert separation(verdicts) is None


def test_wrong_outputs_are_told_from_right_ones_on_the_same_cases():
    verdicts = [
        verdict(case, claim=claim, failed=claim == "dk")
        for case, claim in itertools.product(cases(), ("out", "dq", "dk"))
    ]
    assert spoilt_outputs(verdicts) == "dk wrong, out, dq right on the same cases"
    assert spoilt_outputs([v for v in verdicts if v.claim == "dk"]) == ""


# -- from numbers ----------------------------------------------------------------------------------


def attention(q, k, v, scale):
    s = (q @ k.swapaxes(-1, -2)) * np.float32(scale)
    p = np.exp(s - s.max(-1, keepdims=True, initial=-1e30))
    return (p / p.sum(-1, keepdims=True)) @ v


def wrong_in(spoil):
    """What is said of a kernel whose right output is passed through `spoil`."""

    @kernel(dtypes=("float32",))
    def mine(q, k, v, *, scale):
        return spoil(attention(q, k, v, scale).copy(), q).astype(np.float32)

    failed = [
        verdict(f"normal/{shape}/plain", failed=True)
        for shape in ("b2h3g3q9k17d8v8", "b3h3g3q13k8d16v16", "b2h4g4q21k5d8v8")
    ]
    questions = again(failed, mine, seed=0, until=lambda: False)
    assert all(question.failed for question in questions)
    return places(questions)


def test_one_factor_is_named():
    assert wrong_in(lambda out, q: 1.02 * out) == ["1.02 times the exact result"]


def test_a_factor_that_depends_on_the_head_size_is_named():
    assert wrong_in(lambda out, q: out * q.shape[-1] ** 0.5) == ["the exact result times 1/scale"]


def put(where, value):
    def spoil(out, q):
        out[where] = value
        return out

    return spoil


def test_rows_heads_and_columns_are_named():
    assert wrong_in(put(np.s_[:, :, -1], 7)) == ["the last row alone"]
    assert wrong_in(put(np.s_[:, 1::2], 7)) in (["odd heads"], ["head i mod 2 = 1"])
    assert wrong_in(put(np.s_[1:], 7)) == ["all batch entries but the first"]
    assert wrong_in(put(np.s_[..., 0], 7)) == ["column 0 alone"]
    assert wrong_in(put(np.s_[:, :, 4:], 7)) == ["rows 4 and later"]


def test_nan_zero_and_a_neighbour_are_named():
    assert wrong_in(put(np.s_[...], np.nan)) == ["NaN"]
    assert wrong_in(put(np.s_[...], 0)) == ["0"]
    assert wrong_in(lambda out, q: np.roll(out, 1, axis=1)) == [
        "the exact result of the head before"
    ]


def test_no_place_is_named_where_all_is_wrong():
    rng = np.random.default_rng(0)
    assert wrong_in(lambda out, q: rng.standard_normal(out.shape)) == []
