"""What the float64 engine must believe of this machine, and the test of each belief.

The proofs in `float64.py` rest on five assumptions about NumPy, its BLAS and the processor:

1. float64 arithmetic rounds to nearest and underflows gradually (IEEE 754);
2. exp, log and tanh err by at most `ELEMENTARY_ERROR` relatively (64 ulp; libraries claim 1 to 4)
   where the result is normal; where it is not, exp by at most 2^-1022 and tanh by 64 2^-1074;
3. exp(-inf) = 0;
4. a matrix product computes each element as one sum of its k products in some order, so that it
   errs by at most gamma_k |A| |B| (Higham, Accuracy and Stability of Numerical Algorithms, 2nd
   ed., section 3.5) and not by Strassen's normwise bound (section 23.2.2);
5. it does so in float64 throughout.

None can be proven from here. All are tested at first use; `AssumptionFailed` says which fails.
Rounding mode and underflow are a state of the thread that any library may change
(`torch.set_flush_denormal`), so they are tested at every use: microseconds.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from functools import cache

import numpy as np

from attnspec.oracle.formats import Float64Array

__all__ = ["ELEMENTARY_ERROR", "AssumptionFailed", "check", "check_thread"]

ELEMENTARY_ERROR = 2.0**-46
"""64 ulp: an ulp of y is at most 2u|y| = 2^-52 |y|."""

_DIGITS = 40  # of the decimal arithmetic that exp, log and tanh are held to: 2^-132


class AssumptionFailed(RuntimeError):  # noqa: N818, it names the verdict
    """The machine does not compute as the float64 engine's proof assumes."""


def check() -> None:
    """Test every assumption (the thread's state each time, the rest once a process).

    Raises `AssumptionFailed`.
    """
    check_thread()
    _check_libraries()


@cache
def _check_libraries() -> None:
    _check_functions()
    _check_products()


def _require(holds: bool | np.bool_, what: str) -> None:
    if not holds:
        raise AssumptionFailed(
            f"{what}, which the proven error bound of tier 'float64' does not allow for; "
            "ask for tier='balls', or repair the NumPy, BLAS or thread state in use"
        )


def check_thread() -> None:
    """Assumption 1 in this thread, on arrays long enough for the vector loops and their tails."""
    one, unit = np.ones(19), np.full(19, 2.0**-53)
    to_nearest = (
        np.all(one + unit == 1)  # a tie, to even; upward rounding would exceed 1
        and np.all(one + 1.5 * unit > 1)  # downward rounding and truncation would give 1
        and np.all(1.5 * unit - one == -(1 - 2 * unit))  # -1 + 1.5u, between -1 and -1 + 2u
        and np.all(one - 0.5 * unit == 1)  # a tie, to even; truncation gives 1 - u
    )
    _require(to_nearest, "float64 addition does not round to nearest")
    normal = np.full(19, 2.0**-1022)
    _require(
        np.all(normal * 0.5 == 2.0**-1023) and np.all(1.5 * normal - normal == 2.0**-1023),
        "subnormal results are flushed to zero",
    )
    _require(np.all(np.full(19, 2.0**-1074) * 2.0**60 > 0), "subnormal operands are read as zero")


def _check_functions() -> None:
    """Assumptions 2 and 3, each point in a vector loop's body and in a tail."""
    rng = np.random.default_rng(20240607)
    exp_at = np.concatenate(
        [rng.uniform(-708, 0, 60), rng.uniform(-1, 0, 40), -(2.0 ** rng.uniform(-60, 0, 21))]
    )
    log_at = np.concatenate([1 + 2.0 ** rng.uniform(-52, 0, 60), 2.0 ** rng.uniform(0, 40, 61)])
    tanh_at = np.concatenate(
        [rng.uniform(-22, 22, 60), rng.choice([-1, 1], 61) * 2.0 ** rng.uniform(-300, 5, 61)]
    )
    with decimal.localcontext() as context:
        context.prec, context.Emin, context.Emax = _DIGITS, -9999, 9999
        _check_function("exp", np.exp, exp_at, decimal.Decimal.exp)
        _check_function("log", np.log, log_at, decimal.Decimal.ln)
        _check_function("tanh", np.tanh, tanh_at, _tanh)
    tiny = np.exp(np.concatenate([-rng.uniform(708.4, 760, 21), [-1e6, -1e300, -np.inf]]))
    _require(np.all((tiny >= 0) & (tiny <= 2.0**-1022)), "exp errs by more than 2^-1022 near 0")
    subnormal = np.ldexp(rng.uniform(-1, 1, 19), -1023)  # where tanh x = x to the last bit
    slip = np.abs(np.tanh(subnormal) - subnormal)
    _require(np.all(slip <= 64 * 2.0**-1074), "numpy.tanh errs by more than 64 ulp near 0")
    _require(np.exp(-np.inf) == 0 and np.all(np.exp(np.full(19, -np.inf)) == 0), "exp(-inf) > 0")
    _require(not np.any(np.log(np.ones(19))), "log(1) is not 0")


def _tanh(x: decimal.Decimal) -> decimal.Decimal:
    """The series' first terms near 0, where (e^2x - 1) / (e^2x + 1) would cancel."""
    if abs(x) < decimal.Decimal("1e-9"):
        return x - x**3 / 3  # the next term is 2/15 x^5: below 1e-36 relatively
    e = (2 * x).exp()
    return (e - 1) / (e + 1)


def _check_function(
    name: str,
    function: Callable[[Float64Array], Float64Array],
    points: Float64Array,
    exact: Callable[[decimal.Decimal], decimal.Decimal],
) -> None:
    wanted = [exact(decimal.Decimal(float(x))) for x in points]
    pieces = np.concatenate([function(piece) for piece in np.array_split(points, 29)])
    for computed in (function(points), pieces):
        errors = [abs(decimal.Decimal(float(y)) - w) for y, w in zip(computed, wanted, strict=True)]
        limits = [decimal.Decimal(ELEMENTARY_ERROR) * abs(w) for w in wanted]
        _require(
            all(e <= limit for e, limit in zip(errors, limits, strict=True)),
            f"numpy.{name} errs by more than 64 ulp",
        )


def _check_products() -> None:
    """Assumptions 4 and 5 (and 1 inside the BLAS), in each layout that the engine uses.

    A = a wᵀ and B = z bᵀ with integers w, z below 2^21 and powers of two a, b: every sum of the
    products, in any order, is a multiple of a_i b_j below 2^53 of it, so an ordinary product is
    exactly (w·z) a bᵀ. Strassen adds rows of different a, and loses the small ones; float32
    cannot hold the products.
    """
    for rows, inner, columns in ((384, 384, 384), (67, 131, 45), (1, 64, 5)):
        rng = np.random.default_rng(rows)
        w, z = rng.integers(2**20, 2**21, (2, inner)).astype(np.float64)
        a = np.where(np.arange(rows) < rows // 2, 2.0**70, 1.0)
        b = np.where(np.arange(columns) < columns // 2, 2.0**-70, 1.0)
        left, right, exact = np.outer(a, w), np.outer(z, b), np.outer(a, b) * np.dot(w, z)
        layouts = [(left, right), (left, np.ascontiguousarray(right.T).T)]
        layouts += [(np.ascontiguousarray(left.T).T, right)] if rows < 300 else []
        for x, y in layouts:
            _require(
                np.array_equal(np.matmul(x, y), exact),
                "a matrix product is not a sum of its products",
            )
    small = np.full((9, 11), 2.0**-537)
    _require(
        np.all(np.matmul(small, small.T) == 11 * 2.0**-1074), "a matrix product flushes subnormals"
    )
