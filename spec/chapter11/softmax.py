"""Softmax: the weights, their derivative, and how well conditioned that is."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy as sp

from attnspec.spec.chapter11.retrieval import row_sums
from attnspec.spec.evidence import exact
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.evidence.symbols import keys, keys_count

__all__ = ["STATEMENTS", "jacobian", "softmax_gradient"]

i, j, other = sp.symbols("i j l", integer=True)
a, g, y, x, score = (sp.IndexedBase(name) for name in ("a", "g", "y", "x", "s"))
delta = sp.KroneckerDelta
total = sp.Symbol("Z", positive=True)


# -- Equation (9): the derivative of softmax, for rows of any length ------------------------------


def derivative() -> Any:
    """∂a_i/∂s_j by sympy's rules of differentiation, with Z = Σ_l e^s_l written as a symbol."""
    partition = sp.Sum(sp.exp(score[other]), keys(other))
    slope = sp.diff(sp.exp(score[i]) / partition, score[j])
    return slope.subs(partition, total)


def jacobian() -> Proof:
    """∂a_i/∂s_j = a_i (δ_ij - a_j), of rows that sum to 0, and what its quadratic form is."""

    def weight(index: Any) -> Any:
        return sp.exp(score[index]) / total

    J = a[i] * (delta(i, j) - a[j])
    form = sp.Sum(x[i] * J * x[j], keys(i), keys(j))
    gaps = sp.Sum(a[i] * a[j] * (x[i] - x[j]) ** 2, keys(i), keys(j)) / 2
    exact_form = weight(i) * (delta(i, j) - weight(j))
    return Proof(
        steps=(
            identity("∂a_i/∂s_j = a_i (δ_ij - a_j)", derivative(), exact_form),
            identity("Σ_j a_i (δ_ij - a_j) = 0", sp.Sum(J, keys(j)), 0, stochastic=[a]),
            identity("xᵀ J x = ½ Σ_ij a_i a_j (x_i - x_j)² >= 0", form, gaps, stochastic=[a]),
        ),
        mutations={
            "the diagonal alone": identity(
                "∂a_i/∂s_j = a_i δ_ij", derivative(), weight(i) * delta(i, j)
            ),
            "of the other sign": identity(
                "∂a_i/∂s_j = a_i (a_j - δ_ij)", derivative(), -exact_form
            ),
            "every pair counted twice": identity("xᵀ J x = Σ …", form, 2 * gaps, stochastic=[a]),
            "for any a": identity("Σ_j a_i (δ_ij - a_j) = 0 for any a", sp.Sum(J, keys(j)), 0),
        },
    )


def softmax_gradient() -> Proof:
    """Σ_i g_i ∂a_i/∂s_j = a_j (g_j - Σ_l a_l g_l)."""
    passed_on = sp.Sum(g[i] * a[i] * (delta(i, j) - a[j]), keys(i))

    def centred(mean: Any) -> Any:
        return a[j] * (g[j] - mean)

    mean = sp.Sum(a[other] * g[other], keys(other))
    first = jacobian()
    return Proof(
        steps=(
            first.steps[0],
            identity("∂L/∂s_j = a_j (g_j - Σ_l a_l g_l)", passed_on, centred(mean)),
        ),
        mutations={
            "not centred": identity("∂L/∂s_j = a_j g_j", passed_on, centred(0)),
            "centred by the plain sum": identity(
                "∂L/∂s_j = a_j (g_j - Σ_l g_l)", passed_on, centred(sp.Sum(g[other], keys(other)))
            ),
            "only centred": identity(
                "∂L/∂s_j = g_j - Σ_l a_l g_l", passed_on, centred(mean) / a[j]
            ),
            "the diagonal alone": first.mutations["the diagonal alone"],
        },
    )


def cross_entropy() -> Proof:
    """L = -Σ y_l log a_l: g_l = -y_l / a_l, and so a - y where y sums to 1."""
    slope = -y[other] / a[other]
    gradient = a[j] * (slope.subs(other, j) - sp.Sum(a[other] * slope, keys(other)))
    return Proof(
        steps=(identity("∂L/∂s_j = a_j - y_j", gradient, a[j] - y[j], stochastic=[y]),),
        mutations={
            "of the other sign": identity("y_j - a_j", gradient, y[j] - a[j], stochastic=[y]),
            "for any y": identity("a_j - y_j for any y", gradient, a[j] - y[j]),
            "the loss of one label": identity("-y_j / a_j", gradient, -y[j] / a[j], stochastic=[y]),
        },
    )


def labels_that_sum_to_two() -> str:
    """Two labels at once: the loss differentiated at equal scores."""
    s, y = sp.symbols("s_0:3", real=True), (1, 1, 0)
    log_total = sp.log(sum(sp.exp(score) for score in s))
    loss = -sum(label * (score - log_total) for label, score in zip(y, s, strict=True))
    found = sp.diff(loss, s[0]).subs(dict.fromkeys(s, 0))
    stated = sp.Rational(1, 3) - y[0]
    require(found != stated, "the gradient is still a - y")
    return f"a = (1, 1, 1)/3, y = (1, 1, 0): the first slope is {found}, not {stated}"


# -- How well conditioned the derivative is -------------------------------------------------------


def bounded_between() -> Proof:
    """Between vectors x of sum 0 the form xᵀ J x lies between lo |x|² and hi |x|², lo <= a <= hi.

    Each right side is a sum of products that are >= 0 (where Σ_i x_i = 0).
    """
    low, high = sp.symbols("lo hi")
    J = a[i] * (delta(i, j) - a[j])
    form = sp.Sum(x[i] * J * x[j], keys(i), keys(j))
    mean = sp.Sum(a[other] * x[other], keys(other))
    square, total_x = sp.Sum(x[i] ** 2, keys(i)), sp.Sum(x[i], keys(i))
    above_low = sp.Sum((a[i] - low) * (x[i] - mean) ** 2, keys(i))
    shift = low * (keys_count * mean**2 - 2 * mean * total_x)
    below_high = sp.Sum((high - a[i]) * x[i] ** 2, keys(i)) + mean**2
    zero = jacobian()
    return Proof(
        steps=(
            *zero.steps,
            identity(
                "xᵀJx - lo |x|² = Σ (a_i - lo)(x_i - μ)² + lo (n μ² - 2 μ Σ x_i), μ = Σ a_i x_i",
                form - low * square,
                above_low + shift,
                stochastic=[a],
            ),
            identity(
                "hi |x|² - xᵀJx = Σ (hi - a_i) x_i² + μ²", high * square - form, below_high
            ),
        ),
        mutations={
            **zero.mutations,
            "for vectors of any sum": identity(
                "xᵀJx - lo |x|² without Σ x_i", form - low * square,
                above_low + low * keys_count * mean**2, stochastic=[a],
            ),
            "without the mean": identity(
                "hi |x|² - xᵀJx = Σ (hi - a_i) x_i²", high * square - form, below_high - mean**2
            ),
        },
    )  # fmt: skip


ROWS = ((1, 2, 3, 5, 8), (1, 10, 100, 1000, 10000), (90, 91, 92, 93, 94))


def characteristic(weights: Any) -> Any:
    """det(diag(w) - w wᵀ - λ), as a polynomial in λ."""
    w = sp.Matrix(weights)
    return (sp.diag(*weights) - w * w.T).charpoly().as_poly()


def eigenvalues_between(bounds: Callable[[list[Any]], tuple[Any, Any]]) -> str:
    """0 is one eigenvalue, and the other n - 1 lie between the bounds (Sturm's count of roots)."""
    for row in ROWS:
        weights = [sp.Rational(e, sum(row)) for e in row]
        polynomial = characteristic(weights)
        require(polynomial.eval(0) == 0, "0 is no eigenvalue")
        inside = polynomial.count_roots(*bounds(weights))
        require(inside == len(row) - 1, f"{inside} of 4 eigenvalues lie there, weights as {row}")
    return "3 rows of 5 rational weights: 0, and 4 eigenvalues between the least and the greatest"


# -- Equation (8), in numbers ---------------------------------------------------------------------


def weights_of_rows(weigh: Callable[[exact.Matrix], exact.Matrix]) -> str:
    """Nonnegative, rows of sum 1, in the ratios of the exponentials."""
    e = exact.positive((4, 5), seed=9)
    w = weigh(e)
    require((w >= 0).all(), "a negative weight")
    require((w.sum(-1) == 1).all(), "a row does not sum to 1")
    require((w * e[:, :1] == w[:, :1] * e).all(), "other ratios than those of e^S")
    return "4 rows of 5 rational exponentials, exactly"


STATEMENTS = (
    Statement(
        id="ch11.def7",
        where="Definition 7, equation (8)",
        says="The weights are the softmax of each row of scaled scores: nonnegative, of sum 1.",
        formula=r"A_{ij} = e^{\tilde S_{ij}} / \textstyle\sum_l e^{\tilde S_{il}}",
        verdict="true",
        proof=row_sums,
        check=Check(
            run=weights_of_rows,
            subject=exact.weights,
            mutations={
                "columns": lambda e: e / e.sum(0),
                "the whole matrix": lambda e: e / e.sum(),
                "over the greatest": lambda e: e / e.max(-1, keepdims=True),
                "equal weights": lambda e: e * 0 + Fraction(1, 5),
            },
        ),
        properties=(
            "weights-sum-to-one",
            "weights-are-probabilities",
            "long-rows-keep-their-mass",
            "equal-scores-average-plainly",
            "constant-bias-changes-nothing",
            "only-key-returns-its-value",
            "visible-nan-is-not-lost",
        ),
    ),
    Statement(
        id="ch11.prop5",
        where="Proposition 5, equation (9)",
        says="The gradient by the scores is the gradient by the weights, centred and weighted.",
        formula=r"\frac{\partial L}{\partial \tilde S_{ij}} = A_{ij}\Bigl("
        r"\frac{\partial L}{\partial A_{ij}}"
        r" - \sum_l A_{il}\frac{\partial L}{\partial A_{il}}\Bigr)",
        verdict="true",
        proof=softmax_gradient,
        properties=("dbias-rows-sum-to-zero", "equal-values-have-no-score-gradient"),
    ),
    Statement(
        id="ch11.prop5.ce",
        where="Proposition 5, for cross-entropy",
        says="With a cross-entropy on the weights, the gradient by the scores is a - y.",
        formula=r"L = -\textstyle\sum_j y_j \log a_j \;\Rightarrow\; \partial L/\partial s = a - y",
        verdict="conditional",
        hypotheses={"the y sum to 1": labels_that_sum_to_two},
        proof=cross_entropy,
    ),
    Statement(
        id="ch11.prop5.cond",
        where="after Proposition 5",
        says="The derivative is well conditioned where scores are of order 1.",
        formula=r"J \mathbf{1} = 0; \quad \mathrm{cond}\, J|_{\mathbf{1}^\perp}"
        r"\le a_{\max}/a_{\min} = e^{\max \tilde S - \min \tilde S}",
        verdict="false",
        exact="J takes 1 to 0, so its condition number is infinite at any scores. Between the "
        "vectors of sum 0 it is at most e to the spread of the scaled scores, as the other "
        "eigenvalues lie between the least and the greatest weight.",
        proof=bounded_between,
        check=Check(
            run=eigenvalues_between,
            subject=lambda w: (w[0], w[-1]),
            mutations={
                "above the second least weight": lambda w: (w[1], w[-1]),
                "below the second greatest weight": lambda w: (w[0], w[-2]),
                "around 1/n": lambda w: (sp.Rational(1, 10), sp.Rational(3, 10)),
            },
        ),
    ),
)
