"""The worked example: the third of three tokens, d_k = d_v = 2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath
import numpy as np

from attnspec.spec.evidence import digits
from attnspec.spec.evidence.figure import Figure
from attnspec.spec.evidence.statement import Check, Statement, require

__all__ = ["STATEMENTS"]

QUERY = (1, 0)
KEYS = ((1, 0), (0, 1), (1, 1))
VALUES = ((2, 0), (0, 2), (1, 1))


def scores(*, scaled: bool = True) -> list[Any]:
    """q_3·k_j, over √2."""
    divisor = mpmath.sqrt(2) if scaled else 1
    return [mpmath.mpf(q * k[0]) / divisor for q in QUERY[:1] for k in KEYS]


def weights(*, scaled: bool = True) -> list[Any]:
    """A_3j."""
    return digits.softmax(scores(scaled=scaled))


def output(channel: int) -> Any:
    """o_3 of one channel."""
    return mpmath.fsum(a * v[channel] for a, v in zip(weights(), VALUES, strict=True))


def figures(name: str, printed: tuple[str, ...], exact: Callable[[int], Any]) -> tuple[Figure, ...]:
    """One for each printed component."""
    return tuple(
        Figure(what=f"{name}{j + 1}", printed=places, exact=partial(exact, j))
        for j, places in enumerate(printed)
    )


# -- sharper, and saturated -----------------------------------------------------------------------


def sharpens(divisor: Any) -> str:
    """Weights of scores (1, 0, 1) under a divisor, beside those under none: entropy and maximum."""
    with mpmath.workdps(digits.DIGITS):
        scaled = digits.softmax([1 / divisor(), mpmath.mpf(0), 1 / divisor()])
        plain = weights(scaled=False)
        entropy = [-mpmath.fsum(a * mpmath.log(a) for a in row) for row in (plain, scaled)]
        require(entropy[0] < entropy[1] and max(plain) > max(scaled), "the divisor does not blunt")
        return f"entropy {mpmath.nstr(entropy[0], 20)} without, {mpmath.nstr(entropy[1], 20)} with"


def greatest_weights(size: int, keys: int, divisor: float) -> tuple[float, float]:
    """Mean of max_j A_j over 400 random rows (seed 0), and its standard error.

    Given q, the scores q·k_j of Gaussian keys are independent Gaussians of variance |q|².
    """
    rng = np.random.default_rng(0)
    norms = np.sqrt(rng.chisquare(size, 400))
    s = norms[:, None] * rng.standard_normal((400, keys)) / divisor
    top = 1 / np.exp(s - s.max(1, keepdims=True)).sum(1)
    return float(top.mean()), float(top.std() / 20)


def saturates(divisor: Callable[[int], float]) -> str:
    """1024 Gaussian keys: most of the weight on one key, 5 standard errors clear of one half."""
    found = []
    for size in (64, 128):
        mean, error = greatest_weights(size, 1024, divisor(size))
        require(mean - 5 * error > 0.5, f"at d_k = {size} the greatest weight is {mean:.3f}")
        found.append(f"{mean:.3f} ± {5 * error:.3f} at d_k = {size}")
    return f"mean greatest weight of 1024 Gaussian keys, 400 rows, seed 0: {', '.join(found)}"


def equal_keys_share() -> str:
    """Equal scores of any size."""
    a = digits.softmax([mpmath.mpf(10) ** 6] * 4)
    require(a == [mpmath.mpf(1) / 4] * 4, "equal scores do not share")
    return "four equal scores of a million give 1/4 each"


STATEMENTS = (
    Statement(
        id="lesson3.ex.scores",
        where="Section 2, worked example, scores",
        says="The scores of token 3 are 1/√2, 0, 1/√2.",
        formula=r"s_3 = (1/\sqrt2,\ 0,\ 1/\sqrt2)",
        verdict="true",
        figures=(
            Figure(what="√2", printed="1.414", exact=lambda: mpmath.sqrt(2)),
            *figures("s_3", ("0.707", "0", "0.707"), lambda j: scores()[j]),
        ),
    ),
    Statement(
        id="lesson3.ex.weights",
        where="Section 2, worked example, weights",
        says="The softmax of these scores.",
        formula=r"A_3 = (e^{1/\sqrt2}, 1, e^{1/\sqrt2}) / (1 + 2e^{1/\sqrt2})",
        verdict="true",
        figures=(
            *figures("e^s_3", ("2.03", "1.00", "2.03"), lambda j: mpmath.exp(scores()[j])),
            Figure(
                what="their sum",
                printed="5.06",
                exact=lambda: mpmath.fsum(mpmath.exp(s) for s in scores()),
            ),
            *figures("A_3", ("0.401", "0.198", "0.401"), lambda j: weights()[j]),
            Figure(what="sum of the weights", printed="1", exact=lambda: mpmath.fsum(weights())),
        ),
        properties=("odds-are-exponential",),
    ),
    Statement(
        id="lesson3.ex.output",
        where="Section 2, worked example, output",
        says="The output of token 3 lies near the values of tokens 1 and 3.",
        formula=r"o_3 = (2A_{31} + A_{33},\ 2A_{32} + A_{33})",
        verdict="true",
        figures=figures("o_3", ("1.20", "0.80"), output),
    ),
    Statement(
        id="lesson3.ex.unscaled",
        where="Section 2, worked example, without the divisor",
        says="Without the divisor the scores are 1, 0, 1 and the weights sharper.",
        formula=r"\mathrm{softmax}(1, 0, 1) = (e, 1, e)/(1 + 2e)",
        verdict="true",
        check=Check(
            run=sharpens,
            subject=lambda: mpmath.sqrt(2),
            mutations={
                "divided by 1": lambda: mpmath.mpf(1),
                "multiplied by √2": lambda: 1 / mpmath.sqrt(2),
            },
        ),
        figures=(
            *figures("unscaled score ", ("1", "0", "1"), lambda j: scores(scaled=False)[j]),
            *figures(
                "unscaled A_3", ("0.422", "0.155", "0.422"), lambda j: weights(scaled=False)[j]
            ),
        ),
    ),
    Statement(
        id="lesson3.ex.satur",
        where="Section 2, worked example, at realistic widths",
        says="At d_k of 64 to 128, unscaled scores saturate softmax toward one-hot.",
        verdict="conditional",
        hypotheses={
            "independent standard entries, and many keys": None,
            "no ties at the top": equal_keys_share,
        },
        check=Check(
            run=saturates,
            subject=lambda size: 1.0,
            mutations={
                "scaled by √d_k": lambda size: float(np.sqrt(size)),
                "scaled by the fourth root": lambda size: float(size**0.25),
            },
        ),
    ),
)
