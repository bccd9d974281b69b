"""Kernels judged by other suites' rules: on those suites' own inputs, and on attnspec's.

What does not depend on the kernel (problems, references, what a correct kernel returns) is made
once, for every kernel. A kernel is fresh for each suite, so that what it remembers starts anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from eager import Eager
from peer_rules import Compared
from peers import Peer

from attnspec.adapters import CallFailed, Kernel, call
from attnspec.adapters.catalogue import Variant
from attnspec.adapters.declaration import NEUTRAL
from attnspec.adapters.pipeline import Pipeline, kernel_of
from attnspec.conformance.case import draw, has_gradients
from attnspec.conformance.cases import reference_cases
from attnspec.conformance.certify import empty_rows
from attnspec.conformance.options import OPTIONS
from attnspec.oracle.problem import Problem

__all__ = ["INPUTS", "Exam", "Judgement", "Paper", "examined", "papers"]

Array = npt.NDArray[Any]
Outputs = Mapping[str, Array]

INPUTS = ("own", "ours")
"""The suite's own inputs, and attnspec's: the problems of out, lse and gradients, level smoke."""

PASSES = (("out",), ("out", "lse"), ("out", "dq", "dk", "dv", "dbias", "dsinks"))
"""How attnspec's inputs are asked: forward as in inference, with lse, and with gradients."""


@dataclass(frozen=True, eq=False)
class Paper:
    """One call: the problem, the outputs wanted, and what a correct kernel returns."""

    problem: Problem
    want: tuple[str, ...]
    honest: Outputs
    has_empty_rows: bool
    references: dict[Eager, Outputs] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: Problem, want: tuple[str, ...]) -> Paper:
        """With the outputs that the problem has."""
        absent = {"dbias": problem.bias is None, "dsinks": problem.sinks is None}
        kept = tuple(name for name in want if not absent.get(name, False))
        honest = call(HONEST, problem, want=kept).outputs
        return cls(problem, kept, honest, bool(empty_rows(problem).any()))

    def reference(self, way: Eager) -> Outputs:
        """A reference's outputs, computed once."""
        if way not in self.references:
            self.references[way] = way(self.problem, self.want)
        return self.references[way]

    @cached_property
    def options(self) -> set[str]:
        """The options that the problem uses, by name; other sizes than usual are options too."""
        problem, size = self.problem, self.problem.head_size
        found = {
            name
            for name in NEUTRAL
            if name not in ("scale", "return_lse") and getattr(problem, name) is not NEUTRAL[name]
        }
        special = {
            "scale": problem.scale not in (size**-0.5, 1 / size**0.5),
            "gqa": problem.kv_heads != problem.query_heads,
            "dlse": problem.dlse is not None,
            "value size": problem.value_size != size,
            "offset": problem.query_count != problem.key_count
            and not found.isdisjoint(("causal", "window", "alibi")),
        }
        return found | {name for name, used in special.items() if used}


HONEST = kernel_of(Pipeline, name="honest")


@dataclass(frozen=True, eq=False)
class Exam:
    """What a peer asks in a run: its own papers, and attnspec's, each a list a fresh kernel.

    Peers of one grid share their papers.
    """

    peer: Peer
    own: Sequence[Paper]
    ours: Sequence[Sequence[Paper]]

    @cached_property
    def options(self) -> set[str]:
        """The options that the peer's own inputs use."""
        return {name for paper in self.own for name in paper.options}


@dataclass
class Judgement:
    """What a peer found in one kernel on its own inputs, or on attnspec's.

    judged, rejected: comparisons. differs: whether the kernel returned anything that a correct
    kernel does not, in an output that the peer compares and with options that its inputs have.
    """

    judged: int = 0
    rejected: int = 0
    differs: bool = False


# -- the papers ----------------------------------------------------------------------------------


def papers(peers: Sequence[Peer], seed: int) -> Iterator[Exam]:
    """The exams of the peers, with their references worked out."""
    ours: dict[str, list[list[Paper]]] = {}
    grids: dict[Any, list[Paper]] = {}
    for peer in peers:
        key = (peer.grid, peer.dtypes, peer.compares)
        if key not in grids:
            grids[key] = [
                Paper.of(problem, peer.compares)
                for dtype in peer.dtypes
                for problem in (peer.grid(dtype, seed) if peer.grid else ())
            ]
        own = grids[key]
        for dtype in peer.dtypes:
            if dtype not in ours:
                ours[dtype] = _ours(dtype, seed)
        exam = Exam(peer, own, [group for dtype in peer.dtypes for group in ours[dtype]])
        for paper in [*own, *(paper for group in exam.ours for paper in group)]:
            paper.reference(peer.gold)
            if peer.low:
                paper.reference(peer.low)
        yield exam


def _ours(dtype: str, seed: int) -> list[list[Paper]]:
    cases = reference_cases("out", level="smoke", options=[*OPTIONS], turn=(dtype, (dtype,)))
    drawn = [(c, draw(c, dtype=dtype, diagonal="bottom-right", seed=seed)) for c in cases]
    with_gradients = [problem for case, problem in drawn if has_gradients(case)]
    every = [problem for _, problem in drawn]
    return [
        [Paper.of(problem, want) for problem in (with_gradients if "dq" in want else every)]
        for want in PASSES
    ]


# -- the examination -----------------------------------------------------------------------------


def examined(
    entry: Variant, exams: Sequence[Exam], *, thorough: bool
) -> dict[str, dict[str, Judgement]]:
    """What each peer finds in a kernel, on its own inputs and on attnspec's.

    thorough: ask everything, to count; otherwise stop where nothing more can come to light.
    """
    answers: dict[int, list[Outputs | CallFailed | None]] = {}
    found = {}
    for exam in exams:
        kernel, own, ours = entry.kernel(), Judgement(), Judgement()
        for paper in exam.own:
            _judge(own, exam.peer, paper, _asked(kernel, paper))
            if own.rejected and own.differs and not thorough:
                break
        options = exam.options
        for group in exam.ours:
            if id(group) not in answers:
                fresh = entry.kernel()
                answers[id(group)] = [_asked(fresh, paper) for paper in group]
            for paper, answer in zip(group, answers[id(group)], strict=True):
                if ours.rejected and ours.differs and not thorough:
                    break
                _judge(ours, exam.peer, paper, answer, in_scope=paper.options <= options)
        found[exam.peer.name] = {"own": own, "ours": ours}
    return found


def _asked(kernel: Kernel, paper: Paper) -> Outputs | CallFailed | None:
    """The outputs; None where the kernel does not take the problem.

    What a row that sees nothing returns is a convention: who declares another is not asked.
    """
    if kernel.masked_row != "zero" and paper.has_empty_rows:
        return None
    try:
        return call(kernel, paper.problem, want=paper.want).outputs
    except CallFailed as failure:
        return None if failure.status == "not claimed" else failure


def _judge(
    judgement: Judgement,
    peer: Peer,
    paper: Paper,
    answer: Outputs | CallFailed | None,
    *,
    in_scope: bool = True,
) -> None:
    """Apply the rule to every output that the peer compares and this paper asks for."""
    names = [name for name in paper.want if name in peer.compares and _compared(paper, name, peer)]
    if answer is None or not names:
        return
    if isinstance(answer, CallFailed):
        judgement.judged, judgement.rejected = judgement.judged + 1, judgement.rejected + 1
        judgement.differs |= in_scope
        return
    gold = paper.reference(peer.gold)
    low = paper.reference(peer.low) if peer.low else gold
    for name in names:
        actual = answer[name].astype(np.float64)
        compared = Compared(name, paper.problem.dtype_name, actual, gold[name], low[name])
        judgement.judged += 1
        judgement.rejected += not peer.rule(compared)
        if in_scope and not judgement.differs:
            judgement.differs = answer[name].tobytes() != paper.honest[name].tobytes()


def _compared(paper: Paper, name: str, peer: Peer) -> bool:
    """Whether an output is compared in this call.

    Of attnspec's inputs, out comes with three calls; it is compared in those of which the peer
    compares the other outputs too, as a kernel may take another way there.
    """
    return name != "out" or set(paper.want) <= set(peer.compares) | {"dbias", "dsinks"}
