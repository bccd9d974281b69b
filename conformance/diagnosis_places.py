"""Where in an output the wrong numbers stand, and what they are instead: from the numbers.

Every sentence is a predicate that is tried on each wrong output by itself; it is said where it
holds on all of them to which it applies, and on two at least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from attnspec.conformance.case import rows_of
from attnspec.conformance.certify import empty_rows
from attnspec.conformance.diagnosis_evidence import Again, Measured
from attnspec.oracle.problem import OUTPUTS, Problem

__all__ = ["places"]

BoolArray = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]

AXES = {
    "out": ("batch entry", "head", "row", "column"),
    "lse": ("batch entry", "head", "row"),
    "dq": ("batch entry", "head", "row", "column"),
    "dk": ("batch entry", "key head", "key", "column"),
    "dv": ("batch entry", "key head", "key", "column"),
    "dbias": ("batch entry", "head", "row", "key"),
    "dsinks": ("head",),
}
PLURAL = {"batch entry": "batch entries"}
FEWEST = 2
"""Outputs on which a sentence must hold."""
CONSTANT = 0.01
"""How much the quotients of wrong and exact may vary to be called one factor."""


def places(questions: Sequence[Again]) -> list[str]:
    """What is true of the wrong numbers of all these questions, in a few words each."""
    wrong = [
        (call.asked.problem, one)
        for question in questions
        if question.failed
        and question.verdict.claim in OUTPUTS
        and rows_of(question.question.case, seed=question.question.seed) is None
        for call in question.calls
        for one in call.outputs
        if one.output == question.verdict.claim and one.outside.any()
    ]
    if len(wrong) < FEWEST:
        return []
    return [*_values(wrong), *_axes(wrong)]


# -- what they are ---------------------------------------------------------------------------------


def _values(wrong: Sequence[tuple[Problem, Measured]]) -> list[str]:
    if all(np.isnan(one.actual[one.outside]).all() for _, one in wrong):
        return ["NaN"]
    if all((~np.isfinite(one.actual[one.outside])).all() for _, one in wrong):
        return ["not finite"]
    if all((one.actual[one.outside] == 0).all() for _, one in wrong):
        return ["0"]
    found = []
    if any(np.isnan(one.actual[one.outside]).any() for _, one in wrong):
        found.append("some NaN")
    factors = [_factor(one) for _, one in wrong]
    known = [factor for factor in factors if factor is not None]
    if len(known) == len(factors):
        found.append(_named_factor([problem for problem, _ in wrong], known))
    else:
        found += _shifted(wrong)
    return found


FACTORS: dict[str, Callable[[Problem], float]] = {
    "1/scale": lambda p: 1 / p.scale if p.scale else np.nan,
    "scale": lambda p: p.scale,
    "scale squared": lambda p: p.scale**2,
    "sqrt(D)": lambda p: p.head_size**0.5,
    "1/sqrt(D)": lambda p: p.head_size**-0.5,
    "ln 2": lambda p: float(np.log(2)),
    "1/ln 2": lambda p: float(1 / np.log(2)),
    "Hkv/Hq": lambda p: p.kv_heads / p.query_heads,
    "1/B": lambda p: 1 / p.batch,
    "Nk": lambda p: float(p.key_count),
    "1/Nk": lambda p: 1 / max(1, p.key_count),
}


def _named_factor(problems: Sequence[Problem], factors: Sequence[float]) -> str:
    """One number for all, or what it is in each problem, or how far it ranges."""
    middle = float(np.median(factors))
    if np.ptp(factors) <= CONSTANT * abs(middle):
        return f"{middle:.4g} times the exact result"
    for words, value in FACTORS.items():
        expected = [value(problem) for problem in problems]
        if np.allclose(factors, expected, rtol=CONSTANT, atol=0):
            return f"the exact result times {words}"
    ranged = f"{min(factors):.3g} to {max(factors):.3g}"
    return f"the exact result times one factor an output ({ranged})"


def _factor(one: Measured) -> float | None:
    """What the exact result is multiplied by, where it is one number."""
    with np.errstate(all="ignore"):
        usable = one.outside & (np.abs(one.exact) > 8 * one.bound) & np.isfinite(one.actual)
        quotients = one.actual[usable] / one.exact[usable]
    if quotients.size < 3:
        return None
    middle = float(np.median(quotients))
    steady = np.ptp(quotients) <= CONSTANT * max(abs(middle), 1e-3)
    return middle if steady and abs(middle - 1) > 2 * CONSTANT / 10 else None


def _shifted(wrong: Sequence[tuple[Problem, Measured]]) -> list[str]:
    """The exact result of a neighbour: of the row, head or batch entry before or after."""
    for axis, name in ((2, "row"), (1, "head"), (0, "batch entry")):
        for step, word in ((1, "before"), (-1, "after")):
            tried = [
                _is_shifted(one, axis, step)
                for _, one in wrong
                if one.exact.ndim > axis and one.exact.shape[axis] > 1
            ]
            if len(tried) >= FEWEST and all(tried):
                return [f"the exact result of the {name} {word}"]
    if all(one.output == "lse" for _, one in wrong):
        gaps = [(one.actual - one.exact)[one.outside] for _, one in wrong]
        with np.errstate(all="ignore"):
            flat = np.concatenate(gaps)
        if np.isfinite(flat).all() and np.ptp(flat) <= CONSTANT * abs(float(flat.mean())):
            return [f"the exact result {float(flat.mean()):+.4g}"]
    return []


def _is_shifted(one: Measured, axis: int, step: int) -> bool:
    other = np.roll(one.exact, step, axis)
    return bool(~one.beyond(one.actual, other, 2.0)[one.outside].any())


# -- where they are --------------------------------------------------------------------------------


def _axes(wrong: Sequence[tuple[Problem, Measured]]) -> list[str]:
    found = []
    for axis in dict.fromkeys(name for _, one in wrong for name in AXES[one.output]):
        here = [_along(one, axis) for _, one in wrong if axis in AXES[one.output]]
        spans = [(bad, n) for bad, n in here if n > 1]
        if words := _indices(axis, spans):
            found.append(words)
    if blind := _blind(wrong):
        found = [words for words in found if "row" not in words] + [blind]
    return found


def _along(one: Measured, axis: str) -> tuple[Indices, int]:
    """Which indices of an axis hold a wrong number, and how many there are."""
    number = AXES[one.output].index(axis)
    number += one.outside.ndim - len(AXES[one.output])
    others = tuple(i for i in range(one.outside.ndim) if i != number)
    return np.flatnonzero(one.outside.any(axis=others)), one.outside.shape[number]


Predicate = Callable[[Indices, int], bool]


def _rules() -> dict[str, Predicate]:
    """Which indices of n are wrong, in words; `{}` is an index, `{s}` several."""
    rules: dict[str, Predicate] = {
        "{} 0 alone": lambda bad, n: bool((bad == 0).all()),
        "the last {} alone": lambda bad, n: bool((bad == n - 1).all()),
        "all {s} but the last": lambda bad, n: len(bad) == n - 1 == int(bad.max()) + 1,
    }
    for t in (2, 4, 8, 16, 32):
        for r in range(min(t, 4)):
            words = f"{{s}} i mod {t} = {r}" if t > 2 else ("even {s}", "odd {s}")[r]
            rules[words] = lambda bad, n, t=t, r=r: n > t and bool((bad % t == r).all())  # type: ignore[misc]
    for t in (128, 64, 32, 16, 8):
        words = f"{{s}} of the last, incomplete tile of {t}"
        rules[words] = lambda bad, n, t=t: n > t and n % t > 0 and int(bad.min()) == n - n % t  # type: ignore[misc]
    for t in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        words = f"{{s}} {t} and later" if t > 1 else "all {s} but the first"
        rules[words] = lambda bad, n, t=t: n > t and int(bad.min()) == t  # type: ignore[misc]
        words = f"{{s}} before {t}"
        rules[words] = lambda bad, n, t=t: n > t and int(bad.max()) == t - 1  # type: ignore[misc]
    return rules


RULES = _rules()


def _indices(axis: str, spans: Sequence[tuple[Indices, int]]) -> str:
    """What is true of the wrong indices everywhere; "" where all are wrong, or nothing is."""
    if len(spans) < FEWEST or all(len(bad) == n for bad, n in spans):
        return ""
    for words, rule in RULES.items():
        if all(rule(bad, n) for bad, n in spans):
            return words.replace("{s}", PLURAL.get(axis, f"{axis}s")).replace("{}", axis)
    return ""


def _blind(wrong: Sequence[tuple[Problem, Measured]]) -> str:
    """Whether wrong rows are those that see no key."""
    by_row = [(p, one) for p, one in wrong if one.output in ("out", "lse", "dq")]
    if len(by_row) < FEWEST or len(by_row) < len(wrong):
        return ""
    for problem, one in by_row:
        wrong_rows = one.outside if one.outside.ndim == 3 else one.outside.any(axis=-1)
        rows: BoolArray = np.asarray(wrong_rows)
        if (rows & ~empty_rows(problem)).any():
            return ""
    return "rows that see no key"
