"""The declaration of an implementation: what a function claims to compute, and how.

    @kernel(framework="torch", dtypes=("float16", "bfloat16"), probabilities="storage")
    def attention(q, k, v, *, scale, causal=False, mask=None, return_lse=False):
        ...

q, k and v arrive as (B, H, N, D) arrays of the framework. The keyword parameters of the function
are the options that it claims; whatever it does not name it is never asked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import FrozenInstanceError, dataclass
from types import MappingProxyType
from typing import Any, overload

from attnspec.adapters.declaration import (
    KernelError,
    arithmetic_by_dtype,
    arithmetic_of,
    check,
    options_of,
)
from attnspec.adapters.frameworks import bridge
from attnspec.oracle.rounding import Arithmetic

__all__ = ["Kernel", "KernelError", "as_kernel", "kernel"]

Function = Callable[..., Any]


@dataclass(kw_only=True, eq=False)
class Kernel:
    """An implementation and everything it declares. Call it as the function itself.

    framework: `numpy`, `torch` or `jax`: the arrays that the function takes and returns.
    device: where they live: `cpu`, `cuda`, `cuda:1`, `gpu`, …
    dtypes: the storage types that it accepts, by name.
    arithmetic: the rounding that it declares (see `attnspec.oracle.rounding`); `by_dtype` holds
        what a type declares otherwise, and `arithmetic_for` is what to judge a type by.
    diagonal: what causal, window and alibi mean where Nq != Nk.
    masked_row: the output of a row that sees no key: zero, NaN, or the mean of all values.
    hidden_nan: claims that NaN and Inf in slots that a row does not see are harmless to it.
    deterministic: claims the same bits on every run.
    memory: claims that what the forward pass takes beyond its inputs grows as n (`linear`) or n²
        (`quadratic`); None claims nothing.
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
    memory: str | None
    options: frozenset[str]
    required: frozenset[str]
    by_dtype: Mapping[str, Arithmetic]
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

    def arithmetic_for(self, dtype: str) -> Arithmetic:
        """The arithmetic that it declares for one storage type."""
        return self.by_dtype.get(dtype, self.arithmetic)

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
    memory: str | None = ...,
    by_dtype: Mapping[str, Mapping[str, Any]] = ...,
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
    memory: str | None = None,
    by_dtype: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    **arithmetic: Any,
) -> Kernel | Callable[[Function], Kernel]:
    """Declare a function as an attention kernel; the fields are explained at `Kernel`.

    `arithmetic` takes the fields of `attnspec.oracle.rounding.Arithmetic` by name, for instance
    `accumulate="float32", probabilities="storage"`; `by_dtype` those in which one type differs,
    for instance `{"bfloat16": {"exp_error": 2**-13}}`. Raises `KernelError`.
    """
    choices: dict[str, Any] = {"diagonal": diagonal, "masked_row": masked_row}
    choices |= {"hidden_nan": hidden_nan, "deterministic": deterministic, "memory": memory}
    dtypes = (dtypes,) if isinstance(dtypes, str) else tuple(dtypes)

    def declare(function: Function) -> Kernel:
        title = name or str(getattr(function, "__name__", type(function).__name__))
        try:
            check(choices, framework=framework, device=device, dtypes=dtypes)
            options, required = options_of(function)
            return Kernel(
                function=function,
                name=title,
                framework=framework,
                device=device,
                dtypes=dtypes,
                arithmetic=arithmetic_of(arithmetic),
                by_dtype=arithmetic_by_dtype(arithmetic, by_dtype, dtypes=dtypes),
                options=options,
                required=required,
                backward=getattr(function, "backward", None),
                **choices,
            )
        except KernelError as error:
            raise KernelError(f"{title}: {error}") from None

    return declare if function is None else declare(function)


def as_kernel(function: Function) -> Kernel:
    """The kernel itself, or a plain function with the defaults of `kernel`."""
    return function if isinstance(function, Kernel) else kernel(function)
