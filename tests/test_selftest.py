"""The selftest says what the suite catches, and its exit code tells a suite that does not."""

from __future__ import annotations

import _thread
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attnspec.conformance as suite
from attnspec import cli
from attnspec.adapters import catalogue as catalogues
from attnspec.adapters.catalogue import Fault, Variant, catalogue
from attnspec.adapters.fault_classes import CLASSES
from attnspec.adapters.pipeline import Pipeline
from attnspec.conformance import examination, selftest, selftest_score
from attnspec.conformance.selftest import Plan, asked_at, fast_subset, run
from attnspec.oracle.problem import OUTPUTS

CAUGHT, OTHER = "causal-top-left", "causal-sees-the-next-token"
CLAIMS = ("out", "lse", "dq", "visible-set", "weights-sum-to-one")

Given = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture
def few_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite of five claims, and the catalogue of two faults."""
    checks = {claim: examination.checks()[claim] for claim in CLAIMS}
    for module in (examination, selftest_score):
        monkeypatch.setattr(module, "checks", lambda: checks)


@pytest.fixture
def selftested(
    few_claims: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Given:
    """Run the command on entries of our own: exit code, what it printed, and its JSON."""

    def given(*entries: Variant, arguments: str = "") -> tuple[int, str, dict[str, Any]]:
        found = {entry.name: entry for entry in entries}
        monkeypatch.setattr(catalogues, "catalogue", lambda name: found)
        path = tmp_path / "selftest.json"
        words = f"selftest --level smoke --workers 1 --json {path} {arguments}".split()
        code = cli.main(words)
        printed = capsys.readouterr().out
        return code, printed, json.loads(path.read_text())

    return given


def fault(entry: str = CAUGHT, /, **changes: Any) -> Fault:
    """A fault of the catalogue, described otherwise."""
    found: Fault = replace(catalogue("faulty")[entry], **changes)
    return found


def honest(**changes: Any) -> Fault:
    """A fault that is none."""
    return fault(name="honest", pipeline=Pipeline, says="Nothing is wrong.", **changes)


class ShiftedOutput(Pipeline):
    """The output is off by one."""

    def answer(self) -> Any:
        """One more."""
        found = super().answer()
        return (found[0] + 1, found[1]) if self.return_lse else found + 1


SHIFTED = fault(name="shifted", pipeline=ShiftedOutput, spoils=("out",))


# -- the exit code ---------------------------------------------------------------------------------


def test_faults_that_are_caught_for_the_right_reason_pass(selftested: Given) -> None:
    code, printed, record = selftested(fault(CAUGHT), fault(OTHER), arguments=CAUGHT)
    assert (code, record["problems"]) == (0, [])
    assert [entry["name"] for entry in record["entries"]] == [CAUGHT]
    assert "1 of 1 faults caught at level smoke" in printed
    assert "pytest conformance --impl=faulty:causal-top-left --attn-case=out/float32/" in printed
    assert max(len(x) for x in printed.splitlines() if "pytest " not in x) <= 100


def test_a_survivor_fails_and_is_named(selftested: Given) -> None:
    code, printed, record = selftested(fault(), honest())
    assert code == 1
    assert record["problems"][0] == "survived: honest"
    assert "SURVIVED honest" in printed
    assert "should show in out" in printed


def test_smoke_may_miss_what_it_cannot_see_but_no_sentinel(selftested: Given) -> None:
    why = "it has no such shape"
    code, printed, record = selftested(honest(beyond_smoke=why), arguments="honest")
    assert (code, record["problems"]) == (0, [])
    assert "beyond smoke: it has no such shape" in printed
    assert selftested(honest(beyond_smoke=why, sentinel=True), arguments="honest")[0] == 1


def test_an_output_that_must_pass_is_a_wrong_reason(selftested: Given) -> None:
    code, printed, record = selftested(fault(spoils=("out", "dq")), arguments=CAUGHT)
    assert (code, record["entries"][0]["leaked"]) == (1, ["lse"])
    assert record["problems"] == [f"not for the right reason: {CAUGHT}"]
    assert "lse failed, and should not" in printed


def test_a_claim_that_must_fail_and_passes_is_a_wrong_reason_beyond_smoke(
    selftested: Given,
) -> None:
    wrong = replace(SHIFTED, shows=("out", "lse"))
    assert selftested(wrong, arguments="shifted")[0] == 0
    code, printed, record = selftested(wrong, arguments="shifted --level standard")
    assert (code, record["entries"][0]["unshown"]) == (1, ["lse"])
    assert "lse passed and should fail; what failed: out" in printed


def test_a_claim_that_catches_nothing_fails_a_whole_run(selftested: Given) -> None:
    code, printed, record = selftested(fault(), fault(OTHER))
    assert (code, record["problems"]) == (1, ["caught nothing: weights-sum-to-one"])
    assert "caught nothing: weights-sum-to-one" in printed
    assert selftested(fault(), fault(OTHER), arguments=CAUGHT)[0] == 0  # it was not all


def test_what_only_long_contexts_show_is_not_asked_below_full() -> None:
    assert asked_at(fault(), "smoke")
    assert not asked_at(fault(level="full"), "standard")
    assert asked_at(fault(level="full"), "full")


def test_the_fast_subset_has_each_kind_of_each_group_and_every_sentinel() -> None:
    faults = [
        fault(name="unseen", beyond_smoke="no such case"),
        fault(name="first"),
        fault(name="second"),
        fault(name="other", kind="window"),
        fault(name="long", kind="lse", level="full"),
        fault(name="elsewhere", group="tests"),
        fault(name="zeros", sentinel=True),
    ]
    chosen = fast_subset({one.name: one for one in faults})
    assert chosen == ["first", "other", "elsewhere", "zeros"]


def test_what_a_fault_shows_and_spoils_exists() -> None:
    for one in catalogue("faulty").values():
        assert set(one.shows) <= set(examination.checks()), one.name
        assert set(one.spoils) <= set(OUTPUTS), one.name


def test_unknown_names_are_a_mistake_of_the_user(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["selftest", "causal-top-lefd"]) == 2
    assert "did you mean causal-top-left" in capsys.readouterr().err


def test_a_list_asks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["selftest", "--list", "causality"]) == 0
    assert f"{CAUGHT}: The causal mask is aligned top-left." in capsys.readouterr().out


# -- what conforms ---------------------------------------------------------------------------------


def conforming(pipeline: type[Pipeline] = Pipeline) -> Variant:
    return Variant(name="plain", group="tests", says="As it is.", pipeline=pipeline)


def test_no_alarm_is_a_pass_and_verdicts_are_counted(selftested: Given) -> None:
    code, printed, record = selftested(conforming(), arguments="--conforming --seeds 2")
    assert code == 0
    assert "no alarms in" in printed
    one, other = record["seeds"]
    assert other == one + 1
    assert record["verdicts"] == record["entries"][0]["asked"] > 200


def test_every_alarm_is_shown_with_its_command(selftested: Given) -> None:
    given = "--conforming --seed 7"
    code, printed, record = selftested(conforming(ShiftedOutput), arguments=given)
    assert code == 1
    failed = record["entries"][0]["failed"]
    assert sum(failure["claim"] == "out" for failure in failed) > 5  # each, not the first alone
    assert printed.count("ALARM conforming:plain: out") == sum(f["claim"] == "out" for f in failed)
    assert "pytest conformance --impl=conforming:plain --attn-seed=7 --attn-case=" in printed


def test_seeds_are_fresh_unless_given(selftested: Given) -> None:
    drawn = [selftested(conforming(), arguments="--conforming")[2]["seeds"] for _ in range(2)]
    assert drawn[0] != drawn[1]
    assert selftested(conforming(), arguments="--conforming --seed 3")[2]["seeds"] == [3]


# -- how it runs -----------------------------------------------------------------------------------


def plan(**changes: Any) -> Plan:
    given = {"word": "faulty", "level": "smoke", "seeds": (0,), "first_failure": True}
    return Plan(**{**given, **changes})


def test_a_claim_that_failed_is_not_asked_again(few_claims: None) -> None:
    asked = run(plan(), [SHIFTED], workers=1)
    for _ in asked:
        pass
    outcome = asked.outcomes["shifted"]
    assert [verdict.claim for verdict in outcome.failed].count("out") == 1
    assert outcome.judged["out"] == 1
    assert outcome.judged["lse"] > 5


def test_processes_say_what_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [fault(CAUGHT), fault(OTHER)]
    found = {}
    for workers in (1, 2):
        asked = run(plan(), entries, workers=workers)
        share = sum(batch.share for batch in asked)
        assert share == pytest.approx(2)
        assert not asked.stopped
        found[workers] = {
            name: (outcome.judged, list(outcome.claims), outcome.ended)
            for name, outcome in asked.outcomes.items()
        }
    assert found[1] == found[2]
    assert found[1][CAUGHT][2] == 1


def test_an_interruption_keeps_what_is_known(
    selftested: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(question: Any) -> Exception | None:
        if question.claim == "dq":
            raise KeyboardInterrupt
        return examination.examine(question)

    monkeypatch.setattr(selftest, "examine", interrupted)
    code, printed, record = selftested(fault())
    assert (code, record["stopped"]) == (130, True)
    assert "stopped before the end" in record["problems"]
    assert not record["entries"][0]["complete"]
    assert "SURVIVED" not in printed  # that is not known yet


def test_an_interruption_ends_the_processes() -> None:
    entries = [e for e in catalogue("faulty").values() if e.group == "causality"][:8]
    asked = run(plan(), entries, workers=2)  # more jobs than workers: some are never begun
    timer = threading.Timer(0.5, _thread.interrupt_main)
    for batch in asked:
        if batch.verdicts and not timer.is_alive() and not timer.finished.is_set():
            timer.start()
    timer.cancel()
    assert asked.stopped
    assert asked.verdicts > 0
    assert any(outcome.ended == 0 for outcome in asked.outcomes.values())
    deadline = time.monotonic() + 30
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not multiprocessing.active_children()


def test_a_fault_that_cannot_be_set_up_costs_one_verdict(selftested: Given) -> None:
    broken = fault(name="broken", dtypes=("float31",))
    code, _, record = selftested(broken, fault(), arguments=f"broken {CAUGHT}")
    by_name = {entry["name"]: entry for entry in record["entries"]}
    assert code == 1
    assert [failure["status"] for failure in by_name["broken"]["failed"]] == ["error"]
    assert by_name[CAUGHT]["complete"]


# -- JSON ------------------------------------------------------------------------------------------


def _fits(value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    """What of a value the schema does not have, for the few words that ours uses."""
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    kind = kinds.get(schema.get("type", ""), object)
    if not isinstance(value, kind):
        yield f"{value!r} is no {schema['type']}"
    if value not in schema.get("enum", [value]) or value != schema.get("const", value):
        yield f"{value!r} is not allowed"
    if isinstance(value, dict):
        missing = set(schema.get("required", ())) - set(value)
        yield from (f"{name} is missing" for name in missing)
        for name, part in value.items():
            if name not in schema["properties"]:
                yield f"{name} is not described"
            else:
                yield from _fits(part, schema["properties"][name])
    if isinstance(value, list):
        for part in value:
            yield from _fits(part, schema["items"])


def test_the_json_fits_its_schema(selftested: Given) -> None:
    schema = json.loads((Path(suite.__file__).parent / "selftest.schema.json").read_text())
    _, _, record = selftested(fault(), honest())
    assert list(_fits(record, schema)) == []
    assert set(schema["faults only"]) <= {*record, *record["entries"][0]}
    claims = {claim["claim"]: claim for claim in record["claims"]}
    assert claims["out"]["catches"] == [CAUGHT]
    assert not any(claim["alone"] for claim in record["claims"])
    _, _, record = selftested(conforming(), arguments="--conforming")
    assert list(_fits(record, schema)) == []


def test_what_one_claim_alone_catches_is_said(selftested: Given) -> None:
    _, _, record = selftested(SHIFTED, fault())
    claims = {claim["claim"]: claim for claim in record["claims"]}
    assert set(claims["out"]["catches"]) == {CAUGHT, "shifted"}
    alone = {name for claim in record["claims"] for name in claim["alone"]}
    assert alone <= {"shifted"}


# -- classes ---------------------------------------------------------------------------------------


def test_a_fault_of_a_kind_without_a_class_is_not_registered() -> None:
    class Misfiled(Pipeline):
        """It is of no kind."""

    with pytest.raises(ValueError, match="no kind of fault 'misfiled'"):
        catalogues.fault(kind="misfiled")(Misfiled)


def test_no_kind_is_in_two_classes_and_each_class_has_a_fault() -> None:
    kinds = [kind for kinds in CLASSES.values() for kind in kinds]
    assert len(kinds) == len(set(kinds))
    assert {entry.class_name for entry in catalogue("faulty").values()} == set(CLASSES)


def test_the_table_is_by_class(selftested: Given) -> None:
    entries = [fault(name=f"fault-{n}", kind="window" if n else "gqa-map") for n in range(9)]
    _, printed, record = selftested(*entries)
    rows = [line.split() for line in printed.splitlines()]
    assert ["visible", "set", "8", "8", "0", "0"] in rows
    assert ["heads", "1", "1", "0", "0"] in rows
    assert record["entries"][0]["class"] == "heads"
