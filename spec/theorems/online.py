"""Online softmax: states (maximum, sum, output) of parts of the keys, and how they combine."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sympy as sp

from attnspec.spec.evidence.binary import integers
from attnspec.spec.evidence.exact import Matrix, output
from attnspec.spec.evidence.statement import Check, Proof, Statement, Step, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.systems.tiles import by_sums, every_partition

__all__ = ["STATEMENTS"]

TWO = Fraction(2)
NOTHING = float("-inf")
State = tuple[Any, Any, Any]
"""m, l, o: any reference m (the maximum), Σ e^(s-m), Σ e^(s-m) v."""


# -- A monoid -------------------------------------------------------------------------------------


def merged(one: State, two: State) -> State:
    """Symbolic: both parts under the larger maximum."""
    (m1, l1, o1), (m2, l2, o2) = one, two
    m = sp.Max(m1, m2)
    left, right = sp.exp(m1 - m), sp.exp(m2 - m)
    return m, l1 * left + l2 * right, o1 * left + o2 * right


def unscaled(one: State, two: State) -> State:
    """Without rescaling."""
    return sp.Max(one[0], two[0]), one[1] + two[1], one[2] + two[2]


def at_the_first(one: State, two: State) -> State:
    """Only the second part is rescaled."""
    _, left, out = one
    m, total, whole = merged(one, two)
    fade = sp.exp(one[0] - m)
    return m, total - left * fade + left, whole - out * fade + out


def agree(text: str, left: State, right: State) -> Step:
    """All three components."""

    def holds() -> bool:
        return all(sp.simplify(x - y) == 0 for x, y in zip(left, right, strict=True))

    return Step(text, holds)


def states_are_a_monoid() -> Proof:
    """Real maxima; the neutral state is (-∞, 0, 0)."""
    x, y, z = (
        (sp.Symbol(f"m_{k}", real=True), sp.Symbol(f"l_{k}"), sp.Symbol(f"o_{k}")) for k in range(3)
    )
    nothing = (-sp.oo, sp.Integer(0), sp.Integer(0))
    return Proof(
        steps=(
            agree("(x ⊕ y) ⊕ z = x ⊕ (y ⊕ z)", merged(merged(x, y), z), merged(x, merged(y, z))),
            agree("x ⊕ y = y ⊕ x", merged(x, y), merged(y, x)),
            Step("x ⊕ (-∞, 0, 0) = x", lambda: merged(x, nothing) == x),
        ),
        mutations={
            "nothing is rescaled": agree("⊕ without e^(m_1 - m)", unscaled(x, y), merged(x, y)),
            "only the second is rescaled": agree(
                "(x ⊕ y) ⊕ z",
                at_the_first(at_the_first(x, y), z),
                at_the_first(x, at_the_first(y, z)),
            ),
        },
    )


def empty_with_empty() -> str:
    """e^(-∞ - (-∞)) is NaN, and a row that has seen nothing yet would be lost for good."""
    nothing = (-sp.oo, sp.Integer(0), sp.Integer(0))
    found = merged(nothing, nothing)
    require(found[1] is sp.nan and found[2] is sp.nan, f"{found}")
    return "(-∞, 0, 0) ⊕ (-∞, 0, 0) computed as it stands: (-∞, NaN, NaN)"


@dataclass(frozen=True)
class Merge:
    """⊕ in base 2, exactly: e^(-∞) and e^(-∞ + ∞) are 0. Mutations rescale too little."""

    rescale_sum: bool = True
    rescale_output: bool = True

    def __call__(self, one: State, two: State) -> State:
        """Both parts under the larger maximum."""
        m = max(one[0], two[0])
        fades = [TWO ** (x[0] - m) if x[0] != NOTHING else Fraction(0) for x in (one, two)]
        sums = fades if self.rescale_sum else [Fraction(1)] * 2
        outs = fades if self.rescale_output else [Fraction(1)] * 2
        total = one[1] * sums[0] + two[1] * sums[1]
        return m, total, one[2] * outs[0] + two[2] * outs[1]


def every_bracketing(merge: Callable[[State, State], State]) -> str:
    """4 keys in 24 orders and 5 bracketings, with empty states among them, give one output."""
    scores, v = integers((4,), seed=1, within=4), integers((4,), seed=2)
    whole = sum(TWO**s * x for s, x in zip(scores, v, strict=True)) / sum(TWO**s for s in scores)
    empty: State = (NOTHING, Fraction(0), Fraction(0))
    for order in itertools.permutations(range(4)):
        a, b, c, d = (merge(empty, (scores[k], Fraction(1), Fraction(v[k]))) for k in order)
        for m, total, out in (
            merge(merge(merge(a, b), c), d),
            merge(merge(a, b), merge(c, d)),
            merge(a, merge(b, merge(c, d))),
            merge(merge(a, merge(b, c)), d),
            merge(a, merge(merge(b, merge(empty, empty)), merge(c, d))),
        ):
            require(m == max(scores) and out == whole * total, f"order {order} differs")
            require(total == sum(TWO ** (s - m) for s in scores), f"order {order}: another sum")
    return "120 ways to combine 4 keys, exactly"


# -- The loop -------------------------------------------------------------------------------------


def one_more_block() -> Proof:
    """From t keys to t + b: references m and m' are any numbers, so the maximum is one choice."""
    i, t, block = (sp.Symbol(name, integer=True, positive=True) for name in ("i", "t", "b"))
    s, v = sp.IndexedBase("s"), sp.IndexedBase("v")
    old, new = sp.symbols("m m'", real=True)
    past, now = (i, 0, t - 1), (i, t, t + block - 1)

    def state(reference: Any, limits: Any, value: Any) -> Any:
        return sp.Sum(sp.exp(s[i] - reference) * value, limits)

    fade = sp.exp(old - new)
    steps = {
        "l": [state(m, limits, 1) for m, limits in ((old, past), (new, now), (new, past))],
        "o": [state(m, limits, v[i]) for m, limits in ((old, past), (new, now), (new, past))],
    }
    return Proof(
        steps=tuple(
            identity(
                f"e^(m - m') {name}_t + block = {name}_(t+b)",
                fade * kept + block_sum,
                whole + block_sum,
            )
            for name, (kept, block_sum, whole) in steps.items()
        ),
        mutations={
            "no rescaling": identity("l_t + block", steps["l"][0], steps["l"][2]),
            "rescaled the other way": identity(
                "e^(m' - m) l_t", steps["l"][0] / fade, steps["l"][2]
            ),
        },
    )


def every_prefix(merge: Callable[[State, State], State]) -> str:
    """After each of 7 keys: l is the sum under the maximum so far, o / l the prefix's attention."""
    scores, v = integers((7,), seed=3, within=5), integers((7,), seed=4)
    state: State = (NOTHING, Fraction(0), Fraction(0))
    for t in range(1, 8):
        state = merge(state, (scores[t - 1], Fraction(1), Fraction(v[t - 1])))
        powers = [TWO ** (s - max(scores[:t])) for s in scores[:t]]
        require(state[1] == sum(powers), f"after {t} keys: another sum")
        attended = sum(p * x for p, x in zip(powers, v, strict=False)) / sum(powers)
        require(state[2] == attended * state[1], f"after {t} keys: not the prefix's attention")
    return "7 prefixes, exactly"


# -- Any partition --------------------------------------------------------------------------------


def weights_of_parts() -> Proof:
    """A_bj = w_b a_bj, with w_b = e^(lse_b - lse), and a_b the weights within part b."""
    b, j = sp.symbols("b j", integer=True)
    parts, size = sp.symbols("B m", integer=True, positive=True)
    a, w, v = sp.IndexedBase("a"), sp.IndexedBase("w"), sp.IndexedBase("v")
    over_parts, within = (b, 0, parts - 1), (j, 0, size - 1)
    whole = sp.Sum(w[b] * a[b, j] * v[b, j], over_parts, within)
    outs = sp.Sum(w[b] * sp.Sum(a[b, j] * v[b, j], within), over_parts)
    mean = sp.Sum(sp.Sum(a[b, j] * v[b, j], within), over_parts) / parts
    every = sp.Sum(w[b] * a[b, j], over_parts, within)
    return Proof(
        steps=(
            identity("Σ_bj A_bj v_bj = Σ_b w_b O_b", whole, outs),
            identity("Σ_bj A_bj = 1", every, 1, stochastic=[a, w]),
        ),
        mutations={
            "the plain mean": identity("(1/B) Σ_b O_b", whole, mean),
            "parts not weighted": identity(
                "Σ_b Σ_j a_bj = 1", sp.Sum(a[b, j], over_parts, within), 1, stochastic=[a, w]
            ),
        },
    )


def largest_part(sums: list[Any], outs: list[Any]) -> Any:
    """The output of the part with the largest sum."""
    return outs[sums.index(max(sums))]


def equal_parts_only() -> str:
    """The plain mean of the parts' outputs is right for parts of equal sums only."""
    e, v = integers((1, 3), seed=0) * 0 + TWO, integers((3, 1), seed=5)
    parts: list[Matrix] = [output(e[:, :1], v[:1])[0], output(e[:, 1:], v[1:])[0]]
    require((parts[0] + parts[1]) / 2 != output(e, v)[0], "the mean is right")
    return "1 key and 2 keys of one score: the mean of the outputs is not the output"


STATEMENTS = (
    Statement(
        id="ext.monoid",
        where="Milakov and Gimelshein 2018; the third document's listing of tiles",
        says="States (m, l, o) of parts combine associatively and in any order; the state of no "
        "key is neutral.",
        formula=r"(m, l, o) \oplus (m', l', o') = (\hat m,\ l e^{m - \hat m} + l' e^{m' - \hat m},"
        r"\ o e^{m - \hat m} + o' e^{m' - \hat m}), \quad \hat m = \max(m, m')",
        verdict="conditional",
        hypotheses={"e^(-∞ - (-∞)) is taken as 0": empty_with_empty},
        proof=states_are_a_monoid,
        check=Check(
            run=every_bracketing,
            subject=Merge(),
            mutations={
                "the sum is not rescaled": Merge(rescale_sum=False),
                "the output is not rescaled": Merge(rescale_output=False),
            },
        ),
        properties=("parts-merge-by-lse",),
    ),
    Statement(
        id="ext.loopinv",
        where="Milakov and Gimelshein 2018; the third document's listing of tiles",
        says="After every block the state is the attention over the keys so far.",
        formula=r"l_t = \sum_{i \le t} e^{s_i - m_t}, \qquad o_t / l_t = "
        r"\mathrm{Attn}(q, K_{\le t}, V_{\le t})",
        verdict="true",
        proof=one_more_block,
        check=Check(
            run=every_prefix,
            subject=Merge(),
            mutations={
                "the sum is not rescaled": Merge(rescale_sum=False),
                "the output is not rescaled": Merge(rescale_output=False),
            },
        ),
        properties=("parts-merge-by-lse", "prefix-equals-first-rows"),
    ),
    Statement(
        id="ext.splitkv",
        where="Dao et al. 2023 (Flash-Decoding); from the monoid above",
        says="Any partition of the keys: outputs of the parts, weighted by e^(lse_b - lse), add up "
        "to the output.",
        formula=r"A_{bj} = e^{\mathrm{lse}_b - \mathrm{lse}}\, a^{(b)}_j",
        verdict="conditional",
        hypotheses={"parts are weighted by their sums": equal_parts_only},
        proof=weights_of_parts,
        check=Check(
            run=every_partition,
            subject=by_sums,
            mutations={
                "equal weights": lambda sums, outs: sum(outs) / Fraction(len(outs)),
                "the largest part alone": largest_part,
            },
        ),
        properties=("parts-merge-by-lse",),
    ),
)
