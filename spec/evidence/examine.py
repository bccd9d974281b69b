"""Run what a statement offers: its proof, check, figures and witnesses, with their mutations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from attnspec.spec.evidence.statement import Check, Proof, Refuted, Statement

__all__ = ["Finding", "check", "prove"]


@dataclass(frozen=True)
class Finding:
    """One line of a transcript, and whether it came out as it must."""

    text: str
    holds: bool


def prove(statement: Statement) -> Iterator[Finding]:
    """The proof, step by step, and the mutations that the prover must reject."""
    if statement.proof is None:
        return
    proof: Proof = statement.proof()
    for step in proof.steps:
        yield Finding(f"proved (sizes: {proof.sizes}): {step.text}", step.holds())
    for wrong, step in proof.mutations.items():
        yield Finding(f"rejected, as {wrong}: {step.text}", not step.holds())


def check(statement: Statement) -> Iterator[Finding]:
    """The check and its mutations, the printed figures, and the witnesses of the hypotheses."""
    if statement.check is not None:
        yield from _checked(statement.check)
    for figure in statement.figures:
        yield Finding(f"figure: {figure}", True)
    if statement.figures:
        right = all(figure.right for figure in statement.figures)
        agrees = right == (statement.verdict in ("true", "conditional"))
        yield Finding(f"figures and verdict ({statement.verdict}) agree", agrees)
    for hypothesis, witness in statement.hypotheses.items():
        if witness is not None:
            yield _witnessed(hypothesis, witness)


def _checked(check: Check) -> Iterator[Finding]:
    try:
        yield Finding(f"checked: {check.run(check.subject)}", True)
    except Refuted as refuted:
        yield Finding(f"checked: {refuted}", False)
    for wrong, subject in check.mutations.items():
        try:
            check.run(subject)
            yield Finding(f"refuted, as {wrong}: it passed", False)
        except Refuted as refuted:
            yield Finding(f"refuted, as {wrong}: {refuted}", True)


def _witnessed(hypothesis: str, witness: object) -> Finding:
    assert callable(witness)
    try:
        return Finding(f"needs {hypothesis}: {witness()}", True)
    except Refuted as refuted:
        return Finding(f"needs {hypothesis}: {refuted}", False)
