"""The faults of the catalogue as explanations: each answers the calls that the implementation did.

A fault explains a failed question where it returns what the implementation returned: within the
declared bound wherever the implementation is wrong, and wherever it is right. Roundings that
differ from implementation to implementation (a P in 16 bits, other tiles) match in the mean: the
two errors go together. Where there is no number to compare, the question must fail in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.adapters import CallFailed, Kernel, call
from attnspec.adapters.catalogue import Fault
from attnspec.adapters.pipeline import Pipeline
from attnspec.conformance.diagnosis_evidence import Again, Call, Measured, is_rounding
from attnspec.conformance.examination import examine, question_of
from attnspec.conformance.localisation import common_options
from attnspec.conformance.verdict import Verdict
from attnspec.oracle.formats import FORMATS
from attnspec.oracle.problem import OUTPUTS

__all__ = ["Candidate", "Likeness", "Profile", "candidates", "consistency", "spoils", "ways"]

TOGETHER = 0.7
"""Correlation of two errors from which on they have one cause."""
NEARER = 1 / 16
"""A wrong number is explained by one that is this much nearer to it than the exact one is.

The bound is that of the right computation: a wrong one, with larger scores, may round worse.
"""
NEVER_THE_SAME = ("nondeterminism", "uninit", "stale-cache")
"""Kinds of faults whose numbers depend on what ran before, or on chance."""
RIGHT = 2.0
"""Where the implementation is right, both lie within the bound: twice that apart at most."""


@dataclass(frozen=True)
class Likeness:
    """How like the implementation a fault answers one question.

    way: "numbers", "errors" (they go together), "failure" (it fails alike) or "" for no match.
    fraction: of the bound, between the two where the way is "numbers".
    overlap: in [0, 1], how far the same elements are wrong, by as much.
    finite: whether wrong numbers match: that both are NaN, or fail alike, says little.
    """

    way: str
    fraction: float = 0.0
    overlap: float = 0.0
    finite: bool = False


NOTHING = Likeness("")


def _is_wrong(question: Again) -> bool:
    return any(one.outside.any() for told in question.calls for one in told.outputs)


def _is_finite(question: Again) -> bool:
    """Whether a wrong result is a number, or is wrong otherwise than by its numbers."""
    wrong = [one for told in question.calls for one in told.outputs if one.outside.any()]
    return not wrong or any(np.isfinite(one.actual[one.outside]).any() for one in wrong)


@dataclass(eq=False)
class Candidate:
    """A fault, its fresh kernel, and how like the implementation it was, question by question."""

    fault: Fault
    kernel: Kernel
    likeness: dict[int, Likeness] = field(default_factory=dict)

    def answer(self, number: int, question: Again) -> Likeness:
        """Have the calls of a question answered, and compare."""
        found = [_compared(self.kernel, one) for one in question.calls]
        self.likeness[number] = _together(question, found)
        return self.likeness[number]

    def fails_alike(self, number: int, question: Again, *, unstable: bool) -> None:
        """Examine the question with the fault, and see whether it fails for the same reason.

        Numbers that are wrong must match, but for a fault that has others each time; unstable:
        whether the implementation has others too.
        """
        chance = unstable and self.fault.kind in NEVER_THE_SAME
        if _is_wrong(question) and not chance:
            return
        asked = question_of(question.verdict, self.kernel, seed=question.question.seed)
        error = examine(asked)
        said = "" if error is None else f"{type(error).__name__}: {error}"
        before = self.likeness.get(number, NOTHING)
        if bool(said) != question.failed:
            self.likeness[number] = replace(before, way="", overlap=before.overlap / 2)
        elif said and _kind_of(said) == _kind_of(question.error):
            self.likeness[number] = replace(before, way=before.way or "failure")


def candidates(
    faults: Mapping[str, Fault], kernel: Kernel, without: Iterable[str] = ()
) -> list[Candidate]:
    """Every fault as a kernel that takes all types, its diagonal where the implementation's is."""
    left = set(without)
    found = []
    for name, fault in faults.items():
        if name not in left:
            pipeline = _aligned(fault.pipeline, kernel.diagonal)
            made = replace(fault, pipeline=pipeline).kernel(
                dtypes=tuple(FORMATS), diagonal=kernel.diagonal
            )
            found.append(Candidate(fault, made))
    return found


def _aligned(pipeline: type[Pipeline], diagonal: str) -> type[Pipeline]:
    if diagonal != "top-left" or pipeline.offset is not Pipeline.offset:
        return pipeline

    def offset(self: Pipeline) -> npt.NDArray[Any]:
        return np.zeros((self.batch, 1, 1, 1), np.int64)

    return type(pipeline.__name__, (pipeline,), {"offset": offset, "__doc__": pipeline.__doc__})


# -- one call --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Match:
    exact: bool
    together: bool
    fraction: float
    overlap: float | None


FAR = _Match(exact=False, together=False, fraction=0.0, overlap=0.0)


def _compared(kernel: Kernel, told: Call) -> _Match:
    """A fault's answer to one call beside the implementation's."""
    asked = told.asked
    try:
        answer = call(kernel, asked.problem, want=asked.want)
    except CallFailed as failure:
        same = asked.failure is not None and _same_failure(failure, asked.failure)
        return _Match(exact=same, together=same, fraction=0.0, overlap=float(same))
    if asked.failure is not None:
        return FAR
    changed = set(answer.changed) == set(asked.changed)
    matches = [_output(one, answer.outputs[one.output].astype(np.float64)) for one in told.outputs]
    if not matches:
        return _Match(exact=changed, together=changed, fraction=0.0, overlap=float(changed))
    return _Match(
        exact=changed and all(m.exact for m in matches),
        together=changed and all(m.together for m in matches),
        fraction=max(m.fraction for m in matches),
        overlap=_mean(m.overlap for m in matches),
    )


def _same_failure(one: CallFailed, other: CallFailed) -> bool:
    return one.status == other.status and _kind_of(one.message) == _kind_of(other.message)


def _kind_of(message: str) -> str:
    """A message without its numbers, which depend on roundings."""
    words = re.sub(r"[-+]?(\d[\d.,]*(e[-+]?\d+)?|inf|nan)\b", "#", message.partition(", exact")[0])
    return re.sub(r"(# ?)+", "#", words)


def _output(one: Measured, theirs: npt.NDArray[np.float64]) -> _Match:
    """One output of a fault beside the implementation's."""
    wrong = one.outside
    wrong_too = one.beyond(theirs, one.exact)
    off = one.fraction(one.actual, one.exact)
    apart = one.fraction(one.actual, theirs)
    reach = one.reach(one.actual, theirs)
    with np.errstate(invalid="ignore"):
        nearer = (reach <= 1) | (apart <= NEARER * off)
        nearer &= ~np.isinf(apart) | (reach <= 1)
        closer = (apart <= 0.5 * off) | (np.isinf(off) & (reach <= 1))
    exact = bool(np.all(np.where(wrong, nearer, apart <= RIGHT) | ~one.judged))
    if exact and wrong.any():  # nothing is explained by what is no nearer than the exact result
        exact = bool(np.mean(closer[wrong]) >= 0.5)
    fraction = float(reach[wrong].max()) if exact and wrong.any() else 0.0
    similarity = _cosine(one, theirs)
    either = int((wrong | wrong_too).sum())
    shared = 1.0 if either == 0 else int((wrong & wrong_too).sum()) / either
    alike = None if either == 0 else (shared + max(0.0, similarity)) / 2
    together = exact or (is_rounding(one) and similarity > TOGETHER)
    return _Match(exact, together, fraction, alike)


def _cosine(one: Measured, theirs: npt.NDArray[np.float64]) -> float:
    """The correlation of two errors: 1 where they are the same, 0 where there is nothing."""
    with np.errstate(all="ignore"):
        mine, other = one.actual - one.exact, theirs - one.exact
        usable = np.isfinite(mine) & np.isfinite(other) & one.judged
        a, b = mine[usable], other[usable]
        size = float(np.sqrt((a * a).sum()) * np.sqrt((b * b).sum()))
        return float((a * b).sum() / size) if size > 0 and np.isfinite(size) else 0.0


def _mean(found: Iterable[float | None]) -> float | None:
    """Of what is known; None where one is as right as the other."""
    known = [one for one in found if one is not None]
    return float(np.mean(known)) if known else None


def _together(question: Again, found: Sequence[_Match]) -> Likeness:
    """The likeness on a question from those of its calls.

    A failure of which no call is wrong by itself (bits that change, say) is not explained by
    numbers: something else must show that the fault fails too.
    """
    if not found:
        return NOTHING
    fraction = max(m.fraction for m in found)
    overlap = _mean(m.overlap for m in found) or 0.0
    telling = not question.failed or any(one.telling for one in question.calls)
    if telling and all(m.exact for m in found):
        return Likeness("numbers", fraction, overlap, finite=_is_finite(question))
    if telling and all(m.together for m in found):
        return Likeness("errors", fraction, overlap)
    return Likeness("", fraction, overlap)


# -- what the fault is registered with -------------------------------------------------------------


MENTIONS = {
    "causal": ("causal", "future"),
    "window": ("window",),
    "mask": ("mask",),
    "bias": ("bias",),
    "softcap": ("softcap", "cap"),
    "sinks": ("sink",),
    "alibi": ("alibi", "slope"),
    "key_lengths": ("length", "padding", "varlen"),
    "query_lengths": ("length", "padding", "varlen"),
    "gqa": ("gqa", "group", "key head"),
}
"""By which words a fault says that it is about an option."""


@dataclass(frozen=True)
class Profile:
    """What failed: claims that did, claims that did not, and the options that failures share."""

    failed: frozenset[str]
    passed: frozenset[str]
    options: tuple[str, ...]

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> Profile:
        """Of the verdicts on one implementation."""
        judged = [verdict for verdict in verdicts if verdict.status != "not claimed"]
        failed = frozenset(verdict.claim for verdict in judged if verdict.status != "pass")
        passed = frozenset(verdict.claim for verdict in judged) - failed
        return cls(failed, passed, common_options(judged))


def spoils(fault: Fault, profile: Profile) -> bool:
    """Whether the fault may make all the outputs wrong that are."""
    return set(OUTPUTS) & profile.failed <= set(fault.spoils)


def consistency(fault: Fault, profile: Profile) -> float:
    """In [0, 1]: how well what the fault is registered with fits what failed.

    The claims and outputs that it is known to fail, and the options that it speaks of.
    """
    outputs = {claim for claim in profile.failed if claim in OUTPUTS}
    unexpected = outputs - set(fault.spoils)
    shows = [claim for claim in fault.shows if claim in profile.failed | profile.passed]
    shown = sum(claim in profile.failed for claim in shows) / len(shows) if shows else 0.5
    spared = [claim for claim in OUTPUTS if claim in profile.passed and claim in fault.spoils]
    many = len(outputs | set(spared))
    fit = 1 - (len(unexpected) + 0.5 * len(spared)) / many if many else 0.5
    return 0.4 * shown + 0.3 * max(0.0, fit) + 0.3 * _affinity(fault, profile.options)


def _affinity(fault: Fault, common: Collection[str]) -> float:
    """How well the options that a fault speaks of are those that the failures share."""
    text = f"{fault.name} {fault.kind} {fault.group} {fault.says}".lower()
    spoken = {name for name, words in MENTIONS.items() if any(word in text for word in words)}
    if not common:
        return 0.3 if spoken else 0.7
    return len(spoken & set(common)) / len(spoken | set(common))


def ways(found: Iterable[Likeness]) -> dict[str, int]:
    """How many questions each way explains."""
    counts: dict[str, int] = {}
    for one in found:
        if one.way:
            counts[one.way] = counts.get(one.way, 0) + 1
    return counts
