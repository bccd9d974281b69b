"""What `@kernel` accepts, derives and refuses."""

import functools
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from attnspec.adapters import Kernel, KernelError, kernel
from attnspec.adapters.kernel import as_kernel
from attnspec.oracle.rounding import Arithmetic


def plain(q: Any, k: Any, v: Any, *, scale: float, causal: bool = False) -> Any:
    """A docstring."""
    return "called", q, k, v, scale, causal


def test_the_bare_decorator_declares_the_defaults() -> None:
    declared = kernel(plain)
    assert declared.name == "plain"
    assert (declared.framework, declared.device) == ("numpy", "cpu")
    assert declared.dtypes == ("float32", "float64")
    assert declared.arithmetic == Arithmetic()
    assert (declared.diagonal, declared.masked_row) == ("bottom-right", "zero")
    assert not declared.hidden_nan
    assert declared.deterministic


def test_an_undecorated_function_has_the_same_defaults() -> None:
    taken, declared = as_kernel(plain), kernel(plain)
    names = ("name", "framework", "dtypes", "arithmetic", "options", "required", "diagonal")
    assert all(getattr(taken, name) == getattr(declared, name) for name in names)
    assert as_kernel(declared) is declared


def test_a_kernel_is_still_the_function() -> None:
    declared = kernel(plain)
    assert declared(1, 2, 3, scale=4.0) == ("called", 1, 2, 3, 4.0, False)
    assert getattr(declared, "__name__", None) == "plain"
    assert declared.__doc__ == "A docstring."


def test_keywords_reach_the_declaration() -> None:
    declared = kernel(
        name="mine",
        framework="torch",
        device="cuda",
        dtypes=("float16", "bfloat16"),
        diagonal="top-left",
        masked_row="nan",
        hidden_nan=True,
        deterministic=False,
        accumulate="float32",
        probabilities="storage",
        exp_error=2.0**-13,
        gradients="storage",
        tile=64,
    )(plain)
    assert (declared.name, declared.device, declared.masked_row) == ("mine", "cuda", "nan")
    assert declared.arithmetic == Arithmetic(
        accumulate="float32",
        probabilities="storage",
        exp_error=2.0**-13,
        gradients="storage",
        tile=64,
    )
    assert declared.hidden_nan
    assert not declared.deterministic


def test_options_are_the_keyword_parameters() -> None:
    def attention(q: Any, k: Any, v: Any, mask: Any, *, window: Any = None, tiles: int = 3) -> Any:
        """Takes `tiles` for itself: it has a default, so nobody needs to know."""

    declared = kernel(attention)
    assert declared.options == {"mask", "window"}
    assert declared.required == {"mask"}


def test_nothing_but_backward_can_be_set() -> None:
    declared = kernel(plain)
    with pytest.raises(FrozenInstanceError, match="only `backward`"):
        declared.name = "other"
    assert replace(declared, name="other").name == "other"


def test_numpy_is_differentiable_once_it_has_a_backward() -> None:
    @kernel
    def attention(q: Any, k: Any, v: Any, *, bias: Any = None, sinks: Any = None) -> Any:
        """Forward only, at first."""

    assert attention.differentiable == ()
    attention.backward = lambda q, k, v, dout, **options: (q, k, v)
    assert attention.differentiable == ("dq", "dk", "dv", "dbias", "dsinks")
    assert attention.backward(1, 2, 3, 4) == (1, 2, 3)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_frameworks_differentiate_by_themselves(framework: str) -> None:
    assert kernel(framework=framework)(plain).differentiable == ("dq", "dk", "dv")


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"dtypes": ("float33",)}, "plain: dtypes: expected one of 'bfloat16', .*; got 'float33'"),
        ({"dtypes": ()}, "dtypes: expected at least one of"),
        ({"framework": "tensorflow"}, "framework: expected one of 'numpy', 'torch', 'jax'"),
        ({"device": "cuda"}, "device: expected 'cpu', got 'cuda'"),
        ({"diagonal": "upper"}, "diagonal: expected one of 'bottom-right', 'top-left'; got"),
        ({"masked_row": "inf"}, "masked_row: expected one of 'zero', 'nan', 'mean'; got 'inf'"),
        ({"hidden_nan": 1}, "hidden_nan: expected one of False, True; got 1"),
        ({"accumulate": "float31"}, "accumulate: expected one of 'storage', 'bfloat16'"),
        ({"probabilities": "float16"}, "probabilities: expected one of None, 'storage'"),
        ({"operands": "float8"}, "operands: expected one of"),
        ({"lse": "float32"}, "lse: expected one of 'accumulate', 'storage'"),
        ({"exp_error": 2}, r"exp_error: expected None or a float in \[0, 1\); got 2"),
        ({"tile": 0}, "tile: expected an integer of at least 1; got 0"),
        ({"acumulate": "float32"}, "acumulate: no such declaration; .*accumulate"),
    ],
)
def test_a_wrong_declaration_names_what_is_allowed(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=message) as raised:
        kernel(**wrong)(plain)
    assert "\n" not in str(raised.value)


def _few(q: Any, k: Any) -> Any:
    """No v."""


def _swallow(q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Does not say what it takes."""


def _unknown(q: Any, k: Any, v: Any, *, casual: bool) -> Any:
    """A slip of the pen."""


def _later(q: Any, k: Any, v: Any, *, block_table: Any) -> Any:
    """A name of the protocol that is not asked yet."""


def _keyword_only(q: Any, *, k: Any, v: Any) -> Any:
    """Not positional."""


@pytest.mark.parametrize(
    "function, message",
    [
        (_few, "expected the positional parameters q, k, v"),
        (_keyword_only, "expected the positional parameters q, k, v"),
        (_swallow, "options: name the options that it takes"),
        (_unknown, "parameter 'casual': give it a default, or name an option: scale, causal"),
        (_later, "parameter 'block_table' is reserved and not asked yet"),
        (min, "its parameters cannot be read"),
    ],
)
def test_a_signature_that_says_too_little_is_refused(function: Any, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        kernel(function)


def test_a_reserved_name_with_a_default_is_ignored() -> None:
    def attention(q: Any, k: Any, v: Any, *, scale: float, segments: Any = None) -> Any:
        """Ahead of the protocol."""

    assert kernel(attention).options == {"scale"}


def test_functions_without_a_name_are_named_by_their_type() -> None:
    declared = kernel(functools.partial(plain))
    assert isinstance(declared, Kernel)
    assert declared.name == "partial"


def test_a_plain_function_keeps_its_backward():
    def attention(q, k, v, *, scale):
        return q

    attention.backward = lambda q, k, v, dout, *, scale: (q, k, v)
    assert as_kernel(attention).backward is attention.backward
    assert as_kernel(attention).differentiable == ("dq", "dk", "dv")
