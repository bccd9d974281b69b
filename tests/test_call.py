"""What passes through `call`: conversions, options, checks, and how a kernel fails."""

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from attnspec.adapters import Answer, CallFailed, Kernel, call, kernel
from attnspec.oracle.formats import FORMATS
from attnspec.oracle.problem import Problem, ProblemError

RNG = np.random.default_rng(0)
FRAMEWORKS = ("numpy", "torch", "jax")
SIZE = 4
SCALE = SIZE**-0.5


def numbers(*shape: int, dtype: str = "float32") -> Any:
    return FORMATS[dtype].round(RNG.standard_normal(shape))


def ask(dtype: str = "float32", *, queries: int = 3, keys: int = 5, **fields: Any) -> Problem:
    return Problem(
        q=numbers(1, 2, queries, SIZE, dtype=dtype),
        k=numbers(1, 2, keys, SIZE, dtype=dtype),
        v=numbers(1, 2, keys, SIZE, dtype=dtype),
        **{"scale": SCALE, **fields},
    )


def returns(value: Any, **declared: Any) -> Kernel:
    """A kernel whose answer is `value`, or value(q, k, v)."""

    @kernel(name="returns", **declared)
    def attention(q: Any, k: Any, v: Any, *, scale: float) -> Any:
        return value(q, k, v) if callable(value) else value

    return attention


def failure(kernel: Kernel, problem: Problem, *want: str) -> CallFailed:
    with pytest.raises(CallFailed) as raised:
        call(kernel, problem, want=want or ("out",))
    assert "\n" not in raised.value.message
    return raised.value


def needs(framework: str) -> None:
    if framework != "numpy":
        pytest.importorskip(framework)


# -- conversions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_every_bit_survives_the_journey(framework: str, dtype: str) -> None:
    needs(framework)
    bits = np.dtype(f"uint{8 * FORMATS[dtype].dtype.itemsize}")
    sign = 1 << (8 * bits.itemsize - 1)
    # zeros of both signs, subnormals, and NaN with a payload
    words = np.array([0, sign, 1, sign + 1, 5, sign - 1, 2 * sign - 1, sign - 2], bits)
    queries = words.view(FORMATS[dtype].dtype).reshape(1, 2, 1, SIZE)
    problem = ask(dtype, queries=1).replace(q=queries)
    echo = returns(lambda q, k, v: q, framework=framework, dtypes=FORMATS)
    out = call(echo, problem).outputs["out"]
    assert out.dtype == problem.q.dtype
    assert out.tobytes() == problem.q.tobytes()


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("layout", ["transposed", "strided", "broadcast", "reversed"])
def test_strides_reach_the_kernel(framework: str, layout: str) -> None:
    needs(framework)
    key = {
        "transposed": numbers(1, 5, 2, SIZE).swapaxes(1, 2),
        "strided": numbers(1, 2, 10, 2 * SIZE)[:, :, 1::2, ::2],
        "broadcast": np.broadcast_to(numbers(1, 1, 5, SIZE), (1, 2, 5, SIZE)),
        "reversed": numbers(1, 2, 5, SIZE)[:, :, ::-1],
    }[layout]
    seen: list[Any] = []

    def look(q: Any, k: Any, v: Any) -> Any:
        k = k if framework == "numpy" else k.numpy()
        seen.append((k.strides, k.copy()))
        return q

    call(returns(look, framework=framework), ask().replace(k=key))
    assert np.array_equal(seen[0][1], key)
    if layout == "reversed" and framework == "torch":
        return  # torch has no negative strides
    axes = [axis for axis, n in enumerate(key.shape) if n > 1]
    assert [seen[0][0][axis] for axis in axes] == [key.strides[axis] for axis in axes]


def test_the_gaps_between_elements_hold_nan() -> None:
    gaps: list[Any] = []

    def look(q: Any, k: Any, v: Any) -> Any:
        gaps.append(np.lib.stride_tricks.as_strided(k, (8,), (4,))[1::2])
        return q

    call(returns(look), ask().replace(k=numbers(1, 2, 5, 2 * SIZE)[..., ::2]))
    assert np.isnan(gaps[0][: SIZE - 1]).all()


def test_the_answer_does_not_share_memory_with_the_kernel() -> None:
    buffer = numbers(1, 2, 3, SIZE)
    answer = call(returns(buffer), ask())
    buffer[:] = 0
    assert answer.outputs["out"].any()


def test_x64_does_not_leak_out_of_a_jax_call() -> None:
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    echo = returns(lambda q, k, v: q + 1, framework="jax")
    assert call(echo, ask("float64")).outputs["out"].dtype == np.float64
    assert jax.config.jax_enable_x64 == before
    failing = returns(lambda q, k, v: 1 / 0, framework="jax")
    failure(failing, ask("float64"))
    assert jax.config.jax_enable_x64 == before


# -- options -------------------------------------------------------------------------------------


def recorder(seen: dict[str, Any], **declared: Any) -> Kernel:
    @kernel(name="recorder", **declared)
    def attention(
        q: Any,
        k: Any,
        v: Any,
        *,
        scale: float = 7.0,
        causal: Any = "unset",
        window: Any = "unset",
        mask: Any = "unset",
        bias: Any = "unset",
        softcap: Any = "unset",
        sinks: Any = "unset",
        alibi: Any = "unset",
        key_lengths: Any = "unset",
        query_lengths: Any = "unset",
        return_lse: Any = "unset",
    ) -> Any:
        seen.update({n: value for n, value in locals().items() if n not in ("q", "k", "v", "seen")})
        return q if return_lse == "unset" else (q, q[..., 0])

    return attention


def test_only_the_options_that_the_problem_uses_are_given() -> None:
    seen: dict[str, Any] = {}
    call(recorder(seen), ask(window=(None, None)))
    assert {name for name, value in seen.items() if value != "unset"} == {"scale"}
    assert seen["scale"] == SCALE


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_options_arrive_in_their_types(framework: str) -> None:
    needs(framework)
    seen: dict[str, Any] = {}
    problem = ask(
        "bfloat16",
        causal=True,
        window=(2, 1),
        mask=np.ones((3, 5), bool),
        bias=numbers(3, 5, dtype="bfloat16"),
        softcap=3.0,
        sinks=numbers(2),
        alibi=numbers(2),
        key_lengths=np.array([4]),
        query_lengths=np.array([2]),
    )
    declared = recorder(seen, framework=framework, dtypes=("bfloat16",))
    call(declared, problem, want=("out", "lse"))
    assert (seen["causal"], seen["window"], seen["softcap"]) == (True, (2, 1), 3.0)
    assert seen["return_lse"] is True
    kinds = {name: str(getattr(value, "dtype", "")) for name, value in seen.items()}
    kinds = {name: kind.removeprefix("torch.") for name, kind in kinds.items() if kind}
    assert kinds == {
        "mask": "bool",
        "bias": "bfloat16",
        "sinks": "float32",
        "alibi": "float32",
        "key_lengths": "int32",
        "query_lengths": "int32",
    }


def test_an_option_without_a_default_is_given_its_neutral_value() -> None:
    seen: list[Any] = []

    @kernel
    def attention(q: Any, k: Any, v: Any, *, scale: float, causal: bool, mask: Any) -> Any:
        seen.append((causal, mask))
        return q

    call(attention, ask())
    assert seen == [(False, None)]


# -- not claimed ---------------------------------------------------------------------------------


def only_scale(q: Any, k: Any, v: Any, *, scale: float) -> Any:
    return q


def no_scale(q: Any, k: Any, v: Any) -> Any:
    return q


@pytest.mark.parametrize(
    "function, problem, want, reason",
    [
        (only_scale, ask("float16"), "out", "float16; it takes float32, float64"),
        (only_scale, ask(causal=True, queries=5), "out", "causal"),
        (only_scale, ask(softcap=2.0), "out", "softcap"),
        (only_scale, ask(), "lse", "return_lse"),
        (only_scale, ask(dout=numbers(1, 2, 3, SIZE)), "dq", "the gradient dq"),
        (no_scale, ask(scale=0.3), "out", "scale 0.3; it takes no scale"),
    ],
)
def test_what_is_not_claimed_is_not_asked(
    function: Any, problem: Problem, want: str, reason: str
) -> None:
    failed = failure(kernel(function), problem, want)
    assert failed.status == "not claimed"
    assert reason in failed.message


def test_a_kernel_without_scale_is_asked_its_own() -> None:
    assert isinstance(call(kernel(no_scale), ask()), Answer)


@pytest.mark.parametrize("option", [{"causal": True}, {"window": (1, 1)}, {"alibi": numbers(2)}])
def test_the_diagonal_is_checked_where_it_matters(option: dict[str, Any]) -> None:
    declared = recorder({}, diagonal="top-left")
    call(declared, ask(**option, diagonal="top-left"))
    call(declared, ask(**option, diagonal="bottom-right", queries=5))
    call(declared, ask(diagonal="bottom-right"))
    failed = failure(declared, ask(**option, diagonal="bottom-right"))
    assert failed.message == "diagonal bottom-right; it declares top-left"


def test_not_implemented_is_a_refusal() -> None:
    def refuse(q: Any, k: Any, v: Any) -> Any:
        raise NotImplementedError("heads of size 4")

    failed = failure(returns(refuse), ask())
    assert (failed.status, failed.message) == ("not claimed", "heads of size 4")


# -- how a kernel fails --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [ValueError("one\ntwo"), SystemExit(3), MemoryError(), pytest.fail.Exception("no")]
)
def test_a_kernel_that_raises_is_an_error_with_its_traceback(error: BaseException) -> None:
    def explode(q: Any, k: Any, v: Any) -> Any:
        raise error

    failed = failure(returns(explode), ask())
    assert failed.status == "error"
    assert failed.message.startswith(type(error).__name__)
    assert "in explode" in failed.traceback


def test_what_a_kernel_sets_for_floating_point_errors_stays_with_it() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        np.seterr(all="raise")
        return q

    before = np.geterr()
    call(returns(attention), ask(keys=3))
    assert np.geterr() == before


def test_the_user_can_still_interrupt() -> None:
    def interrupt(q: Any, k: Any, v: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(returns(interrupt), ask())


@pytest.mark.parametrize(
    "value, message",
    [
        (None, "out: expected a NumPy array, got None"),
        ([1.0], "out: expected a NumPy array, got a list"),
        (lambda q, k, v: (q, q), "out: expected a NumPy array, got a tuple of 2"),
        (lambda q, k, v: k, "out: expected float32 (1, 2, 3, 4), got float32 (1, 2, 5, 4)"),
        (
            lambda q, k, v: q.astype(np.float64),
            "out: expected float32 (1, 2, 3, 4), got float64 (1, 2, 3, 4)",
        ),
    ],
)
def test_the_output_must_be_an_array_of_the_right_shape_and_type(value: Any, message: str) -> None:
    failed = failure(returns(value), ask())
    assert (failed.status, failed.message) == ("fail", message)


@pytest.mark.parametrize(
    "value, message",
    [
        (lambda q: q, "return_lse: expected (out, lse), got a ndarray"),
        (lambda q: [q, q], "return_lse: expected (out, lse), got a list"),
        (lambda q: (q, q), "lse: expected float32 (1, 2, 3), got bfloat16 (1, 2, 3, 4)"),
        (lambda q: (q, q[..., 0]), "lse: expected float32 (1, 2, 3), got bfloat16 (1, 2, 3)"),
    ],
)
def test_lse_must_come_in_the_declared_format(value: Any, message: str) -> None:
    @kernel(dtypes=("bfloat16",), accumulate="float32")
    def attention(q: Any, k: Any, v: Any, *, scale: float, return_lse: bool = False) -> Any:
        return value(q)

    failed = failure(attention, ask("bfloat16"), "lse")
    assert (failed.status, failed.message) == ("fail", message)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_numpy_arrays_do_not_pass_for_arrays_of_a_framework(framework: str) -> None:
    needs(framework)
    failed = failure(returns(numbers(1, 2, 3, SIZE), framework=framework), ask())
    assert failed.status == "fail"
    assert failed.message.endswith("got a ndarray")


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_writing_into_an_input_is_seen_and_harms_nobody(framework: str) -> None:
    needs(framework)

    def write(q: Any, k: Any, v: Any) -> Any:
        k[0, 0, 0, 0] = 9
        return q

    problem = ask()
    before = problem.k.copy()
    assert call(returns(write, framework=framework), problem).changed == ("k",)
    assert np.array_equal(problem.k, before)
    assert call(returns(lambda q, k, v: q, framework=framework), problem).changed == ()


def test_an_undeclared_torch_function_is_told_how_to_declare_itself() -> None:
    namespace: dict[str, Any] = {"torch": pytest.importorskip("torch")}
    exec("def attention(q, k, v, *, scale):\n    return torch.matmul(q, k)", namespace)
    failed = failure(kernel(namespace["attention"]), ask())
    assert failed.status == "error"
    assert failed.message.endswith("(it got NumPy arrays: declare @kernel(framework='torch'))")


def test_a_failure_survives_pickling() -> None:
    failed = failure(returns(None), ask())
    copy = pickle.loads(pickle.dumps(failed))
    assert (copy.status, copy.message) == (failed.status, failed.message)


def test_some_rows_of_a_problem_are_no_question_for_a_kernel() -> None:
    with pytest.raises(ProblemError, match="positions: a kernel is asked whole problems"):
        call(returns(lambda q, k, v: q), ask().at([0, 2]))


@pytest.mark.parametrize("want, problem", [("mean", ask()), ("dq", ask()), ("dbias", ask())])
def test_a_question_without_sense_is_the_askers_mistake(want: str, problem: Problem) -> None:
    with pytest.raises(ProblemError, match="want"):
        call(returns(None), problem, want=(want,))


# -- gradients -----------------------------------------------------------------------------------


def product(framework: str) -> Kernel:
    """out = scale · q + Σ k + Σ v, lse = q[..., 0]: gradients that can be read off."""

    @kernel(framework=framework)
    def attention(q: Any, k: Any, v: Any, *, scale: float, return_lse: bool = False) -> Any:
        out = scale * q + k.sum(2)[:, :, None] + v.sum(2)[:, :, None]
        return (out, 1 * q[..., 0]) if return_lse else out

    def backward(q: Any, k: Any, v: Any, dout: Any, *, scale: float, dlse: Any = None) -> Any:
        dq = scale * dout
        if dlse is not None:
            dq[..., 0] += dlse
        return dq, *(np.broadcast_to(dout.sum(2, keepdims=True), x.shape) for x in (k, v))

    if framework == "numpy":
        attention.backward = backward
    return attention


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("with_dout, with_dlse", [(True, False), (False, True), (True, True)])
def test_gradients_come_back(framework: str, with_dout: bool, with_dlse: bool) -> None:
    needs(framework)
    dout, dlse = numbers(1, 2, 3, SIZE), numbers(1, 2, 3)
    problem = ask(dout=dout if with_dout else None, dlse=dlse if with_dlse else None)
    outputs = call(product(framework), problem, want=("out", "dq", "dv")).outputs
    dq, dv = np.zeros_like(problem.q), np.zeros_like(problem.v)
    if with_dout:
        dq, dv = SCALE * dout, dv + dout.sum(2, keepdims=True)
    if with_dlse:
        dq[..., 0] += dlse
    assert list(outputs) == ["out", "dq", "dv"]
    np.testing.assert_allclose(outputs["dq"], dq, rtol=1e-5)
    np.testing.assert_allclose(outputs["dv"], dv, rtol=1e-5)


def test_a_torch_kernel_without_a_graph_has_no_gradients() -> None:
    pytest.importorskip("torch")
    detached = returns(lambda q, k, v: q.detach() * 1, framework="torch")
    failed = failure(detached, ask(dout=numbers(1, 2, 3, SIZE)), "dq")
    assert (failed.status, failed.message) == ("not claimed", "the output has no autograd graph")


@pytest.mark.parametrize(
    "backward, status, message",
    [
        (lambda q, k, v, dout: (q, k, v), "not claimed", "the gradient with scale"),
        (lambda q, k, v, dout, **o: {"dk": k}, "not claimed", "the gradient dq"),
        (lambda q, k, v, dout, **o: q, "fail", "backward: expected (dq, dk, dv), got a ndarray"),
        (
            lambda q, k, v, dout, **o: (k, k, v),
            "fail",
            "dq: expected float32 (1, 2, 3, 4), got float32 (1, 2, 5, 4)",
        ),
    ],
)
def test_a_backward_of_numpy_is_checked_too(backward: Any, status: str, message: str) -> None:
    attention = returns(lambda q, k, v: q)
    attention.backward = backward
    failed = failure(attention, ask(dout=numbers(1, 2, 3, SIZE)), "dq")
    assert (failed.status, failed.message) == (status, message)


def test_cotangents_are_converted_only_where_that_is_exact() -> None:
    attention = product("numpy")
    half = ask(dout=numbers(1, 2, 3, SIZE, dtype="bfloat16"))
    assert call(attention, half, want=("dq",)).outputs["dq"].dtype == np.float32
    with pytest.raises(ProblemError, match="dout: expected numbers of float32, got float64"):
        call(attention, half.replace(dout=np.full((1, 2, 3, SIZE), 0.1)), want=("dq",))


def test_bfloat16_is_the_type_of_ml_dtypes() -> None:
    echo = returns(lambda q, k, v: q, dtypes=("bfloat16",))
    assert call(echo, ask("bfloat16")).outputs["out"].dtype == ml_dtypes.bfloat16
