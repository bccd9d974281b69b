"""Keys: doubled, and hidden one by one."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import exact
from attnspec.spec.evidence.binary import same
from attnspec.spec.evidence.exact import Matrix, matrix
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity

__all__ = ["STATEMENTS", "a_row"]

i, r = sp.symbols("i r", integer=True)
n, copies = sp.symbols("n m", integer=True, positive=True)
E, v = sp.IndexedBase("E"), sp.IndexedBase("v")
z, e, w = sp.symbols("Z E_j E_l", positive=True)
"""A sum of exponentials, one that is hidden or doubled, and another."""


def over(index: Any, last: Any = n) -> tuple[Any, Any, Any]:
    """The range of an index, for `Sum`."""
    return index, 0, last - 1


def a_row(*, seed: int = 1) -> tuple[Matrix, Matrix]:
    """Exponentials of 5 scores (1, 5), and values (5, 2)."""
    return exact.positive((1, 5), seed=seed), exact.rational((5, 2), seed=seed + 1)


# -- Doubled ---------------------------------------------------------------------------------------


def copies_are_a_bias() -> Proof:
    """m copies of key 0 among n others."""
    x, y = sp.Symbol("s", real=True), sp.Symbol("v_0")
    value = sp.Sum(sp.exp(x) * y, over(r, copies)) + sp.Sum(E[i] * v[i], over(i))
    biased = sp.exp(x + sp.log(copies))
    return Proof(
        steps=(
            identity(
                "numerators agree", value, copies * sp.exp(x) * y + sp.Sum(E[i] * v[i], over(i))
            ),
            scalars("m e^s = e^(s + log m)", copies * sp.exp(x), biased),
        ),
        mutations={
            "a bias of m": scalars("e^(s + m)", copies * sp.exp(x), sp.exp(x + copies)),
            "a score of m s": scalars("e^(m s)", copies * sp.exp(x), sp.exp(copies * x)),
        },
    )


def copied(factor: Any) -> str:
    """1..4 copies of each of 5 keys, against its exponential times a factor."""
    e_row, values = a_row()
    for key, count in itertools.product(range(5), range(1, 5)):
        index = [*range(5), *[key] * (count - 1)]
        raised = e_row.copy()
        raised[0, key] = raised[0, key] * factor(count)
        found = exact.output(e_row[:, index], values[index])
        require(same(found, exact.output(raised, values)), f"{count} copies of key {key}")
    return "20 ways to repeat one of 5 keys, exactly"


# -- Hidden ----------------------------------------------------------------------------------------


def one_key_less() -> Proof:
    """Z' = Z - E_j; A = E / Z."""
    rest = sp.Sum(E[i] * (1 - sp.KroneckerDelta(i, r)), over(i))
    drop = scalars("A_l / (1 - A_j) = E_l / (Z - E_j)", (w / z) / (1 - e / z), w / (z - e))
    return Proof(
        steps=(
            identity("Z' = Z - E_j", rest, sp.Sum(E[i], over(i)) - E[r]),
            drop,
            scalars("e^(lse' - lse) = 1 - A_j", (z - e) / z, 1 - e / z),
        ),
        mutations={
            "not normalised again": scalars("A_l", w / z, w / (z - e)),
            "its weight shared evenly": scalars("A_l + A_j/n", w / z + e / z / n, w / (z - e)),
            "added": scalars("A_l / (1 + A_j)", (w / z) / (1 + e / z), w / (z - e)),
        },
    )


def without_each_key(renew: Any) -> str:
    """Each of 5 keys hidden in turn."""
    e_row, values = a_row()
    a = exact.weights(e_row)[0]
    for key in range(5):
        hidden = e_row.copy()
        hidden[0, key] = Fraction(0)
        found = exact.weights(hidden)[0]
        kept = [x for x in range(5) if x != key]
        require(same(renew(a, key)[kept], found[kept]), f"key {key}: other weights")
        require(hidden.sum() / e_row.sum() == 1 - a[key], f"key {key}: another lse")
        out, o = exact.output(hidden, values)[0], exact.output(e_row, values)[0]
        require(same(out, (o - a[key] * values[key]) / (1 - a[key])), f"key {key}: the output")
    return "5 keys hidden in turn: weights, lse and output, exactly"


def only_key() -> str:
    """Hiding the only key leaves 0 / 0."""
    a = exact.weights(matrix([[3]]))[0]
    require(1 - a[0] == 0, "something is left")
    return "n = 1: 1 - A_j = 0, nothing to divide by"


def more_keys_less_each() -> Proof:
    """A key that comes back takes from all others alike."""
    before, after = w / (z - e), w / z
    return Proof(
        sizes="one key more, any number of others; more keys by repetition",
        steps=(
            scalars("A'_l - A_l = A'_l E_j / Z > 0", before - after, before * e / z),
            scalars("lse - lse' = -log(1 - A_j) > 0", z / (z - e), 1 / (1 - e / z)),
        ),
        mutations={
            "old weights stay": scalars("A'_l - A_l = 0", before - after, 0),
            "they fall by the newcomer's weight": scalars("A_j", before - after, e / z),
        },
    )


def every_pair_of_sets(weigh: Any) -> str:
    """All 180 pairs of a visible set of 5 keys and a larger one."""
    e_row, _ = a_row(seed=3)
    sets = [s for size in range(1, 6) for s in itertools.combinations(range(5), size)]
    pairs = [(small, large) for small in sets for large in sets if set(small) < set(large)]
    for small, large in pairs:
        before, after = (weigh(_only(e_row, s))[0] for s in (small, large))
        require(all(after[key] < before[key] for key in small), f"{small} in {large}")
        require(_only(e_row, large).sum() > _only(e_row, small).sum(), "lse falls")
    return f"{len(pairs)} pairs of a set of keys and a larger one, exactly"


def key_without_weight() -> str:
    """A key of score -∞ takes from nobody."""
    e_row, _ = a_row(seed=3)
    wider = np.concatenate([e_row, matrix([[0]])], 1)
    require(same(exact.weights(wider)[0, :5], exact.weights(e_row)[0]), "the weights fall")
    return "a sixth key of score -∞: the five weights stay"


def _only(e_row: Matrix, keys: tuple[int, ...]) -> Matrix:
    kept = np.isin(range(5), keys)
    return np.asarray(np.where(kept, e_row, np.array(Fraction(0), object)))


STATEMENTS = (
    Statement(
        id="ext.duplicate",
        where="folklore; none of the documents",
        says="m copies of a key are one key with a bias of log m.",
        formula=r"m\, e^{s} = e^{s + \log m}",
        verdict="true",
        proof=copies_are_a_bias,
        check=Check(
            run=copied,
            subject=lambda count: Fraction(count),
            mutations={
                "no bias": lambda count: Fraction(1),
                "a bias of m log 2": lambda count: Fraction(2) ** count,
            },
        ),
        properties=("doubled-keys-change-nothing", "doubled-keys-add-log-2-to-lse"),
    ),
    Statement(
        id="ext.drop",
        where="folklore; beside the masks of all three documents",
        says="Hiding one key divides the other weights by what it leaves.",
        formula=r"A'_l = \frac{A_l}{1 - A_j}, \qquad \mathrm{lse}' = \mathrm{lse} + \log(1 - A_j)",
        verdict="conditional",
        hypotheses={"another key is visible": only_key},
        proof=one_key_less,
        check=Check(
            run=without_each_key,
            subject=lambda a, key: a / (1 - a[key]),
            mutations={
                "not normalised again": lambda a, key: a,
                "its weight shared evenly": lambda a, key: a + a[key] / 4,
            },
        ),
    ),
    Statement(
        id="ext.maskmono",
        where="folklore; beside the masks of all three documents",
        says="The more keys are visible, the less weight each of the old ones has, and the larger "
        "lse is.",
        formula=r"S \subset T \Rightarrow A^{T}_j < A^{S}_j\ (j \in S), \quad "
        r"\mathrm{lse}^T > \mathrm{lse}^S",
        verdict="conditional",
        hypotheses={"the new keys have finite scores": key_without_weight},
        proof=more_keys_less_each,
        check=Check(
            run=every_pair_of_sets,
            subject=exact.weights,
            mutations={
                "over all keys": lambda e: e,
                "over the largest": lambda e: e / e.max(),
            },
        ),
    ),
)
