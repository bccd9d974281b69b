"""The declaration of an implementation: what a function claims to compute, and how.

    @kernel(framework="torch", dtypes=("float16", "bfloat16"), probabilities="storage")
    def attention(q, k, v, *, scale, causal=False, mask=None, return_lse=False):
        ...

q, k and v arrive as (B, H, N, D) arrays of the framework. The keyword parameters of the function
are the options that it claims; whatever it does not name it is never asked.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any, overload

from attnspec.adapters.frameworks import FRAMEWORKS, bridge
from attnspec.oracle.formats import FORMATS
from attnspec.oracle.rounding import Arithmetic

__all__ = ["NEUTRAL", "Kernel", "KernelError", "as_kernel", "kernel"]

NEUTRAL: Mapping[str, Any] = {
    "scale": None,
    "causal": False,
    "window": None,
    "mask": None,
    "bias": None,
    "softcap": None,
    "sinks": None,
    "alibi": None,
    "key_lengths": None,
    "query_lengths": None,
    "return_lse": False,
}
"""Every option, with the value that says that a problem does not use it."""

RESERVED = ("segments", "block_table", "dropout_keep", "dropout_p")

CHOICES: Mapping[str, tuple[Any, ...]] = {
    "accumulate": ("storage", *FORMATS),
    "scores": (None, "storage"),
    "probabilities": (None, "storage"),
    "normalised": (False, True),
    "gradients": (None, "storage"),
    "lse": ("accumulate", "storage"),
    "diagonal": ("bottom-right", "top-left"),
    "masked_row": ("zero", "nan", "mean"),
    "hidden_nan": (False, True),
    "deterministic": (True, False),
}

Function = Callable[..., Any]


class KernelError(ValueError):
    """A kernel is declared wrongly; the message names the values that are allowed."""


@dataclass(kw_only=True, eq=False)
class Kernel:
    """An implementation and everything it declares. Call it as the function itself.

    framework: `numpy`, `torch` or `jax`: the arrays that the function takes and returns.
    device: where they live: `cpu`, `cuda`, `cuda:1`, `gpu`, …
    dtypes: the storage types that it accepts, by name.
    arithmetic: the rounding that it declares (see `attnspec.oracle.rounding`).
    diagonal: what causal, window and alibi mean where Nq != Nk.
    masked_row: the output of a row that sees no key: zero, NaN, or the mean of all values.
    hidden_nan: claims that NaN and Inf in slots that a row does not see are harmless to it.
    deterministic: claims the same bits on every run.
    options: the claimed names; `required` are those to which the function gives no default.

    Every field is set once, except `backward`, which a NumPy kernel is given afterwards:
    `attention.backward = function`, called as backward(q, k, v, dout, **options), with dlse=
    added where lse has a cotangent. It returns (dq, dk, dv), or a mapping by those names that
    may also hold dbias and dsinks. torch and JAX kernels are differentiated by their framework.
    """

    function: Function
    name: str
    framework: str
    device: str
    dtypes: tuple[str, ...]
    arithmetic: Arithmetic
    diagonal: str
    masked_row: str
    hidden_nan: bool
    deterministic: bool
    options: frozenset[str]
    required: frozenset[str]
    backward: Function | None = None

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.function, updated=())

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ and name != "backward":
            raise FrozenInstanceError(f"{name}: only `backward` may be set on a kernel")
        super().__setattr__(name, value)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """The function's own answer, with nothing converted or checked."""
        return self.function(*args, **options)

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The gradients that can be asked of it, by name."""
        if self.framework == "numpy" and self.backward is None:
            return ()
        inputs = ("bias", "sinks")
        return ("dq", "dk", "dv", *(f"d{name}" for name in inputs if name in self.options))

    def available(self) -> str | None:
        """None where it can run; otherwise what to install or plug in."""
        return bridge(self.framework).missing(self.device)


@overload
def kernel(function: Function, /) -> Kernel: ...


@overload
def kernel(
    *,
    name: str | None = ...,
    framework: str = ...,
    device: str = ...,
    dtypes: Iterable[str] = ...,
    diagonal: str = ...,
    masked_row: str = ...,
    hidden_nan: bool = ...,
    deterministic: bool = ...,
    **arithmetic: Any,
) -> Callable[[Function], Kernel]: ...


def kernel(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    framework: str = "numpy",
    device: str = "cpu",
    dtypes: Iterable[str] = ("float32", "float64"),
    diagonal: str = "bottom-right",
    masked_row: str = "zero",
    hidden_nan: bool = False,
    deterministic: bool = True,
    **arithmetic: Any,
) -> Kernel | Callable[[Function], Kernel]:
    """Declare a function as an attention kernel; the fields are explained at `Kernel`.

    `arithmetic` takes the fields of `attnspec.oracle.rounding.Arithmetic` by name, for instance
    `accumulate="float32", probabilities="storage"`. Raises `KernelError`.
    """
    choices: dict[str, Any] = {"diagonal": diagonal, "masked_row": masked_row}
    choices |= {"hidden_nan": hidden_nan, "deterministic": deterministic}
    dtypes = (dtypes,) if isinstance(dtypes, str) else tuple(dtypes)

    def declare(function: Function) -> Kernel:
        title = name or str(getattr(function, "__name__", type(function).__name__))
        try:
            _check(choices, framework=framework, device=device, dtypes=dtypes)
            options, required = _options(function)
            return Kernel(
                function=function,
                name=title,
                framework=framework,
                device=device,
                dtypes=dtypes,
                arithmetic=_arithmetic(arithmetic),
                options=options,
                required=required,
                **choices,
            )
        except KernelError as error:
            raise KernelError(f"{title}: {error}") from None

    return declare if function is None else declare(function)


def as_kernel(function: Function) -> Kernel:
    """The kernel itself, or a plain function with the defaults of `kernel`."""
    return function if isinstance(function, Kernel) else kernel(function)


def _check(
    choices: Mapping[str, Any], *, framework: str, device: str, dtypes: tuple[str, ...]
) -> None:
    _one_of("framework", framework, FRAMEWORKS)
    for name, value in choices.items():
        _one_of(name, value, CHOICES[name])
    if not dtypes:
        raise KernelError(f"dtypes: expected at least one of {', '.join(FORMATS)}")
    for dtype in dtypes:
        _one_of("dtypes", dtype, tuple(FORMATS))
    if not isinstance(device, str) or (framework == "numpy" and device != "cpu"):
        raise KernelError(f"device: expected {_example(framework)}, got {device!r}")


def _example(framework: str) -> str:
    return "'cpu'" if framework == "numpy" else "a name such as 'cpu' or 'cuda'"


def _one_of(name: str, value: Any, allowed: Iterable[Any]) -> None:
    # 1 == True: the type is compared too.
    if not any(value == choice and type(value) is type(choice) for choice in allowed):
        names = ", ".join(repr(choice) for choice in allowed)
        raise KernelError(f"{name}: expected one of {names}; got {value!r}")


def _arithmetic(declared: Mapping[str, Any]) -> Arithmetic:
    known = [field.name for field in fields(Arithmetic)]
    for name, value in declared.items():
        if name not in known:
            raise KernelError(
                f"{name}: no such declaration; expected one of framework, device, dtypes, "
                f"{', '.join(n for n in CHOICES if n not in known)}, {', '.join(known)}"
            )
        if name in CHOICES:
            _one_of(name, value, CHOICES[name])
    for name in ("tile", "score_roundings"):
        value = declared.get(name, 1)
        if type(value) is not int or value < 1:
            raise KernelError(f"{name}: expected an integer of at least 1; got {value!r}")
    error = declared.get("exp_error")
    if error is not None and not (type(error) is float and 0 <= error < 1):
        raise KernelError(f"exp_error: expected None or a float in [0, 1); got {error!r}")
    arithmetic = Arithmetic(**declared)
    try:
        arithmetic.resolve("float32")
    except ValueError as refused:
        raise KernelError(str(refused)) from None
    return arithmetic


def _options(function: Function) -> tuple[frozenset[str], frozenset[str]]:
    """The options that a signature claims, and those of them that have no default."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise KernelError("its parameters cannot be read; wrap it in a `def`") from None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) < 3 or any(p.kind not in positional for p in parameters[:3]):
        raise KernelError("expected the positional parameters q, k, v")
    claimed = {p.name: p for p in parameters[3:] if _is_option(p)}
    required = {name for name, p in claimed.items() if p.default is inspect.Parameter.empty}
    return frozenset(claimed), frozenset(required - {"scale"})


def _is_option(parameter: inspect.Parameter) -> bool:
    if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
        raise KernelError(
            f"*{parameter.name}: name the options that it takes; expected some of "
            f"{', '.join(NEUTRAL)}"
        )
    keyword = parameter.kind is not inspect.Parameter.POSITIONAL_ONLY
    if keyword and parameter.name in NEUTRAL:
        return True
    if parameter.default is inspect.Parameter.empty:
        later = " is reserved and not asked yet" if parameter.name in RESERVED else ""
        raise KernelError(
            f"parameter {parameter.name!r}{later}: give it a default, or name an option: "
            f"{', '.join(NEUTRAL)}"
        )
    return False
