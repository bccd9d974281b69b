"""Where an implementation fails: what its failures share and its passes do not, from verdicts.

The simplest conjunction of what a question is made of (options, lengths, sizes, types) that holds
on the failures and not on the passes, with its counts. Nothing is said where nothing separates.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attnspec.conformance.case import Case
from attnspec.conformance.options import OPTIONS
from attnspec.conformance.verdict import Verdict
from attnspec.oracle.problem import OUTPUTS

__all__ = ["Separation", "common_options", "separation", "spoilt_outputs"]

BoolArray = npt.NDArray[np.bool_]

FEWEST = 2
"""Failures from which on something can be said to be common to them."""
RECALL = 0.9
"""Share of the failures that a conjunction must hold on; else it is not what they share."""
LEAKS = 0.34
"""Passes it may hold on, as a share of the failures that it holds on: some cases of a kind always
hide a fault (a mask that hides nothing)."""
SAYS = 0.5
"""A conjunction must hold on fewer than this share of the passes, or it separates nothing."""
PRICE = 0.02
"""What a further literal must gain."""


@dataclass(frozen=True)
class Separation:
    """words: what failures share. In how many of the failures and of the passes it holds."""

    words: str
    held_by: int
    failures: int
    leaks: int
    passes: int
    within: str

    def __str__(self) -> str:
        """all 37 failures, and none of 120 passes, have causal and Nq != Nk."""
        some = (
            f"all {self.failures}"
            if self.held_by == self.failures
            else (f"{self.held_by} of {self.failures}")
        )
        none = "none" if not self.leaks else f"{self.leaks}"
        return (
            f"{some} failures{self.within}, and {none} of {self.passes} passes, have {self.words}"
        )


Failed = ("fail", "error", "crash", "timeout", "xpass")


def spoilt_outputs(verdicts: Sequence[Verdict]) -> str:
    """Which outputs are wrong, where others are right on the same cases."""
    judged = [v for v in verdicts if v.status != "not claimed"]
    bad = dict.fromkeys(v.claim for v in judged if v.status in Failed)
    outputs = [name for name in OUTPUTS if name in bad]
    if not outputs and bad and any(v.claim in OUTPUTS for v in judged):
        listed = ", ".join(list(bad)[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
        return f"no output is wrong in the cases that are compared; what fails: {listed}"
    places = {(v.dtype, v.case) for v in judged if v.status in Failed and v.claim in OUTPUTS}
    passed = {v.claim for v in judged if v.status == "pass" and (v.dtype, v.case) in places}
    right = [name for name in OUTPUTS if name in passed and name not in outputs]
    if outputs and right:
        return f"{', '.join(outputs)} wrong, {', '.join(right)} right on the same cases"
    return ""


def common_options(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """The options that nearly all failures have, and not most passes."""
    bad = [_options(v) for v in verdicts if v.status in Failed]
    good = [_options(v) for v in verdicts if v.status == "pass"]
    names = {name for options in bad for name in options}
    return tuple(
        sorted(
            name
            for name in names
            if sum(name in options for options in bad) >= RECALL * len(bad)
            and sum(name in options for options in good) < SAYS * len(good)
        )
    )


def _options(verdict: Verdict) -> frozenset[str]:
    settings = verdict.case.rpartition("/")[2].split("+")
    return frozenset(word.partition(":")[0] for word in settings if word != "plain")


def separation(verdicts: Sequence[Verdict]) -> Separation | None:
    """The simplest conjunction that tells failures from passes; None where there is none.

    Comparisons with the oracle are looked at, where enough of them failed: the other claims ask
    problems of their own making, which the case does not name. Of claims and of types, those in
    which something failed.
    """
    wrong = any(v.status == "fail" for v in verdicts)  # what raises, says itself why
    judged = [v for v in verdicts if v.status in (("pass", "fail") if wrong else ("pass", *Failed))]
    compared = [v for v in judged if v.claim in OUTPUTS]
    if sum(v.status in Failed for v in compared) >= FEWEST:
        judged = compared
    bad = {v.claim for v in judged if v.status in Failed}
    judged = [v for v in judged if v.claim in bad]
    failed = np.array([v.status in Failed for v in judged])
    if failed.sum() < FEWEST or failed.all():
        return None
    names, table = _table(judged)
    best = _best(names, table, failed)
    if best is None:
        return None
    words, held = best
    words += _examples(words, [v for v, one in zip(judged, failed, strict=True) if one])
    return Separation(
        words=words,
        held_by=int((held & failed).sum()),
        failures=int(failed.sum()),
        leaks=int((held & ~failed).sum()),
        passes=int((~failed).sum()),
        within=f" of {', '.join(sorted(bad))}" if len(bad) < 3 else "",
    )


def _best(
    names: Sequence[str], table: BoolArray, failed: BoolArray
) -> tuple[str, BoolArray] | None:
    """The conjunction of at most three literals that separates best for its length."""
    recall = table[:, failed].mean(axis=1)
    useful = [i for i in range(len(names)) if recall[i] >= RECALL and not table[i].all()]
    useful.sort(key=lambda i: table[i, ~failed].sum())
    useful = useful[:24]
    found: tuple[float, str, BoolArray] | None = None
    for count in (1, 2, 3):
        for chosen in itertools.combinations(useful[: 24 if count < 3 else 12], count):
            held: BoolArray = np.asarray(table[list(chosen)].all(axis=0))
            kept, leaks = int((held & failed).sum()), int((held & ~failed).sum())
            if kept < RECALL * failed.sum() or leaks > LEAKS * kept:
                continue
            if leaks >= SAYS * (~failed).sum():
                continue
            worth = kept / failed.sum() - leaks / kept - PRICE * count
            if found is None or worth > found[0] + 1e-9:
                words = " and ".join(names[i] for i in chosen)
                found = (worth, words, held)
    return None if found is None else found[1:]


def _examples(words: str, failed: Sequence[Verdict]) -> str:
    """The few lengths that stand behind a remainder, which they alone do not fix."""
    if " mod " not in words and " multiple " not in words:
        return ""
    shapes = [Case.parse(v.case).shape for v in failed]
    name = "Nk" if "Nk" in words else "Nq" if "Nq" in words else "D"
    of = {"Nk": "keys", "Nq": "queries", "D": "size"}[name]
    found = sorted({getattr(shape, of) for shape in shapes})
    return f" ({name} {', '.join(map(str, found))})" if len(found) <= 4 else ""


# -- what a question is made of --------------------------------------------------------------------

Literal = Callable[[Verdict, Case], bool]


def _table(verdicts: Sequence[Verdict]) -> tuple[list[str], BoolArray]:
    """Every literal, the simplest first, and on which verdicts it holds."""
    cases = [Case.parse(v.case) for v in verdicts]
    pairs = list(zip(verdicts, cases, strict=True))
    tests = _literals(verdicts, cases)
    rows = np.array([[test(*pair) for pair in pairs] for test in tests.values()], np.bool_)
    names: list[str] = []
    kept: list[BoolArray] = []
    seen: set[bytes] = set()
    for name, row in zip(tests, rows, strict=True):
        if row.tobytes() not in seen:  # of two that say the same, the simpler
            seen.add(row.tobytes())
            names.append(name)
            kept.append(row)
    return names, np.array(kept)


def _literals(verdicts: Sequence[Verdict], cases: Sequence[Case]) -> Mapping[str, Literal]:
    tests: dict[str, Literal] = {}
    for name in dict.fromkeys(option for case in cases for option, _ in case.settings):
        tests[_option_words(name)] = lambda v, c, n=name: n in dict(c.settings)  # type: ignore[misc]
    tests |= _lengths() | _shapes()
    for dtype in dict.fromkeys(v.dtype for v in verdicts):
        tests[f"type {dtype}"] = lambda v, c, d=dtype: v.dtype == d  # type: ignore[misc]
    tests["a 16-bit type"] = lambda v, c: v.dtype in ("float16", "bfloat16")
    for one, other in itertools.combinations(OPTIONS, 2):
        words = f"{one} or {other}"
        tests[words] = lambda v, c, o=(one, other): any(n in dict(c.settings) for n in o)  # type: ignore[misc]
    for setting in dict.fromkeys(pair for case in cases for pair in case.settings):
        if setting[1] != "on":
            words = f"{setting[0]}:{setting[1]}"
            tests[words] = lambda v, c, s=setting: s in c.settings  # type: ignore[misc]
    for family in dict.fromkeys(case.family for case in cases):
        tests[f"inputs {family}"] = lambda v, c, f=family: c.family == f  # type: ignore[misc]
    for claim in dict.fromkeys(v.claim for v in verdicts):
        tests[f"claim {claim}"] = lambda v, c, n=claim: v.claim == n  # type: ignore[misc]
    tests["no option"] = lambda v, c: not c.settings
    return tests


def _option_words(name: str) -> str:
    return {"gqa": "fewer key heads than query heads"}.get(name, name)


def _lengths() -> dict[str, Literal]:
    tests: dict[str, Literal] = {
        "Nq != Nk": lambda v, c: c.shape.queries != c.shape.keys,
        "Nq < Nk": lambda v, c: c.shape.queries < c.shape.keys,
        "Nq > Nk": lambda v, c: c.shape.queries > c.shape.keys,
        "Nq = Nk": lambda v, c: c.shape.queries == c.shape.keys,
        "Nq = 1": lambda v, c: c.shape.queries == 1,
        "Nq > 1": lambda v, c: c.shape.queries > 1,
        "Nk = 1": lambda v, c: c.shape.keys == 1,
        "Nk = 0": lambda v, c: c.shape.keys == 0,
    }
    for what, of in (("Nk", lambda c: c.shape.keys), ("Nq", lambda c: c.shape.queries)):
        for t in (16, 32, 64, 128, 256, 512, 1024):
            tests[f"{what} > {t}"] = lambda v, c, of=of, t=t: of(c) > t  # type: ignore[misc]
        for t in (8, 16, 32, 64, 128):
            words = f"{what} not a multiple of {t}"
            tests[words] = lambda v, c, of=of, t=t: of(c) % t != 0  # type: ignore[misc]
        for t in (2, 4, 8, 16, 32, 64, 128):
            for r in (1, t - 1) if t > 2 else (1,):
                words = f"{what} mod {t} = {r}"
                tests[words] = lambda v, c, of=of, t=t, r=r: of(c) % t == r  # type: ignore[misc]
            words = f"{what} a multiple of {t}"
            tests[words] = lambda v, c, of=of, t=t: of(c) > 0 and of(c) % t == 0  # type: ignore[misc]
    return tests


def _shapes() -> dict[str, Literal]:
    tests: dict[str, Literal] = {
        "more than one batch entry": lambda v, c: c.shape.batch > 1,
        "more than one head": lambda v, c: c.shape.heads > 1,
        "Dv != D": lambda v, c: c.shape.size != c.shape.value_size,
        "Dv < D": lambda v, c: c.shape.value_size < c.shape.size,
        "Dv > D": lambda v, c: c.shape.value_size > c.shape.size,
    }
    for t in (16, 32, 64, 128, 256):
        tests[f"D > {t}"] = lambda v, c, t=t: c.shape.size > t  # type: ignore[misc]
    for t in (2, 8, 16, 32, 64):
        words = f"D not a multiple of {t}"
        tests[words] = lambda v, c, t=t: c.shape.size % t != 0  # type: ignore[misc]
    return tests
