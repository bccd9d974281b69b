"""What a declaration of a kernel may say, and the errors that say so."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from attnspec.adapters.frameworks import FRAMEWORKS
from attnspec.oracle.formats import FORMATS
from attnspec.oracle.rounding import Arithmetic

__all__ = [
    "NEUTRAL",
    "KernelError",
    "arithmetic_by_dtype",
    "arithmetic_of",
    "check",
    "options_of",
]

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
    "merged": (False, True),
    "diagonal": ("bottom-right", "top-left"),
    "masked_row": ("zero", "nan", "mean"),
    "hidden_nan": (False, True),
    "deterministic": (True, False),
    "memory": (None, "linear", "quadratic"),
}


class KernelError(ValueError):
    """A kernel is declared wrongly; the message names the values that are allowed."""


def check(
    choices: Mapping[str, Any], *, framework: str, device: str, dtypes: tuple[str, ...]
) -> None:
    """Raise `KernelError` for values outside `CHOICES`, the frameworks and the formats."""
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


def arithmetic_of(declared: Mapping[str, Any]) -> Arithmetic:
    """The declared arithmetic; raises `KernelError` for names and values that do not exist."""
    known = [field.name for field in fields(Arithmetic)]
    for name, value in declared.items():
        if name not in known:
            raise KernelError(
                f"{name}: no such declaration; expected one of framework, device, dtypes, "
                f"by_dtype, {', '.join(n for n in CHOICES if n not in known)}, {', '.join(known)}"
            )
        if name in CHOICES:
            _one_of(name, value, CHOICES[name])
    for name, least in (("tile", 1), ("score_roundings", 0)):
        value = declared.get(name, least)
        if type(value) is not int or value < least:
            raise KernelError(f"{name}: expected an integer of at least {least}; got {value!r}")
    error = declared.get("exp_error")
    if error is not None and not (type(error) is float and 0 <= error < 1):
        raise KernelError(f"exp_error: expected None or a float in [0, 1); got {error!r}")
    arithmetic = Arithmetic(**declared)
    try:
        arithmetic.resolve("float32")
    except ValueError as refused:
        raise KernelError(str(refused)) from None
    return arithmetic


def arithmetic_by_dtype(
    declared: Mapping[str, Any],
    by_dtype: Mapping[str, Mapping[str, Any]],
    *,
    dtypes: tuple[str, ...],
) -> dict[str, Arithmetic]:
    """The arithmetic of the types that declare it otherwise; raises `KernelError`."""
    for dtype, fields_of_type in by_dtype.items():
        _one_of("by_dtype", dtype, dtypes)
        if not isinstance(fields_of_type, Mapping):
            raise KernelError(f"by_dtype: expected {{{dtype!r}: {{name: value}}}}")
    return {dtype: arithmetic_of({**declared, **own}) for dtype, own in by_dtype.items()}


def options_of(function: Callable[..., Any]) -> tuple[frozenset[str], frozenset[str]]:
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
    return frozenset(claimed), frozenset(required)


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
