"""A shrunk failure as one script and its data: NAME.py and NAME.npz.

The script needs NumPy, the kernel and the kernel's framework, and nothing of the suite (a kernel
that is the suite's own apart). What is expected, and how far a number may lie from it, is the
certified result and its bound. It exits with 1 while the fault is there and with 0 without it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.adapters.call import arguments
from attnspec.conformance import standalone
from attnspec.conformance.call_lines import CallLines
from attnspec.conformance.question import Asked
from attnspec.conformance.shrink import Shrunk
from attnspec.conformance.symptom import KINDS, Judgement, judgement

__all__ = ["Reproduction", "confirmed", "write"]

Array = npt.NDArray[Any]

LITERALS = 256
"""Problems of no more numbers than this stand in the script itself."""

AGAIN = 20
"""How often the script runs a fault that does not show each time."""


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What the script is about. `command`: what finds it again. `all_laid_out`: every array lies
    between NaN, as in the suite, and not only those with odd strides."""

    spec: str
    shrunk: Shrunk
    command: str
    version: str
    all_laid_out: bool = False


def write(found: Reproduction, folder: Path, name: str) -> Path:
    """Write the script and its data; the script's path. Raises `OSError`."""
    text, data = _Script(found, name).written()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    np.savez_compressed(folder / f"{name}.npz", allow_pickle=False, **data)
    path.write_text(text, encoding="utf-8")
    return path


def confirmed(path: Path, *, seconds: float = 120) -> bool:
    """Whether the script, run by itself, says that the fault is there."""
    try:
        run = subprocess.run(
            [sys.executable, str(path)], capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return False
    return run.returncode == 1 and (FAULT in run.stdout or RAISED in run.stdout)


FAULT, FIXED = "the fault is there", "the fault is gone"
RAISED = "now it raises"


# -- the script --------------------------------------------------------------------------------


class _Script:
    """The text, and what stands in the data file."""

    def __init__(self, found: Reproduction, name: str) -> None:
        self.found, self.name = found, name
        self.symptom, self.trace = found.shrunk.symptom, found.shrunk.trace
        self.kernel, self.asked = found.shrunk.subject.run(self.trace)
        self.judged: Judgement | None = None
        last: Asked = self.asked[-1]
        if self.symptom.kind in ("nan", "infinite", "number", "beyond", "model"):
            kind = found.shrunk.subject.reason.kind
            if self.symptom.about in last.outputs:
                about = self.symptom.about
                self.judged = judgement(self.kernel, last, about, model=kind == "model")
        several = len(self.trace.problems) > 1
        given = [
            arguments(self.kernel, self.trace.problems[index], self._want(index))
            for index in range(len(self.trace.problems))
        ]
        numbers = sum(array.size for arrays, _ in given for array in arrays.values())
        self.literals = numbers <= LITERALS
        self.calls = [
            CallLines(
                self.kernel,
                arrays,
                plain,
                self._want(index),
                f"call{index + 1}_" if several else "",
                self.literals,
                found.all_laid_out,
            )
            for index, (arrays, plain) in enumerate(given)
        ]
        self.single = len(self.trace.calls) == 1 and found.shrunk.subject.tries == 1

    def _want(self, index: int) -> tuple[str, ...]:
        """Everything that any call wants of a problem."""
        wants = [want for at, want in self.trace.calls if at == index]
        return tuple(dict.fromkeys(name for want in wants for name in want))

    def written(self) -> tuple[str, dict[str, Array]]:
        """The text and the data."""
        dtype = self.trace.problem.dtype_name
        lines = [*self._title(), *standalone.imports(self.kernel, dtype), ""]
        lines += [*standalone.kernel_lines(self.found.spec, self.kernel), "", ""]
        if not self.literals:
            lines[-1:] = [
                "from pathlib import Path",
                "",
                f'data = np.load(Path(__file__).with_name("{self.name}.npz"))',
                "",
                "",
            ]
        body = list(self._body())
        text = "\n".join(body)
        for function, needed in (
            ("def numbers(x):\n" + standalone.NUMBERS[self.kernel.framework], "numbers("),
            (standalone.CHECK.rstrip(), "wrong("),
            (standalone.LAID_OUT.get(self.kernel.framework, "").rstrip(), "laid_out("),
        ):
            if needed in text:
                lines += [*function.splitlines(), "", ""]
        return "\n".join([*lines, *body]) + "\n", self._data()

    def _title(self) -> Iterator[str]:
        symptom = self.symptom
        about = symptom.about if symptom.kind != "returns" else symptom.about.partition(":")[0]
        says = f"{about} {KINDS[symptom.kind]}"
        if symptom.kind == "raises":
            says = f"raises {self._said()}"
        elif symptom.kind == "writes":
            says = f"writes into its input {about}"
        yield from textwrap.wrap(f'"""{self.found.spec}: {says}.', 96)
        yield ""
        problem = self.trace.problem
        sizes = f"batch {problem.batch}, heads {problem.query_heads} on {problem.kv_heads}, "
        sizes += f"queries {problem.query_count}, keys {problem.key_count}, "
        sizes += f"sizes {problem.head_size} and {problem.value_size}, {problem.dtype_name}"
        yield sizes[0].upper() + sizes[1:] + "."
        calls = len(self.trace.calls)
        if calls > 1:
            yield f"It takes {calls} calls, in this order, on a kernel that was just loaded."
        yield "Exits with 1 while the fault is there, with 0 once it is fixed."
        yield f"Found with attnspec {self.found.version}:"
        yield ""
        yield f"    {self.found.command}"
        yield '"""'
        yield ""

    def _said(self) -> str:
        failure = self.asked[-1].failure
        return "" if failure is None else failure.message

    # -- what runs -----------------------------------------------------------------------------

    def _body(self) -> Iterator[str]:
        if self.single:
            yield from self._watched(list(self.calls[0].lines()))
            yield from self._verdict()
            yield f'print("{FIXED}")'
            return
        about = self.symptom.about
        result = about if about in self._all_outputs() else self.trace.want[0]
        for number, one in enumerate(self.calls, 1):
            yield f"def call_{number}():"
            last = number - 1 == self.trace.calls[-1][0]
            lines = self._watched(list(one.lines())) if last else one.lines()
            yield from (f"    {line}" for line in lines)
            given = "changed" if self.symptom.kind == "writes" and last else None
            kept = result if result in one.want else one.want[0]
            yield f"    return {given or self._returned(kept)}"
            yield from ("", "")
        yield from self._sequence(result)

    def _all_outputs(self) -> tuple[str, ...]:
        return tuple(name for one in self.calls for name in one.want)

    def _returned(self, output: str) -> str:
        return output if self.symptom.kind in ("returns", "raises") else f"numbers({output})"

    def _sequence(self, result: str) -> Iterator[str]:
        order = [index + 1 for index, _ in self.trace.calls]
        flaky = self.found.shrunk.subject.tries > 1 or self.symptom.kind == "differs"
        indent = "    " if flaky else ""
        if flaky:
            yield f"for attempt in range({AGAIN}):  # it does not show each time"
        differs = self.symptom.kind == "differs"
        first = self.trace.calls.index(self.trace.calls[-1])
        place = 0
        for number, run in groupby(order[:-1]):
            count = len(list(run))
            if differs and place <= first < place + count:
                yield f"{indent}{result} = call_{number}()"
                count -= 1
            if count > 2:
                yield f"{indent}for _ in range({count}):"
                yield f"{indent}    call_{number}()"
            else:
                yield from [f"{indent}call_{number}()"] * count
            place += count
        name = {"differs": "again", "writes": "changed"}.get(self.symptom.kind, result)
        yield f"{indent}{name} = call_{order[-1]}()"
        yield from (f"{indent}{line}" for line in self._verdict(numbers=False))
        yield f'print("{FIXED}")'

    def _watched(self, lines: list[str]) -> list[str]:
        """The call, with what it writes into seen."""
        if self.symptom.kind == "raises":
            return self._caught(lines)
        if self.symptom.kind != "writes":
            return lines
        name = self.symptom.about.removeprefix("outside ")
        outside = name != self.symptom.about
        held = "numbers(memory[-1])" if outside else f"numbers({name})"
        at = next(i for i, line in enumerate(lines) if "attention(" in line)
        if outside:  # the memory around the array is the last that was laid out
            at = (
                next(i for i, line in enumerate(lines) if line.startswith(f"{name} = laid_out")) + 1
            )
            held = "numbers(around)"
            lines = [*lines[:at], "around = memory[-1]", *lines[at:]]
            at += 1
        return [
            *lines[:at],
            f"before = {held}",
            *lines[at:],
            f"changed = before.tobytes() != {held}.tobytes()",
        ]

    def _caught(self, lines: list[str]) -> list[str]:
        """With the exception shown as it is; an exit must not pass for a success."""
        at = next(i for i, line in enumerate(lines) if "attention(" in line)
        calls = [f"    {line}" for line in lines[at:]]
        caught = ["except BaseException as error:", f'    print("{RAISED}:", repr(error))']
        caught += ["    if isinstance(error, Exception):", "        raise", "    sys.exit(1)"]
        return [*lines[:at], "try:", *calls, *caught]

    def _verdict(self, *, numbers: bool = True) -> Iterator[str]:
        """From the outputs to the exit code."""
        kind, about = self.symptom.kind, self.symptom.about
        if kind == "raises":
            return
        if kind == "writes":
            yield f"faulty = changed  # {about}"
        elif kind == "differs":
            yield f"faulty = {about}.tobytes() != again.tobytes()"
        elif kind == "returns":
            yield from self._described(about.partition(":")[0])
        else:
            assert self.judged is not None
            got = f"numbers({about})" if numbers else about
            for name in ("expected", "allowed"):
                value = getattr(self.judged, name)
                text = f'data["{name}"]'
                if self.literals and name == "allowed":  # four digits are enough, rounded up
                    value = [f"{1.001 * x:.4g}" for x in value.reshape(-1)]
                    value = np.array(value, float).reshape(self.judged.allowed.shape)
                if self.literals:
                    text = f"np.array({standalone.literal(value)}, float)"
                yield from textwrap.wrap(
                    f"{name} = {text}", 92, subsequent_indent="    ", break_long_words=False
                )
            if self.literals:
                yield f'print("{about}:", {got}.tolist())'
            yield f'faulty = wrong("{about}", {got}, expected, allowed)'
        yield "if faulty:"
        yield f'    print("{FAULT}")'
        yield "    sys.exit(1)"

    def _described(self, output: str) -> Iterator[str]:
        """The type and shape that come back against those that must."""
        said = re.search(r"expected (\w+) (\([\d, ]*\)), got", self._said())
        if said is None or output not in ("out", "lse", *self.trace.want):
            yield f"# {self._said()}"
            yield f"faulty = not hasattr({self.trace.want[0]}, 'shape')"
            return
        yield f'kind = str(getattr({output}, "dtype", type({output}))).removeprefix("torch.")'
        yield f'shape = tuple(getattr({output}, "shape", ()))'
        yield f'print("{output}:", kind, shape, "where {said[1]} {said[2]} is expected")'
        yield f'faulty = (kind, shape) != ("{said[1]}", {said[2]})'

    # -- the data ------------------------------------------------------------------------------

    def _data(self) -> dict[str, Array]:
        """Every array by name; bfloat16 as float32, and its bits besides."""
        data: dict[str, Array] = {}
        for one in self.calls:
            for name, array in one.arrays.items():
                key = one.prefix + name
                if array.dtype.name == "bfloat16":
                    data[f"{key}_bits"] = np.ascontiguousarray(array).view(np.uint16)
                    array = array.astype(np.float32)
                data[key] = np.ascontiguousarray(array)
        if self.judged is not None:
            data |= {"expected": self.judged.expected, "allowed": self.judged.allowed}
        return data
