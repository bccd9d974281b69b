"""The command line: what it lists, shows and proves, and how it answers a mistake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attnspec import cli
from attnspec.spec.evidence import examine, render
from attnspec.spec.evidence.examine import Finding
from attnspec.spec.evidence.statement import Check, Statement, require


def shown(statement: Statement, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(cli, "all_statements", lambda: iter([statement]))
    return cli.main(arguments)


def parity(number: int) -> str:
    require(number % 2 == 0, f"{number} is odd")
    return f"{number} is even"


EVEN = Statement(
    id="ch11.even",
    where="Section 0",
    says="Two is even.",
    verdict="true",
    check=Check(run=parity, subject=2, mutations={"three": 3, "five": 5}),
)


def test_a_statement_in_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(EVEN, "claims", "ch11.even", monkeypatch=monkeypatch) == 0
    printed = capsys.readouterr().out
    for text in ("ch11.even", "Section 0", "Two is even.", "2 is even", "as three: 3 is odd"):
        assert text in printed
    assert max(map(len, printed.splitlines())) <= 100


@pytest.mark.parametrize(
    "arguments, listed",
    [
        ((), True),
        (("--verdict", "true"), True),
        (("--verdict", "false"), False),
        (("--chapter", "chapter11"), True),
        (("--chapter", "ch11"), True),
        (("--chapter", "heart"), False),
        (("--evidence", "check"), True),
        (("--evidence", "proof"), False),
    ],
)
def test_the_list_is_filtered(
    arguments: tuple[str, ...],
    listed: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert shown(EVEN, "claims", *arguments, monkeypatch=monkeypatch) == 0
    printed = capsys.readouterr().out
    assert ("ch11.even" in printed) == listed
    assert f"{int(listed)} of 1 statement\n" in printed


def test_what_does_not_hold_is_named_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = Statement(
        id="ch11.odd",
        where="Section 0",
        says="Three is even.",
        verdict="true",
        check=Check(run=parity, subject=3, mutations={"two": 2, "five": 5}),
    )
    assert shown(EVEN, "check", monkeypatch=monkeypatch) == 0
    assert shown(odd, "check", monkeypatch=monkeypatch) == 1
    printed = capsys.readouterr().out
    assert "3 of 3 findings hold" in printed
    assert "FAILED ch11.odd: checked: 3 is odd" in printed
    assert "FAILED ch11.odd: refuted, as two: it passed" in printed


def test_filters_hold_for_ids_too_and_each_counts_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ("claims", "ch11.even", "ch11.even", "--verdict", "false")
    assert shown(EVEN, *chosen, monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == "0 of 1 statement\n"


def test_where_there_is_no_proof_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(EVEN, "prove", "ch11.even", monkeypatch=monkeypatch) == 0
    assert "no proof is recorded there" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name, says", [("weights-sum-to-one", "asked of implementations"), ("KP11", "The scale is")]
)
def test_names_that_the_report_prints_are_known(
    name: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(EVEN, "claims", name, monkeypatch=monkeypatch) == 2
    printed = capsys.readouterr().err
    assert says in printed
    assert max(map(len, printed.splitlines())) <= 100


def test_a_place_that_cannot_be_written_is_a_mistake_not_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(EVEN, "document", str(tmp_path), monkeypatch=monkeypatch) == 2
    assert "expected a file" in " ".join(capsys.readouterr().err.split())


def test_an_unknown_id_says_which_are_near(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(EVEN, "claims", "ch11.evn", monkeypatch=monkeypatch) == 2
    assert "did you mean ch11.even?" in capsys.readouterr().err


def test_the_document_knows_when_it_is_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "SPEC.md")
    assert shown(EVEN, "document", "--stale", path, monkeypatch=monkeypatch) == 2
    Path(path).write_text("of yesterday")
    assert shown(EVEN, "document", "--stale", path, monkeypatch=monkeypatch) == 1
    assert shown(EVEN, "document", path, monkeypatch=monkeypatch) == 0
    assert shown(EVEN, "document", "--stale", path, monkeypatch=monkeypatch) == 0
    assert "Two is even." in Path(path).read_text()


def test_a_witness_that_shows_nothing_does_not_hold() -> None:
    def no_witness() -> str:
        require(False, "it holds without the hypothesis")
        return ""

    def findings(witness: object) -> Iterator[Finding]:
        statement = Statement(
            id="ch11.even", where="", says="", verdict="true", hypotheses={"evenness": witness}
        )
        yield from examine.check(statement)

    assert [finding.holds for finding in findings(no_witness)] == [False]
    assert [finding.holds for finding in findings(lambda: "three is odd")] == [True]
    assert render.chapter_of(EVEN) == "chapter11"
