"""The pytest plugin behind `pytest conformance --impl=NAME`.

It is loaded in every pytest run of the environment, so it imports nothing heavy until an
implementation is named, and every option but `--impl` carries the prefix `--attn-`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnspec.conformance.question import Question
    from attnspec.conformance.report import ReportFile
    from attnspec.conformance.session import Session
    from attnspec.conformance.verdict import Verdict

__all__: list[str] = []

LEVELS = ("smoke", "standard", "full")  # as in `cases`, which is too heavy to import here
SESSION: pytest.StashKey[Session] = pytest.StashKey()
VERDICTS: pytest.StashKey[list[Verdict]] = pytest.StashKey()
FILE: pytest.StashKey[ReportFile] = pytest.StashKey()
FORGOTTEN: pytest.StashKey[bool] = pytest.StashKey()
VERDICT = "attnspec"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the suite's options."""
    group = parser.getgroup("attnspec", "conformance of attention implementations (attnspec)")
    add = group.addoption
    add(
        "--impl",
        action="append",
        default=[],
        metavar="NAME",
        help="implementation to judge: a registered name, file.py[:name] or package.module:name; "
        "may be given several times",
    )
    add(
        "--attn-level",
        choices=LEVELS,
        default="standard",
        help="how much is asked: smoke, standard (some five times as much) or full "
        "(and contexts of 128k and 1M keys)",
    )
    add("--attn-seed", type=_seed, default=0, metavar="N", help="seed of all inputs (default 0)")
    add(
        "--attn-case",
        action="append",
        default=[],
        metavar="CLAIM/DTYPE/CASE",
        help="ask only this, at any level; * matches anything, e.g. 'out/float16/*'",
    )
    add(
        "--attn-report",
        metavar="FILE",
        help="write every verdict to this file as it falls, one JSON object a line",
    )
    add(
        "--attn-diagnose",
        choices=("on", "off"),
        default="on",
        help="after failures, say what the implementation most likely does instead (default on)",
    )


def _seed(text: str) -> int:
    seed = int(text)
    if seed < 0:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text}")
    return seed


def pytest_configure(config: pytest.Config) -> None:
    """Load the implementations; one that cannot run ends the run with a usage error."""
    config.addinivalue_line(
        "markers", "attnspec(*claims, cases): asked of every implementation under test"
    )
    if not config.getoption("--impl"):
        return
    # Small problems gain nothing from threads, and idle threads that spin steal from the busy
    # ones. What the user has set stays; the number of a framework's threads is its own.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from attnspec.adapters import LoadError
    from attnspec.conformance.report import ReportFile
    from attnspec.conformance.session import Session

    try:
        config.stash[SESSION] = Session.of(config)
        if (path := config.getoption("--attn-report")) and not _is_worker(config):
            config.stash[FILE] = ReportFile(path)
    except LoadError as error:
        raise pytest.UsageError(f"--impl={error}") from None
    except OSError as error:
        raise pytest.UsageError(f"--attn-report: {error}") from None
    config.stash[VERDICTS] = []
    config.pluginmanager.register(Recorder(config), "attnspec-recorder")


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name what is judged, so that a log can be read by itself."""
    session = config.stash.get(SESSION, None)
    return [] if session is None else session.header()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Turn each marked test into its questions: type by type, case by case, all implementations."""
    markers = list(metafunc.definition.iter_markers("attnspec"))
    if not markers:
        return
    session = metafunc.config.stash.get(SESSION, None)
    questions: list[Question] = []
    if session is None:
        metafunc.config.stash[FORGOTTEN] = True
    else:
        for marker in markers:
            questions += session.questions(*marker.args, **marker.kwargs)
    metafunc.parametrize("question", questions, ids=[f"{q.impl}-{q.id}" for q in questions])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Ask all questions of one problem together: they share its certified result."""
    if SESSION not in config.stash:
        return
    # A test without questions (no kernel offers it, or --attn-case selects none) is no test.
    items[:] = [i for i in items if _question(i) or not i.get_closest_marker("attnspec")]
    order: dict[object, int] = {}
    for item in items:
        order.setdefault(_problem_key(item), len(order))
    items.sort(key=lambda item: order[_problem_key(item)])


def pytest_collection_finish(session: pytest.Session) -> None:
    """The suite without an implementation, or a case that is none, is a usage error."""
    run = session.config.stash.get(SESSION, None)
    if run is not None and (unmatched := run.unmatched()):
        raise pytest.UsageError(
            f"--attn-case={unmatched}: selects nothing that {' or '.join(run.kernels)} is asked; "
            "expected CLAIM/DTYPE/FAMILY/SHAPE/SETTINGS as in the report, with * for anything"
        )
    if session.config.stash.get(FORGOTTEN, False):
        raise pytest.UsageError(
            "attnspec: give the implementation to judge, e.g. --impl=torch-sdpa or --impl=my.py"
        )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Turn what a question raises into its verdict, which then is the test's outcome."""
    question = _question(pyfuncitem)
    if question is None:
        return (yield)
    started = time.perf_counter()
    error: Exception | None = None
    try:
        result = yield
    except Exception as raised:  # an interruption is no verdict, and passes
        error = raised
    seconds = time.perf_counter() - started
    verdict = pyfuncitem.config.stash[SESSION].settle(question, error, seconds)
    pyfuncitem.user_properties.append((VERDICT, verdict.to_json()))
    if verdict.status in ("not claimed", "vacuous"):
        pytest.skip(verdict.message)
    if error is not None:
        raise error
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a failed verdict as its explanation; tracebacks are for mistakes of the suite."""
    report = yield
    verdict = _verdict(report)
    if verdict is not None and report.failed and _is_explained(report):
        report.longrepr = f"{verdict['message']}\n{verdict['reproduce']}"
    return report


class Recorder:
    """Notes each verdict as it falls; with pytest-xdist, in the controlling process alone."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the verdict, and write it down at once."""
        record = _verdict(report)
        if record is None:
            return
        from attnspec.conformance.verdict import Verdict

        verdict = Verdict.from_json(record)
        self.config.stash[VERDICTS].append(verdict)
        if (file := self.config.stash.get(FILE, None)) is not None:
            file.add(verdict)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """An implementation of which something that it claims was never judged has not passed."""
    verdicts = session.config.stash.get(VERDICTS, None)
    if not verdicts or exitstatus != pytest.ExitCode.OK:
        return
    run = session.config.stash[SESSION]
    if any(run.unjudged(impl, verdicts) for impl in run.kernels):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> Generator[None]:
    """Print the matrix and the failures in the place of pytest's own words for them."""
    verdicts = config.stash.get(VERDICTS, None)
    if verdicts is None:
        return (yield)
    if verdicts:
        terminalreporter.section("attnspec")
        terminalreporter.write(_summary(config, exitstatus, colour=terminalreporter.hasmarkup))
    elif exitstatus in ENDED and not config.option.collectonly:
        terminalreporter.write_line("attnspec: nothing was asked; is --attn-case a case?")
    failed = terminalreporter.stats.get("failed", [])
    terminalreporter.stats["failed"] = [r for r in failed if not _is_explained(r)]
    try:
        return (yield)
    finally:
        terminalreporter.stats["failed"] = failed


ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


def _summary(config: pytest.Config, exitstatus: int, *, colour: bool) -> str:
    from attnspec.conformance.report import summary

    run, verdicts = config.stash[SESSION], config.stash[VERDICTS]
    return summary(
        verdicts,
        impls=list(run.kernels),
        colour=colour,
        verbose=config.option.verbose > 0,
        finished=exitstatus in ENDED,
        unjudged={impl: run.unjudged(impl, verdicts) for impl in run.kernels},
        notes={impl: run.notes(impl) for impl in run.kernels},
        causes=_causes(config) if exitstatus in ENDED else {},
    )


def _causes(config: pytest.Config) -> dict[str, list[str]]:
    """What each implementation that failed most likely does instead, and where, in lines."""
    run, verdicts = config.stash[SESSION], config.stash[VERDICTS]
    failed = {
        v.impl for v in verdicts if v.status not in ("pass", "not claimed", "vacuous", "xfail")
    }
    if not failed or config.getoption("--attn-diagnose") == "off":
        return {}
    from attnspec.conformance.diagnosis import diagnose

    return {
        impl: diagnose(kernel, verdicts, seed=run.seed, impl=impl).lines()
        for impl, kernel in run.kernels.items()
        if impl in failed
    }


def _is_explained(report: pytest.TestReport) -> bool:
    """Whether the summary explains it; mistakes of the suite keep their traceback."""
    verdict = _verdict(report)
    return verdict is not None and "in the suite" not in verdict["message"]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close the report."""
    if (file := config.stash.get(FILE, None)) is not None:
        file.close()


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _question(item: pytest.Item) -> Question | None:
    callspec = getattr(item, "callspec", None)
    question = None if callspec is None else callspec.params.get("question")
    return question if hasattr(question, "claim") else None  # pytest's stand-in for an empty set


def _problem_key(item: pytest.Item) -> object:
    question = _question(item)
    return item.nodeid if question is None else (question.dtype, question.case)


def _verdict(report: pytest.TestReport) -> dict[str, Any] | None:
    if report.when != "call":
        return None
    records: list[Any] = [value for name, value in report.user_properties if name == VERDICT]
    return records[0] if records else None
