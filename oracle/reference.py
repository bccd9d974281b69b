"""The dispatcher: the certified answer to a problem, from the cheapest engine that reaches.

Engines are asked in the order of their cost: `float64`, then `balls` at 120, 240, … 3840 bits.
Each is asked only for what the ones before could not bound well enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from attnspec.oracle import float64
from attnspec.oracle.enclosure import Enclosure, Reference
from attnspec.oracle.problem import OUTPUTS, Problem, ProblemError
from attnspec.oracle.visible_nan import without_nan

__all__ = ["Uncertified", "reference"]

BoolArray = npt.NDArray[np.bool_]

TIERS = ("float64", "balls", "definition")
BITS = (120, 240, 480, 960, 1920, 3840)
"""The precisions that `balls` climbs through. Scores of 2^n cost n bits; beyond float64's range
of exponents (2^±1074, products of two) there is nothing left to resolve."""

Engine = Callable[[Problem, Sequence[str]], Reference]


class Uncertified(RuntimeError):  # noqa: N818, it says what the answer is not
    """No engine reached the bound that was asked for."""


def reference(
    problem: Problem,
    *,
    want: Sequence[str] = ("out", "lse"),
    within: Mapping[str, npt.ArrayLike] | None = None,
    tier: str | None = None,
    bits: int | None = None,
) -> Reference:
    """The value of each output in `want` (of `OUTPUTS`), with a proven bound on its error.

    Climbs until each bound is at most `within[output]`, element by element (arrays that broadcast
    to the output), and finite for outputs that `within` does not name. `tier` asks one engine
    only, `bits` one precision of `balls` or `definition`. The result's `tier` is the highest that
    was needed. `definition` proves nothing: its bound is estimated from twice the precision, and
    it is never climbed to.

    A NaN that some row sees, in q, k, v or bias, makes NaN exactly what it reaches: the out and
    lse of a row whose query, key or bias it is, out[i, c] for v[j, c]. There, the bound is 0.

    Raises `ProblemError` for an output that this problem does not define (gradients without a
    cotangent or with a visible NaN; anything with a visible infinity in q, k or v), `Uncertified`
    where nothing reaches, and `AssumptionFailed` where the machine's float64 is not what the
    proof assumes.
    """
    limits = {} if within is None else within
    _check_request(problem, want, limits)
    _check_engine(tier, bits)
    problem, overlay = without_nan(problem, want=want)
    found: dict[str, Enclosure] = {}
    missing = list(want)
    for engine in _engines(tier, bits):
        answer = engine(problem, missing)
        found |= {name: overlay.on(name, answer[name]) for name in missing}
        missing = [name for name in missing if _short(found[name], limits.get(name)).any()]
        if not missing:
            return Reference(answer.tier, {name: found[name] for name in want}, problem)
    raise Uncertified(_shortfall(missing[0], found[missing[0]], limits.get(missing[0])))


# -- engines -----------------------------------------------------------------------------------


def _engines(tier: str | None, bits: int | None) -> Iterator[Engine]:
    """The engines to ask, in order; the slow ones are imported when their turn comes."""
    if tier in (None, "float64") and bits is None:
        yield lambda problem, want: float64.enclose(problem, want=want)
    if tier in (None, "balls"):
        for precision in BITS if bits is None else (bits,):
            yield _balls(precision)
    if tier == "definition":
        yield _definition(200 if bits is None else bits)


def _balls(bits: int) -> Engine:
    from attnspec.oracle import balls

    return lambda problem, want: balls.enclose(problem, want=want, bits=bits)


def _definition(bits: int) -> Engine:
    import mpmath

    from attnspec.oracle.definition import attention

    def answer(problem: Problem, want: Sequence[str]) -> Reference:
        coarse = attention(problem, want=want, bits=bits)
        fine = attention(problem, want=want, bits=2 * bits)
        with mpmath.workprec(2 * bits):
            return Reference("definition", {w: _estimate(coarse[w], fine[w]) for w in want})

    return answer


def _estimate(coarse: npt.NDArray[np.object_], fine: npt.NDArray[np.object_]) -> Enclosure:
    """The finer value, split in two float64; as its bound, what separates it from the coarser.

    An infinite lse is exact; an infinite value of a finite number has overflowed.
    """
    with np.errstate(over="ignore"):
        value = fine.astype(np.float64)
    exact = np.asarray(fine == value, np.bool_)
    known = np.isfinite(value)
    rest = np.where(known, fine - np.where(known, value, 0.0), 0)
    low = rest.astype(np.float64)
    change = abs(np.where(known, fine - coarse, 0)) + abs(rest - low)
    bound = np.where(known, change.astype(np.float64), np.where(exact, 0.0, np.inf))
    return Enclosure(value, low, bound)


# -- requests ----------------------------------------------------------------------------------


def _check_request(
    problem: Problem, want: Sequence[str], within: Mapping[str, npt.ArrayLike]
) -> None:
    if isinstance(want, str) or not want:
        raise ProblemError(f"want: expected a sequence of {', '.join(OUTPUTS)}; got {want!r}")
    shapes = {name: problem.shape_of(name) for name in want}  # raises where one is not defined
    for name, limit in within.items():
        if name not in shapes:
            raise ProblemError(f"within[{name!r}]: {name} is not in want, which is {tuple(want)}")
        if not _broadcasts(np.shape(limit), shapes[name]):
            raise ProblemError(
                f"within[{name!r}]: expected an array that broadcasts to {shapes[name]}, "
                f"got {np.shape(limit)}"
            )


def _broadcasts(shape: tuple[int, ...], full: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, full) == full
    except ValueError:
        return False


def _check_engine(tier: str | None, bits: int | None) -> None:
    if tier not in (None, *TIERS):
        raise ProblemError(f"tier: expected one of {', '.join(TIERS)} or None, got {tier!r}")
    if bits is not None and tier == "float64":
        raise ProblemError("bits: float64 has 53; expected bits with balls or definition only")
    if bits is not None and bits < 2:
        raise ProblemError(f"bits: expected at least 2, got {bits}")


def _short(enclosure: Enclosure, within: npt.ArrayLike | None) -> BoolArray:
    """Where the bound is not good enough. An exact result is, whatever `within` says."""
    bound = enclosure.bound
    enough = np.isfinite(bound) if within is None else bound <= np.asarray(within, np.float64)
    short: BoolArray = ~(enough | (bound == 0))
    return short


def _shortfall(name: str, enclosure: Enclosure, within: npt.ArrayLike | None) -> str:
    """Where the last engine fell short, and by how much."""
    short = _short(enclosure, within)
    first = tuple(int(i) for i in np.argwhere(short)[0])
    limit = np.inf if within is None else np.broadcast_to(within, short.shape)[first]
    return (
        f"{name} has {np.count_nonzero(short)} of {short.size} elements whose error no engine "
        f"bounds well enough; the first is {first}: bound {enclosure.bound[first]:.3g}, "
        f"wanted {'a finite one' if limit == np.inf else f'at most {limit:.3g}'}"
    )
