"""What is printed: counts, widths, what stands together and what by itself."""

from __future__ import annotations

import json
import math
from importlib.resources import files

import pytest

from attnspec.conformance.cases import CLAIMS, SOURCES, sources_of
from attnspec.conformance.report import ReportFile, summary
from attnspec.conformance.verdict import STATUSES, Verdict
from attnspec.oracle.problem import OUTPUTS
from attnspec.spec.properties import ELSEWHERE, PROPERTIES

CASE = "normal/b2h2g2q33k65d40v40/plain"


def verdict(**fields: object) -> Verdict:
    given = {"impl": "mine", "claim": "out", "dtype": "float32", "case": CASE, "generic": True}
    given |= {"status": "pass", "fraction": 0.25, "rule": "model", "reproduce": "pytest …"}
    return Verdict(**(given | fields))


def printed(*verdicts: Verdict, verbose: bool = False) -> list[str]:
    impls = list(dict.fromkeys(v.impl for v in verdicts))
    return summary(verdicts, impls=impls, colour=False, verbose=verbose).splitlines()


def row(lines: list[str], label: str) -> list[str]:
    return next(line for line in lines if line.startswith(label)).split()


def test_types_that_pass_stand_together_with_the_worst_fraction():
    lines = printed(verdict(), verdict(dtype="float16", fraction=0.5))
    assert row(lines, "out") == ["out", "f32", "f16", "pass", "2", "0.50"]
    assert lines[-1] == "mine: conforms, 2 verdicts on 1 claim"


def test_a_failed_claim_has_a_row_for_each_type():
    bad = verdict(dtype="float16", status="fail", fraction=40.0, where=(0, 1), message="got 1")
    lines = printed(verdict(), verdict(dtype="float16"), bad)
    assert "out    f16   FAIL 1/2 4e+01" in lines
    assert "out    f32   pass 1 0.25" in [line.rstrip() for line in lines]
    assert "FAIL mine: out, 1 case in f16" in lines
    explanation = lines[lines.index("FAIL mine: out, 1 case in f16") + 1 :]
    assert explanation[0].strip() == f"{CASE} at [0, 1]"
    assert explanation[1].strip() == "got 1"
    assert "4e+01 times the bound" in explanation[2]
    assert explanation[3].strip() == "violates ch11.thm2, KP22: `attnspec claims ch11.thm2`"
    assert explanation[4].strip() == "pytest …"
    assert lines[-1] == "mine: does not conform, 1 of 3 verdicts, on out"


def test_the_simplest_failure_is_shown_and_all_of_them_if_verbose():
    def failed(case: str) -> Verdict:
        return verdict(status="fail", fraction=math.inf, case=case)

    cases = [
        "normal/b2h2g2q33k65d40v40/causal:on+bias:full",
        "needle/b1h1g1q2k2d2v2/plain",
        "normal/b2h2g2q33k65d40v40/plain",
    ]
    found = [failed(case) for case in cases]
    shown = [line.strip() for line in printed(*found) if line.strip() in cases]
    assert shown == [cases[2]]
    shown = [line.strip() for line in printed(*found, verbose=True) if line.strip() in cases]
    assert shown == [cases[2], cases[1], cases[0]]


def test_claims_that_pass_stand_together_by_chapter():
    asked = [verdict(claim=c) for c in ("weights-sum-to-one", "weights-are-probabilities")]
    assert row(printed(*asked), "weights:")[:3] == ["weights:", "2", "claims"]
    failed = verdict(claim="weights-sum-to-one", status="fail", fraction=2.0)
    lines = printed(*asked, failed)
    assert row(lines, "weights-sum-to-one")[2:4] == ["FAIL", "1/2"]
    assert row(lines, "weights:")[:3] == ["weights:", "1", "claim"]


def test_not_claimed_is_neither_pass_nor_fail():
    lines = printed(verdict(), verdict(claim="lse", status="not claimed", fraction=0.0))
    assert not [line for line in lines if line.startswith("lse")]
    assert lines[-1] == "mine: conforms, 1 verdict on 1 claim; not claimed: 1"
    other = verdict(impl="yours", claim="lse")
    assert row(printed(verdict(claim="lse", status="not claimed"), other), "lse")[2:4] == [
        "-",
        "pass",
    ]


def test_what_could_not_have_failed_is_neither_pass_nor_fail():
    reason = "it could not have failed: dq = 0 would have passed"
    vacuous = verdict(claim="dq", status="vacuous", message=reason)
    lines = printed(verdict(), verdict(claim="dq"), vacuous)
    assert row(lines, "dq") == ["dq", "f32", "pass", "1", "0.25"]
    assert "mine: vacuous: 1 verdict that could not have failed: dq 1" in lines
    assert lines[-1] == "mine: conforms, 2 verdicts on 2 claims"
    lines = printed(verdict(), vacuous, verbose=True)
    assert not [line for line in lines if line.startswith("dq")]
    assert f"  dq/float32/{CASE}" in lines
    assert f"    {reason}" in lines
    other = verdict(impl="yours", claim="dq")
    assert row(printed(vacuous, other), "dq")[2:4] == ["vacuous", "pass"]


def test_a_stopped_run_does_not_say_that_it_conforms():
    text = summary([verdict()], impls=["mine"], colour=False, finished=False)
    assert "conforms" not in text
    assert "mine: the run was stopped; so far 1 verdict, all passes" in text


@pytest.mark.parametrize("status", ["error", "crash", "timeout"])
def test_an_error_is_named_as_such(status):
    lines = printed(verdict(status=status, fraction=0.0, message="ValueError: no"))
    assert row(lines, "out")[2:4] == [status.upper(), "1/1"]


def test_the_tightest_class_holds_on_every_generic_case():
    lines = printed(
        verdict(tightest="float32 inside"),
        verdict(tightest="eager"),
        verdict(tightest="", generic=False),
    )
    assert row(lines, "f32") == ["f32", "eager"]


def test_tables_fit_100_columns_with_many_implementations():
    names = [f"an-implementation-with-a-long-name-{i}" for i in range(9)]
    lines = printed(*(verdict(impl=name) for name in names))
    tables = [line for line in lines if ": conforms" not in line]
    assert max(map(len, tables)) <= 100


def test_a_verdict_survives_the_file(tmp_path):
    path = tmp_path / "deep" / "report.jsonl"
    file = ReportFile(str(path))
    written = [verdict(status=status, fraction=math.inf, where=(1, 2)) for status in STATUSES]
    for number, one in enumerate(written):
        file.add(one)  # on disk at once: a killed run loses nothing
        assert len(path.read_text().splitlines()) == number + 1
    file.close()
    read = [Verdict.from_json(json.loads(line)) for line in path.read_text().splitlines()]
    assert read == written


def test_what_is_claimed_and_never_judged_stands_in_the_last_line():
    text = summary([verdict()], impls=["mine"], colour=False, unjudged={"mine": ("causal",)})
    assert "conforms" not in text
    assert "mine: claims causal, but refused each case with it: no verdict on that" in text


def test_verbose_says_how_many_comparisons_each_tier_of_the_oracle_certified():
    tiers = ("float64", "balls", "float64", "")
    found = [verdict(tier=tier, claim=c) for tier, c in zip(tiers, OUTPUTS[:4], strict=True)]
    line = "compared with the oracle's tier: float64 2, balls 1"
    assert line in printed(*found, verbose=True)
    assert line not in printed(*found)
    assert not [t for t in printed(verdict(), verbose=True) if t.startswith("compared")]


def test_a_failure_names_the_statements_that_it_violates():
    def violated(claim: str, status: str = "fail") -> list[str]:
        lines = printed(verdict(claim=claim, status=status, fraction=2.0))
        return [line.strip() for line in lines if "violates" in line]

    assert violated("window-hides-both-sides") == [
        "violates sys.window, sys.streamingllm, KP3: `attnspec claims sys.window`"
    ]
    assert violated("window-hides-both-sides", status="error") == []  # it raised: nothing is known
    assert violated("same-bits-again") == []  # a declaration, no statement


def test_the_statements_fit_100_columns_however_many_they_are(monkeypatch):
    many = tuple(f"ext.number{n}" for n in range(12))
    monkeypatch.setattr("attnspec.conformance.report.sources_of", lambda claim: many)
    lines = printed(verdict(status="fail", fraction=2.0))
    line = next(line for line in lines if "violates" in line)
    assert 85 < len(line) <= 100
    assert line.endswith(" and 9 more: `attnspec claims ext.number0`")


def test_every_statement_that_a_failure_may_name_can_be_read():
    listed = (files("attnspec.spec") / "ids.txt").read_text().splitlines()
    ids = {line.split()[0] for line in listed if line and not line.startswith("#")}
    for claim in (*CLAIMS, *SOURCES):
        named = [name for name in sources_of(claim) if not name.startswith("KP")]
        assert named, claim
        assert ids.issuperset(named), claim


def test_every_property_is_asked_of_implementations_or_shown_elsewhere():
    asked = {n for c in (*CLAIMS, *SOURCES) for n in sources_of(c) if n.startswith("KP")}
    assert asked.isdisjoint(ELSEWHERE)
    assert asked | ELSEWHERE.keys() == PROPERTIES.keys()
