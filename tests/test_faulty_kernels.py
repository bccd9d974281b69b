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

SMALL = "b2h2g2q33k65d40v40"
OPTION = "b2h2g2q24k40d16v16"
TILED = "b1h2g2q65k513d16v16"
DECODE = "b3h3g3q1k1025d8v8"
TYPES = ("float32", "float16")

EXPECTED = {
    "scale_by_d": ("out", f"normal/{SMALL}/plain", "hard bound"),
    "no_rescale": ("out", f"normal/{SMALL}/plain", "hard bound"),
    "last_key_dropped": ("out", f"needle/{SMALL}/plain", "hard bound"),
    "causal_off_by_one": ("out", f"normal/{OPTION}/causal:on", "hard bound"),
    "causal_top_left": ("out", f"normal/{OPTION}/causal:on", "hard bound"),
    "heads_tiled": ("out", f"normal/{OPTION}/gqa:grouped", "hard bound"),
    "softcap_after_mask": ("out", f"normal/{OPTION}/mask:*+softcap:tight", "bound"),
    "finite_mask": ("out", f"normal/{OPTION}/mask:empty-rows", "exact 0"),
    "bfloat16_accumulation": ("out", f"positive/{SMALL}/plain", "bound"),
    "mean_of_values": ("out", f"normal/{SMALL}/plain", "bound"),
    "zeros": ("out", f"normal/{SMALL}/plain", "got 0"),
    "nan": ("out", f"normal/{SMALL}/plain", "got nan"),
    "maximum_from_zero": ("out", f"negative/{SMALL}/plain", "got"),
    "lse_in_base_two": ("lse", f"normal/{SMALL}/plain", "hard bound"),
    "lse_without_sink": ("lse", f"normal/{OPTION}/sinks:normal", "hard bound"),
    "window_exclusive": ("out", f"normal/{OPTION}/window:sliding", "hard bound"),
    "mask_inverted": ("out", f"normal/{OPTION}/mask:full", "hard bound"),
    "mask_starts_again": ("out", f"normal/{TILED}/mask:*", "hard bound"),
    "causal_lost_in_long_rows": ("out", f"normal/{TILED}/causal:on", "hard bound"),
    "heads_halved": ("out", f"normal/{OPTION}/gqa:grouped", "hard bound"),
    "last_of_1025_keys_dropped": ("out", f"normal/{DECODE}/causal:on", "hard bound"),
    "softcap_lost_beside_two": ("out", f"normal/{OPTION}/causal:on+bias:*+softcap:*", "bound"),
    "float64_output": ("out", f"normal/{SMALL}/plain", "float64"),
    "transposed_output": ("out", f"normal/{SMALL}/plain", "expected"),
    "writes_into_query": ("inputs-unchanged", f"normal/{OPTION}/plain", "wrote into q"),
    "raises": ("out", f"normal/{SMALL}/plain", "no attention today"),
    "changes_every_run": ("same-bits-again", f"normal/{OPTION}/plain", "second run"),
    "dq_rows_reversed": ("dq", f"normal/{SMALL}/plain", "hard bound"),
    "dk_unscaled": ("dk", f"normal/{SMALL}/plain", "hard bound"),
    "dv_of_one_head": ("dv", f"normal/{OPTION}/gqa:grouped", "hard bound"),
    "no_centring": ("dq", f"normal/{SMALL}/plain", "hard bound"),
    "strides_ignored": ("layout-?", f"normal/{SMALL}/plain", "laid out as"),
    "false_hidden_nan": ("hidden-nan", f"normal/{OPTION}/causal:on", "does not see"),
    "false_masked_row": ("out", f"normal/{OPTION}/mask:empty-rows", "got 0"),
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
    found = list(verdicts(fault, f"{claim}/float32/{case}"))
    bad = [verdict for verdict in found if verdict.status in ("fail", "error")]
    assert found, f"no case of {claim} matches {case}"
    assert bad, f"{len(found)} verdicts, all passed"
    assert all(words in verdict.message for verdict in bad), bad[0].message


def test_the_honest_kernel_conforms_on_the_same_cases():
    patterns = {
        f"{claim}/{dtype}/{case}"
        for claim, case, _ in EXPECTED.values()
        for dtype in TYPES
        if claim not in ("dq", "dk", "dv", "hidden-nan")  # which it does not claim
    }
    found = list(verdicts("honest", *patterns))
    assert len(found) >= len(patterns)
    assert [verdict.message for verdict in found if verdict.status != "pass"] == []


def test_every_fault_has_its_expectation():
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("faulty_kernels", KERNELS)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert {*module.FAULTS, *module.GRADIENT_FAULTS} == {"honest", *EXPECTED}


@pytest.mark.parametrize("fault", ["dq_rows_reversed", "dk_unscaled", "dv_of_one_head"])
def test_a_fault_in_one_gradient_is_not_held_against_the_others(fault):
    for claim in ("out", "dq", "dk", "dv"):
        found = list(verdicts(fault, f"{claim}/float32/normal/{OPTION}/gqa:grouped"))
        assert [v.status for v in found] == ["fail" if fault.startswith(claim) else "pass"]
