"""The worked example: three tokens of width 4, all projections the identity. Its softmax is wrong.

Steps 1 and 2 are right. The rows of step 3 sum to 1 but are not the softmax of step 2, and the
output of step 4 is computed from them without a further error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath

from attnspec.spec.evidence import binary, digits, exact
from attnspec.spec.evidence.figure import Figure
from attnspec.spec.evidence.statement import Check, Statement, require

__all__ = ["STATEMENTS"]

NAMES = ("The", "cat", "sat")
TOKENS = exact.matrix([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0]])
PRINTED = (
    ("0.462", "0.170", "0.368"),
    ("0.170", "0.462", "0.368"),
    ("0.244", "0.244", "0.512"),
)


def score(i: int, j: int) -> Any:
    """x_i·x_j, an integer."""
    return (TOKENS @ TOKENS.T)[i, j]


def scaled(i: int, j: int) -> Any:
    """x_i·x_j / 2."""
    return score(i, j) / 2


def row(i: int) -> list[Any]:
    """A_i: softmax of the scaled scores, 50 digits."""
    return digits.softmax([_number(scaled(i, j)) for j in range(3)])


def weight(i: int, j: int) -> Any:
    """A_ij."""
    return row(i)[j]


def output(i: int, channel: int) -> Any:
    """O_ic = Σ_j A_ij x_jc."""
    with mpmath.workdps(digits.DIGITS):
        return mpmath.fsum(a * int(TOKENS[j, channel]) for j, a in enumerate(row(i)))


def _number(fraction: Any) -> Any:
    return mpmath.mpf(fraction.numerator) / fraction.denominator


def table(
    name: str, printed: Sequence[Sequence[str]], value: Callable[[int, int], Any]
) -> tuple[Figure, ...]:
    """A figure for every entry of a printed matrix."""
    return tuple(
        Figure(what=f"{name}[{i}, {j}]", printed=places, exact=partial(value, i, j))
        for i, line in enumerate(printed)
        for j, places in enumerate(line)
    )


def from_printed(i: int, channel: int) -> Fraction:
    """What step 4 makes of the printed weights."""
    pairs = enumerate(PRINTED[i])
    return sum((Fraction(a) * TOKENS[j, channel] for j, a in pairs), Fraction(0))


# -- what shows it --------------------------------------------------------------------------------


def are_the_dot_products(scores: Any) -> str:
    """Entry by entry, and symmetric with the lengths of the tokens on the diagonal."""
    found = scores(TOKENS)
    for i in range(3):
        for j in range(3):
            dot = sum(TOKENS[i, c] * TOKENS[j, c] for c in range(4))
            require(found[i, j] == dot, f"[{i}, {j}] is {found[i, j]}, not {dot}")
    return "9 dot products of integers, exactly"


def are_halves(divide: Any) -> str:
    """d_k = 4, so the divisor is 2: its square is d_k."""
    s = TOKENS @ TOKENS.T
    divided = divide(s, 4)
    require(binary.same(divided * divided * 4, s * s), "the divisor is not √d_k")
    return "9 scores over √4 = 2, exactly"


def has_the_odds(rows: Sequence[Sequence[Any]]) -> str:
    """Two weights of a row are in the ratio e^(s_j - s_l), to what 3 decimals can show."""
    half = mpmath.mpf("0.0005")
    for i, a in enumerate(rows):
        weights = [mpmath.mpf(x) for x in a]
        for j in range(3):
            odds = mpmath.exp(_number(scaled(i, j) - scaled(i, 2)))
            low = (weights[j] - half) / (weights[2] + half)
            high = (weights[j] + half) / (weights[2] - half)
            require(
                low <= odds <= high,
                f"A[{i}, {j}] / A[{i}, 2] is {mpmath.nstr(weights[j] / weights[2], 4)}, "
                f"not {mpmath.nstr(odds, 4)}",
            )
    return "3 rows: the ratios of the weights are e^(difference of scores)"


def order_of(weights: Sequence[Any]) -> list[str]:
    """The tokens, the greatest weight first."""
    return [NAMES[j] for j in sorted(range(3), key=lambda j: -weights[j])]


def keeps_the_order(weights: Sequence[Any]) -> str:
    """For 'The': itself, then 'sat', then 'cat', as the scores 1, 1/2, 0."""
    found = order_of([mpmath.mpf(x) for x in weights])
    require(found == ["The", "sat", "cat"], f"the order is {', '.join(found)}")
    require(abs(mpmath.fsum(mpmath.mpf(x) for x in weights) - 1) < 0.01, "the sum is not 1")
    return f"{' > '.join(found)}; the numbers beside them are wrong"


def is_attended(first: Sequence[Any]) -> str:
    """O_0 = (a_0 + a_2, a_1 + a_2, a_0, a_1): 0 = channels 1 + 4 = 2 + 3, and the odds of 3, 4."""
    o = [mpmath.mpf(x) for x in first]
    half = mpmath.mpf("0.0005")
    require(abs(o[0] + o[3] - 1) < 0.002 and abs(o[1] + o[2] - 1) < 0.002, "not an average")
    a_2 = o[0] - o[2]
    require(abs(a_2 / o[2] - mpmath.exp(-0.5)) < 8 * half, "'sat' has another weight beside 'The'")
    shown = ", ".join(mpmath.nstr(x, 20) for x in o)
    return f"O_0 = ({shown})"


STATEMENTS = (
    Statement(
        id="heart.example.step1",
        where="Worked example, step 1",
        says="The raw scores X Xᵀ.",
        formula=r"S = XX^\top",
        verdict="true",
        check=Check(
            run=are_the_dot_products,
            subject=lambda x: x @ x.T,
            mutations={
                "products of channels": lambda x: (x.T @ x)[:3, :3],
                "distances": lambda x: ((x[:, None] - x[None]) ** 2).sum(-1),
            },
        ),
        figures=table("S", ("201", "021", "112"), score),
    ),
    Statement(
        id="heart.example.step2",
        where="Worked example, step 2",
        says="The scores over √4 = 2.",
        formula=r"\tilde S = S/2",
        verdict="true",
        check=Check(
            run=are_halves,
            subject=lambda s, size: s / 2,
            mutations={
                "over d_k": lambda s, size: s / size,
                "not divided": lambda s, size: s,
            },
        ),
        figures=table(
            "S/2",
            (("1.00", "0.00", "0.50"), ("0.00", "1.00", "0.50"), ("0.50", "0.50", "1.00")),
            scaled,
        ),
    ),
    Statement(
        id="heart.example.step3",
        where="Worked example, step 3",
        says="Softmax of the rows: (0.462, 0.170, 0.368) and so on.",
        formula=r"A_0 = (e, 1, \sqrt e)/(e + 1 + \sqrt e),\quad "
        r"A_2 = (1, 1, \sqrt e)/(2 + \sqrt e)",
        verdict="false",
        exact="No printed weight is right; they miss by up to 0.061. The printed rows sum to 1, "
        "but the odds of 'The' over 'sat' are 0.462/0.368 = 1.26, not √e = 1.65.",
        check=Check(
            run=has_the_odds,
            subject=tuple(row(i) for i in range(3)),
            mutations={
                "printed": PRINTED,
                "unscaled": tuple(
                    digits.softmax([_number(score(i, j)) for j in range(3)]) for i in range(3)
                ),
            },
        ),
        figures=table("A", PRINTED, weight),
        properties=("odds-are-exponential", "weights-sum-to-one"),
    ),
    Statement(
        id="heart.example.interp",
        where="Worked example, interpretation of step 3",
        says="'The' attends to itself (0.46), then to 'sat' (0.37), least to 'cat' (0.17).",
        formula=r"A_{00} > A_{02} > A_{01}",
        verdict="false",
        exact="The order is right, the three numbers are not.",
        check=Check(
            run=keeps_the_order,
            subject=row(0),
            mutations={"the row of 'cat'": row(1), "reversed": row(0)[::-1]},
        ),
        figures=tuple(
            Figure(what=f"'The' to '{NAMES[j]}'", printed=places, exact=partial(weight, 0, j))
            for j, places in ((0, "0.46"), (2, "0.37"), (1, "0.17"))
        ),
    ),
    Statement(
        id="heart.example.step4",
        where="Worked example, step 4",
        says="The output of 'The': (0.830, 0.538, 0.462, 0.170).",
        formula=r"O_0 = (a_0 + a_2,\ a_1 + a_2,\ a_0,\ a_1)",
        verdict="false",
        exact="The sum is right for the printed weights, which are wrong; so is every channel.",
        check=Check(
            run=is_attended,
            subject=[output(0, c) for c in range(4)],
            mutations={
                "printed": ("0.830", "0.538", "0.462", "0.170"),
                "the output of 'cat'": [output(1, c) for c in range(4)],
            },
        ),
        figures=(
            *table("O", (("0.830", "0.538", "0.462", "0.170"),), output),
            *table("O from the printed A", (("0.830", "0.538", "0.462", "0.170"),), from_printed),
        ),
    ),
)
