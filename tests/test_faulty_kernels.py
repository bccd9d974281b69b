"""Each faulty kernel fails, on the claim that its fault violates; the honest one passes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from attnspec.adapters import load
from attnspec.conformance import test_contract, test_properties, test_reference
from attnspec.conformance.session import Session
from attnspec.conformance.verdict import Verdict

KERNELS = Path(__file__).parent / "faulty_kernels.py"

EXPECTED = {
    "scale_by_d": ("out", "normal/", "bound"),
    "no_rescale": ("out", "normal/", "bound"),
    "last_key_dropped": ("out", "needle/", "bound"),
    "causal_off_by_one": ("out", "causal:on", "bound"),
    "causal_top_left": ("out", "causal:on", "bound"),
    "heads_tiled": ("out", "gqa:grouped", "bound"),
    "softcap_after_mask": ("out", "mask:full+softcap:tight", "bound"),
    "finite_mask": ("out", "mask:empty-rows", "exact 0"),
    "bfloat16_accumulation": ("out", "positive/", "bound"),
    "mean_of_values": ("out", "normal/", "bound"),
    "zeros": ("out", "normal/", "got 0"),
    "nan": ("out", "normal/", "got nan"),
    "maximum_from_zero": ("out", "negative/", "got"),
    "lse_in_base_two": ("lse", "normal/", "bound"),
    "lse_without_sink": ("lse", "sinks:normal", "bound"),
    "window_exclusive": ("out", "window:sliding", "bound"),
    "mask_inverted": ("out", "mask:full", "bound"),
    "float64_output": ("out", "normal/", "float64"),
    "transposed_output": ("out", "normal/", "expected"),
    "writes_into_query": ("inputs-unchanged", "normal/", "q"),
    "raises": ("out", "normal/", "no attention today"),
    "changes_every_run": ("same-bits-again", "normal/", "second run"),
}
"""fault -> the claim that it violates, part of a case where that shows, a word of the message."""


def verdicts(fault: str, *patterns: str) -> Iterator[Verdict]:
    """Ask the suite's own questions in this process, those that the patterns select."""
    kernel = load(f"{KERNELS}:{fault}")
    session = Session({fault: kernel}, "standard", 0, patterns, "conformance")
    for module in (test_reference, test_properties, test_contract):
        for name in (name for name in dir(module) if name.startswith("test_")):
            examine = getattr(module, name)
            mark = examine.pytestmark[0]
            for question in session.questions(*mark.args, **mark.kwargs):
                error = None
                try:
                    examine(question)
                except Exception as raised:
                    error = raised
                yield session.settle(question, error, 0.0)


@pytest.mark.parametrize("fault", EXPECTED)
def test_a_fault_is_caught_for_the_right_reason(fault):
    claim, case, words = EXPECTED[fault]
    found = list(verdicts(fault, f"{claim}/float32/*{case}*"))
    bad = [verdict for verdict in found if verdict.status in ("fail", "error")]
    assert found, f"no case of {claim} matches {case}"
    assert bad, f"{len(found)} verdicts, all passed"
    assert all(words in verdict.message for verdict in bad), bad[0].message


def test_the_honest_kernel_conforms():
    bad = [v for v in verdicts("honest", "*/float32/*", "*/float16/*") if v.status != "pass"]
    assert {v.status for v in bad} <= {"not claimed"}, next(v for v in bad if v.status == "fail")


def test_every_fault_has_its_expectation():
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("faulty_kernels", KERNELS)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert set(module.FAULTS) == {"honest", *EXPECTED}
