"""Identities of finite sums of any length: a normal form that decides equality of polynomials.

`Sum`s of products of indexed symbols, with Kronecker deltas, are brought to the form
    Σ_(all indices) coefficient · product,
with every sum in front, deltas used up, and bound indices named canonically. Two expressions whose
normal forms agree are equal, whatever the lengths; the converse is not claimed. sympy's own
simplification does not exchange sums or rename their indices.

Softmax enters by its derivative, dA_ij = A_ij (dS_ij - Σ_l A_il dS_il), and by the rule that the
rows of a stochastic matrix sum to 1; both make every identity of attention's gradients polynomial.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import sympy as sp

from attnspec.spec.evidence.statement import Step

__all__ = ["equal", "identity"]

Range = tuple[Any, Any]


def identity(text: str, left: Any, right: Any, *, stochastic: Collection[Any] = ()) -> Step:
    """The step of a proof that says left = right, for all lengths of the sums."""
    return Step(text, lambda: equal(left, right, stochastic=stochastic))


def equal(left: Any, right: Any, *, stochastic: Collection[Any] = ()) -> bool:
    """Whether both sides have the same normal form.

    stochastic: the `IndexedBase`s of matrices whose rows (the last index) sum to 1 over the range
    that the index has. Free indices are taken to lie in the ranges they are used in.
    """
    total: dict[Any, Any] = {}
    for term in _terms(sp.sympify(left) - sp.sympify(right)):
        for factor, key in _canonical(_used_up(term, stochastic)):
            total[key] = total.get(key, 0) + factor
    return all(sp.expand(factor) == 0 for factor in total.values())


@dataclass(frozen=True)
class _Term:
    """Σ over `ranges` of `body`."""

    body: Any
    ranges: dict[Any, Range]


def _terms(expression: Any) -> list[_Term]:
    """A sum of terms with every `Sum` in front."""
    if isinstance(expression, sp.Add):
        return [term for part in expression.args for term in _terms(part)]
    if isinstance(expression, sp.Mul):
        return _products([_terms(part) for part in expression.args])
    if isinstance(expression, sp.Pow) and _is_power_of_sum(expression):
        return _products([_terms(expression.base) for _ in range(int(expression.exp))])
    if isinstance(expression, sp.Sum):
        body, ranges = expression.function, {}
        for index, low, high in expression.limits:
            fresh = sp.Dummy("b", integer=True)
            body = body.subs(index, fresh)
            ranges[fresh] = (low, high)
        return [_Term(term.body, {**ranges, **term.ranges}) for term in _terms(body)]
    return [_Term(expression, {})]


def _is_power_of_sum(power: Any) -> bool:
    whole = power.exp.is_Integer and power.exp > 0
    return bool(whole and (power.base.has(sp.Sum) or isinstance(power.base, sp.Add)))


def _products(factors: list[list[_Term]]) -> list[_Term]:
    return [
        _Term(sp.Mul(*(t.body for t in some)), {k: v for t in some for k, v in t.ranges.items()})
        for some in itertools.product(*factors)
    ]


def _used_up(term: _Term, stochastic: Collection[Any]) -> _Term:
    """Without deltas of bound indices, rows of stochastic matrices, and unused indices."""
    while (shorter := _shortened(term, stochastic)) is not None:
        term = shorter
    return term


def _shortened(term: _Term, stochastic: Collection[Any]) -> _Term | None:
    body, ranges = term.body, term.ranges
    for delta in body.atoms(sp.KroneckerDelta):
        for index, other in (delta.args, delta.args[::-1]):
            same_range = other not in ranges or ranges.get(index) == ranges[other]
            if index in ranges and same_range:
                left = {k: v for k, v in ranges.items() if k != index}
                return _Term((body / delta).subs(index, other), left)
    for index, (low, high) in ranges.items():
        left = {k: v for k, v in ranges.items() if k != index}
        if not body.has(index):
            return _Term(body * (high - low + 1), left)
        for factor in sp.Mul.make_args(body):
            if _is_row(factor, index, stochastic) and not (body / factor).has(index):
                return _Term(body / factor, left)
    return None


def _is_row(factor: Any, index: Any, stochastic: Collection[Any]) -> bool:
    """Whether this is an element of a stochastic matrix, with `index` as its last index alone."""
    if not isinstance(factor, sp.Indexed) or factor.base not in stochastic:
        return False
    *others, last = factor.indices
    return bool(last == index and not any(other.has(index) for other in others))


def _canonical(term: _Term) -> Iterator[tuple[Any, Any]]:
    """(coefficient, key) of each monomial; equal monomials have equal keys.

    The key is the least of all namings of the bound indices, so no order of them matters.
    """
    for monomial in sp.Add.make_args(sp.expand(term.body)):
        factor, product = monomial.as_independent(sp.Indexed, *term.ranges, as_Add=False)
        namings = []
        for order in itertools.permutations(term.ranges):
            names = {index: sp.Symbol(f"b{i}", integer=True) for i, index in enumerate(order)}
            ranges = tuple(str(term.ranges[index]) for index in order)
            namings.append((ranges, sp.srepr(product.xreplace(names))))
        yield factor, min(namings)
