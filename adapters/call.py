"""The one function through which every kernel is called, and the checks that its answer meets."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.adapters.claims import (
    CallFailed,
    check_claims,
    check_question,
    gradients_of,
    options_of,
    unclaimed,
)
from attnspec.adapters.declaration import NEUTRAL
from attnspec.adapters.frameworks import Bridge, NoGradient, bridge
from attnspec.adapters.kernel import Kernel
from attnspec.oracle.formats import FORMATS, Format
from attnspec.oracle.problem import Problem, ProblemError

__all__ = ["Answer", "CallFailed", "arguments", "call"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Answer:
    """What a kernel returned: NumPy arrays by output name, and the inputs that it wrote into.

    `outside k` in `changed` is memory between, before or after the numbers of k.
    """

    outputs: Mapping[str, Array]
    changed: tuple[str, ...] = ()


def call(kernel: Kernel, problem: Problem, *, want: Iterable[str] = ("out",)) -> Answer:
    """Ask a kernel for some of `OUTPUTS`.

    Inputs reach the kernel bit by bit, with their strides, as copies in its framework and on its
    device; answers return bit by bit. Of the options it is given those that the problem uses.
    Raises `CallFailed`, and `ProblemError` where the question itself makes no sense.
    """
    wanted = tuple(want)
    check_question(problem, wanted)
    check_claims(kernel, problem, wanted)
    question = _Question.of(kernel, problem, wanted)
    try:
        # np.errstate: a kernel's own np.seterr is not to reach the suite.
        with np.errstate(), bridge(kernel.framework).session(problem.dtype_name):
            return question.ask()
    except (CallFailed, KeyboardInterrupt):
        raise
    except (NotImplementedError, NoGradient) as refusal:
        raise CallFailed("not claimed", _first_line(refusal), traceback.format_exc()) from refusal
    except BaseException as error:  # SystemExit, and pytest.skip, which would count as a pass
        message = f"{type(error).__name__}: {_first_line(error)}{_hint(kernel)}"
        raise CallFailed("error", message, traceback.format_exc()) from error


def arguments(
    kernel: Kernel, problem: Problem, want: Iterable[str]
) -> tuple[Mapping[str, Array], Mapping[str, Any]]:
    """What a call gives the kernel: the arrays by name, cotangents included, and plain options."""
    question = _Question.of(kernel, problem, tuple(want))
    return question.given, question.plain


# -- the call ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Question:
    """One call: the arrays of the framework, the plain options, and what must come back."""

    kernel: Kernel
    problem: Problem
    wanted: tuple[str, ...]
    given: Mapping[str, Array]  # q, k, v, array options, dout and dlse, in NumPy
    plain: Mapping[str, Any]

    @classmethod
    def of(cls, kernel: Kernel, problem: Problem, wanted: tuple[str, ...]) -> _Question:
        options = {name: NEUTRAL[name] for name in kernel.required} | options_of(problem, wanted)
        if "scale" not in kernel.options:
            del options["scale"]
        given = {"q": problem.q, "k": problem.k, "v": problem.v}
        given |= {n: value for n, value in options.items() if isinstance(value, np.ndarray)}
        for name in ("key_lengths", "query_lengths"):
            if name in given:
                given[name] = given[name].astype(np.int32)
        if gradients_of(wanted):
            given |= _cotangents(kernel, problem)
        plain = {n: value for n, value in options.items() if n not in given}
        return cls(kernel, problem, wanted, given, plain)

    @property
    def bridge(self) -> Bridge:
        return bridge(self.kernel.framework)

    @property
    def _pair(self) -> bool:
        return bool(self.plain.get("return_lse"))

    def ask(self) -> Answer:
        arrays = {n: self.bridge.put(a, self.kernel.device) for n, a in self.given.items()}
        before = {n: self.bridge.digest(a) for n, a in arrays.items()}
        outputs = self._answers(arrays)
        kept = {name: self.bridge.get(outputs[name]) for name in self.wanted}
        changed = [n for n, a in arrays.items() if self.bridge.digest(a) != before[n]]
        inside = {n for n in changed if not _same(self.bridge.get(arrays[n]), self.given[n])}
        return Answer(kept, tuple(n if n in inside else f"outside {n}" for n in changed))

    def _answers(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        gradients = gradients_of(self.wanted)
        if not gradients:
            return self._named(self._forward(arrays))
        if self.kernel.framework == "numpy":
            outputs = self._forward(arrays)
            return self._named(outputs) | self._backward(arrays)
        cotangents = [arrays.get("dout"), arrays.get("dlse")]
        outputs, derived = self.bridge.derive(
            self._forward,
            arrays,
            inputs=[name[1:] for name in gradients],
            cotangents=cotangents if self._pair else cotangents[:1],
        )
        named = dict(zip(gradients, derived, strict=True))
        return self._named(outputs) | self._checked(named)

    def _forward(self, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
        result = self.kernel.function(
            arrays["q"], arrays["k"], arrays["v"], **self._array_options(arrays), **self.plain
        )
        if self._pair and not (isinstance(result, tuple) and len(result) == 2):
            raise CallFailed("fail", f"return_lse: expected (out, lse), got {_kind(result)}")
        outputs: tuple[Any, ...] = result if self._pair else (result,)
        self._checked(self._named(outputs))
        return outputs

    def _backward(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        backward = self.kernel.backward
        assert backward is not None, "claimed by Kernel.differentiable"
        options = {**self._array_options(arrays), **self.plain}
        options.pop("return_lse", None)
        if self.problem.dlse is not None:
            options["dlse"] = arrays["dlse"]
        parameters = inspect.signature(backward).parameters.values()
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
            for name in options.keys() - {p.name for p in parameters}:
                raise unclaimed(f"the gradient with {name}")
        result = backward(*(arrays[name] for name in ("q", "k", "v", "dout")), **options)
        if isinstance(result, tuple) and len(result) == 3:
            result = dict(zip(("dq", "dk", "dv"), result, strict=True))
        if not isinstance(result, Mapping):
            raise CallFailed("fail", f"backward: expected (dq, dk, dv), got {_kind(result)}")
        for name in gradients_of(self.wanted):
            if name not in result:
                raise unclaimed(f"the gradient {name}")
        return self._checked({name: result[name] for name in gradients_of(self.wanted)})

    def _array_options(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {name: array for name, array in arrays.items() if name in NEUTRAL}

    @staticmethod
    def _named(outputs: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(("out", "lse"), outputs, strict=False))

    def _checked(self, outputs: dict[str, Any]) -> dict[str, Any]:
        for name, value in outputs.items():
            shape = self.problem.shape_of(name)
            dtype = _dtype_of(self.kernel, self.problem, name)
            found = self.bridge.describe(value)
            if found is None:
                raise CallFailed(
                    "fail",
                    f"{name}: expected a {self.bridge.array}, got {_kind(value)}"
                    f"{_hint(self.kernel)}",
                )
            if found != (dtype, shape):
                raise CallFailed(
                    "fail", f"{name}: expected {dtype} {shape}, got {found[0]} {found[1]}"
                )
        return outputs


def _lse_format(kernel: Kernel, problem: Problem) -> Format:
    return kernel.arithmetic_for(problem.dtype_name).resolve(problem.dtype_name).lse


def _dtype_of(kernel: Kernel, problem: Problem, output: str) -> str:
    if output == "lse":
        return _lse_format(kernel, problem).name
    like: Array = problem.q if output == "out" else getattr(problem, output[1:])
    return like.dtype.name


def _cotangents(kernel: Kernel, problem: Problem) -> dict[str, Array]:
    storage = FORMATS[problem.dtype_name]
    dout = problem.dout
    if dout is None:
        dout = np.zeros(problem.shape_of("out"), storage.dtype)
    given = {"dout": _exactly("dout", dout, storage)}
    if problem.dlse is not None:
        given["dlse"] = _exactly("dlse", problem.dlse, _lse_format(kernel, problem))
    return given


def _exactly(name: str, array: Array, target: Format) -> Array:
    """The same numbers in another format, or `ProblemError`."""
    if array.dtype == target.dtype:
        return array
    exact = array.astype(np.float64)
    converted = target.round(exact)
    if not np.array_equal(converted.astype(np.float64), exact):
        raise ProblemError(f"{name}: expected numbers of {target.name}, got {array.dtype}")
    return converted


def _same(array: Array, other: Array) -> bool:
    return array.tobytes() == other.tobytes()


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "no message"


def _hint(kernel: Kernel) -> str:
    """What to say to a torch or JAX function that was not declared as one."""
    if kernel.framework != "numpy":
        return ""
    for value in getattr(inspect.unwrap(kernel.function), "__globals__", {}).values():
        if isinstance(value, ModuleType) and value.__name__ in ("torch", "jax", "jax.numpy"):
            framework = value.__name__.partition(".")[0]
            return f" (it got NumPy arrays: declare @kernel(framework='{framework}'))"
    return ""
