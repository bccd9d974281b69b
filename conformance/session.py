"""One run of the suite: the implementations, what they are asked, and the verdicts that fall."""

from __future__ import annotations

import difflib
import inspect
import itertools
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import pytest

import attnspec
from attnspec.adapters import Kernel, load
from attnspec.adapters.declaration import NEUTRAL
from attnspec.conformance.case import Case
from attnspec.conformance.cases import LEVELS, Turn, needs
from attnspec.conformance.fitting import fitting
from attnspec.conformance.question import Question
from attnspec.conformance.vacuity import vacuity
from attnspec.conformance.verdict import UNJUDGED, Verdict

__all__ = ["Session"]

Cases = Callable[..., list[Case]]


@dataclass
class Session:
    """The implementations by the name that the user gave, and how much they are asked.

    probe: whether a question that passes must show that it could have failed (see `vacuity`).
    """

    kernels: dict[str, Kernel]
    level: str
    seed: int
    patterns: Sequence[str]
    target: str
    probe: bool = False
    matched: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, config: pytest.Config) -> Session:
        """From pytest's command line. Raises `LoadError` for an implementation that cannot run."""
        kernels = {name: load(name) for name in config.getoption("--impl")}
        by_module = config.getoption("pyargs")
        return cls(
            kernels=kernels,
            level=config.getoption("--attn-level"),
            seed=config.getoption("--attn-seed"),
            patterns=config.getoption("--attn-case"),
            target="--pyargs attnspec.conformance" if by_module else "conformance",
            probe=True,
        )

    def header(self) -> list[str]:
        """The lines that open a log: version, level and seed, then one line an implementation."""
        lines = [f"attnspec {attnspec.__version__}: level {self.level}, seed {self.seed}"]
        for name, kernel in self.kernels.items():
            dtypes = ", ".join(self._dtypes(kernel))
            lines.append(f"  {name}: {kernel.framework} on {kernel.device}; {dtypes}")
        return lines

    # -- what is asked -------------------------------------------------------------------------

    def questions(self, *claims: str, cases: Cases) -> list[Question]:
        """The questions of one test: a claim at a time, then type, case and implementation.

        What an implementation does not offer at all is asked once, to be seen as "not claimed".
        """
        found = (question for claim in claims for question in self._questions(claim, cases))
        return [question for question in found if self._selected(question)]

    def _questions(self, claim: str, cases: Cases) -> list[Question]:
        ranked: dict[tuple[str, Case], list[Question]] = {}
        for impl, kernel in self.kernels.items():
            dtypes = tuple(self._dtypes(kernel))
            for dtype in dtypes:
                chosen = self._cases(claim, kernel, cases, (dtype, dtypes))
                for case in chosen if offers(kernel, claim) else chosen[:1]:
                    question = Question(impl, kernel, claim, dtype, case, self.seed)
                    ranked.setdefault((dtype, case), []).append(question)
        return [question for group in ranked.values() for question in group]

    def _cases(self, claim: str, kernel: Kernel, cases: Cases, turn: Turn) -> list[Case]:
        levels = LEVELS if self.patterns else (self.level,)
        options = {*kernel.options, "gqa"}
        found = (cases(claim, level=level, options=options, turn=turn) for level in levels)
        return list(dict.fromkeys(map(fitting(kernel), itertools.chain.from_iterable(found))))

    @staticmethod
    def _dtypes(kernel: Kernel) -> list[str]:
        return [
            name for name in ("float64", "float32", "float16", "bfloat16") if name in kernel.dtypes
        ]

    def _selected(self, question: Question) -> bool:
        hits = {pattern for pattern in self.patterns if fnmatchcase(question.id, pattern)}
        self.matched |= hits
        return bool(hits) or not self.patterns

    def unmatched(self) -> str:
        """A pattern of --attn-case that selected nothing, or ""."""
        return next((pattern for pattern in self.patterns if pattern not in self.matched), "")

    def notes(self, impl: str) -> tuple[str, ...]:
        """What a user may have meant as an option and the protocol does not know."""
        kernel = self.kernels[impl]
        parameters = list(inspect.signature(kernel.function).parameters)[3:]
        return tuple(_note(name) for name in parameters if name not in NEUTRAL)

    def unjudged(self, impl: str, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
        """What an implementation claims and was asked, but refused each time it was asked.

        Options by name, and `out` where nothing at all was judged.
        """
        of_impl = [verdict for verdict in verdicts if verdict.impl == impl]
        judged = {word for v in of_impl if v.status not in UNJUDGED for word in _options_in(v)}
        asked = {word for verdict in of_impl for word in _options_in(verdict)}
        claimed = {"out", *self.kernels[impl].options}
        return tuple(sorted((asked & claimed) - judged))

    # -- what came of it -----------------------------------------------------------------------

    def settle(self, question: Question, error: BaseException | None, seconds: float) -> Verdict:
        """The verdict on a question that has been examined, with the command that repeats it."""
        reason = ""
        if self.probe and error is None and question.findings:
            from attnspec.conformance.examination import checks  # which asks for sessions

            reason = vacuity(question, checks()[question.claim].examine)
        return question.settle(
            error, reproduce=self.reproduce(question), seconds=seconds, vacuity=reason
        )

    def reproduce(self, question: Question) -> str:
        """The command that asks just this question again."""
        seed = f" --attn-seed={self.seed}" if self.seed else ""
        impl, case = shlex.quote(question.impl), shlex.quote(question.id)
        return f"pytest {self.target} --impl={impl}{seed} --attn-case={case}"


def offers(kernel: Kernel, claim: str) -> bool:
    """Whether a kernel claims what the claim needs at all; each problem may need more."""
    offered = {*kernel.options, *kernel.differentiable}
    if kernel.differentiable:
        offered.add("gradients")
    return offered.issuperset(needs(claim))


def _options_in(verdict: Verdict) -> set[str]:
    """The options of a verdict's case, and `out`."""
    return {"out", *(word.partition(":")[0] for word in verdict.case.rpartition("/")[2].split("+"))}


def _note(name: str) -> str:
    close = difflib.get_close_matches(name, NEUTRAL, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"{name} is not an option of the protocol and keeps its default{meant}"
