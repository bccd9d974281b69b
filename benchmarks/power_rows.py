"""The rows of the table: what each suite, and attnspec, made of the faults and of the variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peers import Peer
from power_exams import INPUTS, Exam, Judgement

from attnspec.adapters.catalogue import Fault, Variant
from attnspec.conformance.examination import examine, questions
from attnspec.conformance.report import BAD
from attnspec.conformance.session import Session
from attnspec.oracle.problem import OUTPUTS

__all__ = ["ATTNSPEC", "Asked", "Tally", "by_attnspec", "rows"]

ByInputs = Mapping[str, Judgement]

ATTNSPEC: Mapping[str, tuple[str, ...]] = {
    "attnspec smoke": (),
    "attnspec smoke, bf16": ("bfloat16",),
}
"""attnspec's own rows, and the types asked; none: those in which the catalogue has an entry asked,
mostly float32."""

SAYS = "proven bound of its declared arithmetic"


@dataclass(frozen=True)
class Asked:
    """What came of some kernels in one seed: by entry, by row, by inputs."""

    seed: int
    found: Mapping[str, Mapping[str, ByInputs]]


def by_attnspec(entries: Sequence[Variant], row: str, seed: int) -> Asked:
    """attnspec's level smoke: "own" is all of it, "ours" the comparisons with the oracle alone.

    A fault is not asked on once it is caught; comparisons come first.
    """
    types = ATTNSPEC[row]
    kernels = {entry.name: entry.kernel(dtypes=types or entry.dtypes) for entry in entries}
    thorough = {entry.name: not isinstance(entry, Fault) for entry in entries}
    session = Session(kernels, "smoke", seed, (), "conformance")
    found = {name: {i: Judgement(differs=True) for i in INPUTS} for name in kernels}
    ranked = sorted(questions(session), key=lambda question: question.claim not in OUTPUTS)
    for question in ranked:
        judgements = found[question.impl]
        if judgements["own"].rejected and not thorough[question.impl]:
            continue
        question.classify = False
        verdict = session.settle(question, examine(question), 0.0)
        if verdict.status == "not claimed":
            continue
        for inputs in INPUTS if question.claim in OUTPUTS else ("own",):
            judgements[inputs].judged += 1
            judgements[inputs].rejected += verdict.status in BAD
    return Asked(seed, {name: {row: by_inputs} for name, by_inputs in found.items()})


@dataclass
class Tally:
    """The judgements so far, by entry and seed, then by row."""

    found: dict[tuple[str, int], dict[str, ByInputs]] = field(default_factory=dict)
    problems: dict[str, int] = field(default_factory=dict)

    def add(self, asked: Asked) -> None:
        """Take in what came of some kernels."""
        for name, by_row in asked.found.items():
            self.found.setdefault((name, asked.seed), {}).update(by_row)

    def describe(self, exams: Sequence[Exam]) -> None:
        """Note how many problems each peer's own grid has."""
        self.problems |= {exam.peer.name: len(exam.own) for exam in exams}

    def of(self, entry: Variant, row: str) -> list[ByInputs]:
        """The judgements of a row on an entry, one a seed."""
        of_entry = (by_row for (name, _), by_row in self.found.items() if name == entry.name)
        return [by_row[row] for by_row in of_entry]


def rows(
    peers: Sequence[Peer], tally: Tally, faults: Sequence[Fault], variants: Sequence[Variant]
) -> list[dict[str, Any]]:
    """attnspec's rows, then the peers'."""
    found: list[dict[str, Any]] = []
    for name, types in ATTNSPEC.items():
        about = {"name": name, "says": SAYS, "types": types, "compares": OUTPUTS, "problems": None}
        found.append(about | _row(name, tally, faults, variants))
    for peer in peers:
        about = {
            "name": peer.name,
            "says": peer.says,
            "types": peer.dtypes,
            "compares": peer.compares,
            "problems": tally.problems[peer.name],
            "source": peer.source,
        }
        found.append(about | _row(peer.name, tally, faults, variants))
    return found


def _row(
    name: str, tally: Tally, faults: Sequence[Fault], variants: Sequence[Variant]
) -> dict[str, Any]:
    """Of each kind of inputs: faults missed, and variants rejected.

    scope: the faults that change anything the suite compares, with options that its inputs have;
    missed_in_scope: those of them that it misses on its own inputs.
    """
    row: dict[str, Any] = {}
    of_faults = {fault.name: tally.of(fault, name)[0] for fault in faults}
    for inputs in INPUTS:
        missed = [fault for fault, by in of_faults.items() if not by[inputs].rejected]
        seeds = {v.name: [by[inputs] for by in tally.of(v, name)] for v in variants}
        every = [judgement for judgements in seeds.values() for judgement in judgements]
        row[inputs] = {
            "caught": len(faults) - len(missed),
            "missed": missed,
            "alarms": [v for v, judgements in seeds.items() if any(j.rejected for j in judgements)],
            "verdicts": sum(judgement.judged for judgement in every),
            "rejected": sum(judgement.rejected for judgement in every),
        }
    scope = [fault for fault, by in of_faults.items() if any(by[i].differs for i in INPUTS)]
    row["scope"] = len(scope)
    row["missed_in_scope"] = [fault for fault in scope if fault in row["own"]["missed"]]
    return row
