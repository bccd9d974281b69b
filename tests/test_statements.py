"""Every statement of the sources has its record, and what that offers comes out as it must."""

from __future__ import annotations

import re
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from attnspec.conformance.cases import SOURCES
from attnspec.spec.claim import all_claims
from attnspec.spec.evidence import examine, render
from attnspec.spec.evidence.statement import Statement, all_statements

STATEMENTS = list(all_statements())
NAMES = [statement.id for statement in STATEMENTS]
PLACES = [
    line.split(maxsplit=1)
    for line in (files("attnspec.spec") / "ids.txt").read_text().splitlines()
    if not line.startswith("#")
]


def test_the_records_are_the_statements_of_the_sources() -> None:
    listed = [place[0] for place in PLACES]
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []
    invented = sorted(set(NAMES) - set(listed))
    assert [name for name in invented if not name.startswith(("ext.", "sys."))] == [], "invented"
    assert sorted(set(listed) - set(NAMES)) == [], "missing"


@pytest.mark.parametrize(
    "place",
    [
        *(f"({number})" for number in range(1, 19)),
        *(f"Definition {number}" for number in range(1, 11)),
        *(f"Theorem {number}" for number in range(1, 4)),
        *(f"Proposition {number}" for number in range(1, 10)),
        "Corollary 1",
        *(f"Example {number}" for number in range(1, 4)),
        *(f"Pitfall {number}" for number in range(1, 6)),
    ],
)
def test_everything_numbered_in_the_chapter_is_covered(place: str) -> None:
    pattern = re.escape(place) + r"(?!\d)"
    assert any(re.search(pattern, s.where) for s in STATEMENTS if s.id.startswith("ch11."))


@pytest.mark.parametrize("statement", STATEMENTS, ids=NAMES)
def test_a_record_is_complete(statement: Statement) -> None:
    assert statement.says
    assert statement.where
    if statement.verdict in ("undecided", "narrative"):
        assert statement.reason, "why it cannot be decided"
        return
    assert statement.evidence, "nothing shows it"
    assert not statement.reason
    if statement.verdict in ("imprecise", "false"):
        assert statement.exact, "what holds instead"
    if statement.verdict == "conditional":
        assert statement.hypotheses, "under which hypotheses"
    if statement.verdict == "true":
        assert not statement.hypotheses, "true under hypotheses is conditional"
    if statement.check is not None:
        assert len(statement.check.mutations) >= 2


@pytest.mark.parametrize("statement", STATEMENTS, ids=NAMES)
def test_its_properties_are_asked_of_implementations(statement: Statement) -> None:
    assert set(statement.properties) <= {claim.id for claim in all_claims()} | set(SOURCES)


@pytest.mark.parametrize("asked", SOURCES)
def test_outputs_and_contracts_are_named_by_what_the_report_says_they_violate(asked: str) -> None:
    violated = {name for name in SOURCES[asked] if name in NAMES}
    assert violated, "nothing to read about it"
    assert {s.id for s in STATEMENTS if asked in s.properties} == violated


@pytest.mark.parametrize("statement", [s for s in STATEMENTS if s.proof], ids=lambda s: s.id)
def test_its_proof_holds_and_rejects_what_is_wrong(statement: Statement) -> None:
    assert statement.proof is not None
    assert len(statement.proof().mutations) >= 2
    for finding in examine.prove(statement):
        assert finding.holds, finding.text


@pytest.mark.parametrize("statement", STATEMENTS, ids=NAMES)
def test_its_check_holds_and_refutes_what_is_wrong(statement: Statement) -> None:
    for finding in examine.check(statement):
        assert finding.holds, finding.text


def test_the_document_is_what_the_records_say() -> None:
    path = Path(__file__).parent.parent / "docs" / "SPEC.md"
    message = "out of date: run `attnspec document`"
    assert path.read_text(encoding="utf-8") == render.document(STATEMENTS), message
