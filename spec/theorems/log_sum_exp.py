"""log Σ e^s, whose gradient is softmax, and the entropy of the weights."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import sympy as sp

from attnspec.spec.evidence.binary import integers, power_of_two
from attnspec.spec.evidence.exact import Matrix, positive
from attnspec.spec.evidence.statement import Check, Proof, Statement, Step, require
from attnspec.spec.evidence.sums import equal, identity

__all__ = ["STATEMENTS"]

i, j, other = sp.symbols("i j l", integer=True)
n = sp.Symbol("n", integer=True, positive=True)
s, a = sp.IndexedBase("s"), sp.IndexedBase("a")


def over(index: Any) -> tuple[Any, Any, Any]:
    """The range of an index, for `Sum`."""
    return index, 0, n - 1


# -- Gradient and Hessian -------------------------------------------------------------------------


def gradient_is_softmax() -> Proof:
    """Z = Σ e^s; ∇ log Z = ∇Z / Z, and the derivative of e^(s_i) / Z by the quotient rule."""
    z = sp.Sum(sp.exp(s[other]), over(other))
    e_i, e_j = sp.exp(s[i]), sp.exp(s[j])
    slope = sp.diff(z, s[j])
    second = sp.diff(e_i, s[j]) * z - e_i * slope
    claimed = e_i * (sp.KroneckerDelta(i, j) * z - e_j)
    return Proof(
        steps=(
            Step("Z ∂ log Z / ∂s_j = e^(s_j)", lambda: equal(slope, e_j)),
            identity("Z² ∂a_i / ∂s_j = Z² a_i (δ_ij - a_j)", second, claimed),
        ),
        mutations={
            "the whole sum": identity("Z ∂ log Z / ∂s_j = Z", slope, z),
            "diagonal": identity("Z² a_i δ_ij", second, e_i * sp.KroneckerDelta(i, j) * z),
        },
    )


def total(e: Matrix) -> Fraction:
    """e^LSE of a row."""
    return Fraction(e.sum())


def between_max_and_sum(of: Callable[[Matrix], Fraction]) -> str:
    """In base 2: max ≤ Z ≤ n max, reached; 2^-1 ≤ Z'/Z ≤ 2 for steps of 1; convex in the middle."""
    for count in range(1, 7):
        one, two = (2 * integers((count,), seed=count + s) for s in (0, 20))
        step = integers((count,), seed=count + 40, within=1)
        z, z_two, middle, moved = (
            of(power_of_two(x)) for x in (one, two, (one + two) // 2, one + step)
        )
        top = max(power_of_two(one))
        require(top <= z <= count * top, f"n = {count}: outside [max, max + log n]")
        require(z / 2 <= moved <= 2 * z, f"n = {count}: a step of 1 moves it by more than 1")
        require(middle**2 <= z * z_two, f"n = {count}: not convex")
        even = power_of_two([3] * count)
        require(of(even) == count * even[0], f"n = {count}: equal scores do not reach the bound")
    return "n = 1..6: bounds, both reached, 1-Lipschitz in the largest step, convex, exactly"


def one_far_ahead() -> str:
    """The lower bound is only approached by finite scores."""
    e = power_of_two([40, 0, 0])
    require(max(e) < total(e), "it is reached")
    return "scores (40, 0, 0): LSE exceeds the maximum by 2.6e-12, not by 0"


# -- Entropy --------------------------------------------------------------------------------------


def entropy_falls() -> Proof:
    """a(β) ∝ e^(βs): da_i = a_i (s_i - Σ a s) dβ; log a_i = β s_i - L; H = -Σ a log a."""
    beta, lse = sp.symbols("beta L")
    mean = sp.Sum(a[other] * s[other], over(other))
    moved = a[i] * (s[i] - mean)
    log = beta * s[i] - lse
    slope = -sp.Sum(moved * (log + 1), over(i))
    centred = sp.Sum(a[i] * (s[i] - mean) ** 2, over(i))
    entropy = -sp.Sum(a[i] * log, over(i))
    return Proof(
        steps=(
            identity("dH/dβ = -β Var_a(s)", slope, -beta * centred, stochastic=[a]),
            identity("H = L - β Σ a s", entropy, lse - beta * mean, stochastic=[a]),
        ),
        mutations={
            "β is missing": identity("-Var_a(s)", slope, -centred, stochastic=[a]),
            "not centred": identity(
                "-β Σ a s²", slope, -beta * sp.Sum(a[i] * s[i] ** 2, over(i)), stochastic=[a]
            ),
            "the other sign": identity("β Var_a(s)", slope, beta * centred, stochastic=[a]),
        },
    )


def shannon(weights: list[Any]) -> Any:
    """-Σ a log a."""
    return -mpmath.fsum(w * mpmath.log(w) for w in weights)


def between_its_bounds(entropy: Any) -> str:
    """log n - Δ ≤ H ≤ log n, with equality above only for equal scores; 40 digits."""
    with mpmath.workdps(40):
        slack = mpmath.mpf(10) ** -35
        for count in range(2, 8):
            for seed in range(5):
                e = [
                    mpmath.mpf(x.numerator) / x.denominator
                    for x in positive((count,), seed=seed + 10 * count)
                ]
                h = entropy([x / mpmath.fsum(e) for x in e])
                spread = mpmath.log(max(e) / min(e))
                require(mpmath.log(count) - spread <= h + slack, f"n = {count}: below log n - Δ")
                require(h <= mpmath.log(count) + slack, f"n = {count}: above log n")
                require((h < mpmath.log(count) - slack) == (spread > 0), "log n at unequal scores")
            even = entropy([mpmath.mpf(1) / count] * count)
            require(abs(even - mpmath.log(count)) < slack, f"n = {count}: not log n at 1/n")
    return "30 rows of 2..7 and the uniform ones, 40 digits"


STATEMENTS = (
    Statement(
        id="ext.lse",
        where="folklore (Boyd and Vandenberghe 2004, 3.1.5); the lse that kernels return beside "
        "the third document's listing of tiles",
        says="The gradient of log-sum-exp is softmax and its Hessian J; it is convex, lies within "
        "log n above the maximum, and moves no more than the scores do.",
        formula=r"\nabla \mathrm{LSE} = a, \quad \nabla^2 \mathrm{LSE} = J, \quad "
        r"\max s \le \mathrm{LSE} \le \max s + \log n",
        verdict="conditional",
        hypotheses={"n = 1, or scores of -∞, to reach the maximum itself": one_far_ahead},
        proof=gradient_is_softmax,
        check=Check(
            run=between_max_and_sum,
            subject=total,
            mutations={
                "the mean of the exponentials": lambda e: total(e) / len(e),
                "the sum of their squares": lambda e: total(e * e),
                "the maximum": lambda e: Fraction(max(e)),
            },
        ),
        properties=("lse", "lse-between-max-and-max-plus-log-n", "lse-of-equal-scores"),
    ),
    Statement(
        id="ext.entropy",
        where="folklore (Gibbs's inequality); beside the saturation of chapter 11, Corollary 1",
        says="The entropy of the weights is at most log n, only for equal scores, at least "
        "log n - Δ for scores that differ by Δ at most, and falls as scores are scaled up.",
        formula=r"\log n - \Delta \le H(a) \le \log n, \qquad dH/d\beta = -\beta\, "
        r"\mathrm{Var}_a(s)",
        verdict="true",
        proof=entropy_falls,
        check=Check(
            run=between_its_bounds,
            subject=shannon,
            mutations={
                "in bits": lambda w: shannon(w) / mpmath.log(2),
                "collision entropy, doubled": lambda w: (
                    -2 * mpmath.log(mpmath.fsum(x * x for x in w))
                ),
                "without the sign": lambda w: -shannon(w),
            },
        ),
    ),
)
