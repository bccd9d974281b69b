"""exp, log and tanh of pairs, for exponents in ticks.

A tick is λ = ln 2 / 4096: a score of t ticks has the exponential 2^(t / 4096). Counting scores in
ticks puts the whole reduction of the argument into the query (whose factor is scale / λ instead of
scale): the exponent and the entry of the table are the integer nearest to t, and subtracting a
whole number of ticks, near a row's maximum, is exact.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt

from attnspec.oracle.double_double.pairs import Pair, add, divide, fast_two_sum, multiply, times
from attnspec.oracle.double_double.scratch import Scratch
from attnspec.oracle.formats import Float64Array

__all__ = [
    "DEAD",
    "EXP_ERROR",
    "LARGEST",
    "LOG_ERROR",
    "NATURAL",
    "TANH_ERROR",
    "TICKS",
    "TICK_OF_NATURAL",
    "exponential",
    "logarithm",
    "tanh",
]

_BITS = 12
TICKS = 2**_BITS
"""Ticks to a power of two: entries of the table."""
EXP_ERROR = 2.0**-75
"""Relative error of `exponential`."""
LOG_ERROR = 2.0**-74
"""Absolute error of `logarithm`, beside 2^-97 relative."""
TANH_ERROR = 2.0**-74
"""Absolute error of `tanh`, and relative one of its derivative."""
LARGEST = 2.0**33
"""Ticks beyond which an argument's low part is too coarse for `exponential`."""
DEAD = 2.0**-900
"""An exponential below this, relative to a row's largest, counts as 0."""

_MAGIC = 1.5 * 2.0**52
_MAGIC_BITS = int(np.float64(_MAGIC).view(np.int64))


_precise = mpmath.MPContext()  # of our own: any thread may change the precision of mpmath's
_precise.prec = 200


def _nearest(x: Any, bits: int) -> float:
    """x to so many bits after the binary point."""
    return float(_precise.nint(_precise.ldexp(x, bits)) / 2**bits)


_tick = _precise.log(2) / TICKS
NATURAL = Pair.constant(_tick)
"""λ: how much of a natural exponent a tick is."""
TICK_OF_NATURAL = Pair.constant(1 / _tick)
"""1/λ: ticks of a natural exponent of 1."""
_TICK_HIGH = _nearest(_tick, 26)  # 14 bits, as 2^-13 < λ < 2^-12
_TICK_LOW = float(_tick - _TICK_HIGH)
_POWERS = [_precise.mpf(2) ** (_precise.mpf(j) / TICKS) for j in range(TICKS)]
_TABLE_HIGH = np.array([_nearest(power, 25) for power in _POWERS])
_TABLE_LOW = np.array(
    [float(power - high) for power, high in zip(_POWERS, _TABLE_HIGH.tolist(), strict=True)]
)
del _POWERS


def exponential(ticks: Pair, below: npt.NDArray[np.int64], *, work: Scratch) -> None:
    """Overwrite ticks with 2^((ticks - below) / 4096): relative error EXP_ERROR, for whole `below`.

    For |ticks| <= LARGEST, from below - 900 octaves on; what is smaller becomes anything.

    With N = the integer nearest to high, f = high - N exactly (|f| <= 1/2) and r = λ (f + low), the
    result is 2^((N - below) div 4096) · T · e^r, T = 2^((N - below) mod 4096 / 4096) = T1 + T2.
      λ = λ1 + λ2: λ1 of 14 bits, |λ2| <= 2^-27;
      f = f1 + f2: f1 a multiple of 2^-14, so that r1 = λ1 f1 is exact: 27 bits, below 2^-13.5;
      T1 of 26 bits, so that T1 r1 is exact; |T2| <= 2^-26.
    The rest is small, and one float64 holds enough of it. |low| <= u LARGEST = 2^-20, u = 2^-53:
      g = f2 + low <= 2^-14.9 and λ1 g <= 2^-27.4 round twice: 2^-79.4;
      λ2 (f1 + g) <= 2^-28 rounds three times: 2^-79.4;
      q = e^y - 1 - y <= 2^-27.9, y = λ (f + low) <= 2^-13.5: 12u of itself (3u in y count twice,
          and of its roundings the last three and a little), 2^-77.3; the terms left out, y^6 / 720,
          are below 2^-90;
      ρ, their sum, <= 2^-26.2, rounds twice: 2^-78.2. In all ρ errs by less than 2^-76.2.
    The result is T1 + T1 r1 + [T2 (1 + r1 + ρ) + T1 ρ]. Relative to T >= 1 the bracket, <= 2^-25.1,
    costs 2^-78.1 twice (its sum, and that with the low part), 2^-79, 2^-79.2 and T2's own 2^-80:
    less than 2^-76.3. Together less than 2^-75 = EXP_ERROR.
    """
    high, low = ticks
    with work.arrays(high.shape, 7) as (f, f1, r1, y, q, table, table_low):
        np.add(high, _MAGIC, out=y)
        np.subtract(y, _MAGIC, out=f)
        np.subtract(high, f, out=f)
        place, index = high.view(np.int64), q.view(np.int64)
        np.add(y.view(np.int64), (1023 << _BITS) - _MAGIC_BITS - below, out=place)
        np.bitwise_and(place, TICKS - 1, out=index)
        np.take(_TABLE_HIGH, index, out=table, mode="clip")  # "raise" would buffer `out`
        np.take(_TABLE_LOW, index, out=table_low, mode="clip")
        place >>= _BITS
        place <<= 52
        power = place.view(np.float64)

        np.add(f, _MAGIC * 2.0**-14, out=f1)
        f1 -= _MAGIC * 2.0**-14
        f -= f1
        f += low  # g
        np.multiply(f1, _TICK_HIGH, out=r1)
        f1 += f
        np.multiply(f1, NATURAL.high, out=y)
        np.multiply(y, 1 / 120, out=q)
        for coefficient in (1 / 24, 1 / 6, 1 / 2):
            q += coefficient
            q *= y
        q *= y
        f *= _TICK_HIGH
        f1 *= _TICK_LOW
        q += f
        q += f1  # ρ
        np.add(r1, q, out=y)
        y *= table_low
        y += table_low
        q *= table
        y += q  # the bracket
        r1 *= table
        np.add(table, r1, out=f)
        np.subtract(f, table, out=q)
        r1 -= q
        r1 += y
        np.add(f, r1, out=table)
        np.subtract(table, f, out=f)
        r1 -= f
        np.multiply(r1, power, out=low)
        high *= table  # the power stands in `high`


def logarithm(x: Pair) -> tuple[Float64Array, Pair]:
    """ln x as N λ + rest, N whole ticks and |rest| <= λ: absolute error of rest LOG_ERROR.

    For 2^-1000 <= x <= 2^1000. z = x 2^(-N / 4096), N nearest to 4096 log2 x as float64 knows it,
    lies within 2^-12.4 of 1; its relative error is that of `exponential` and of one product,
    EXP_ERROR + 2^-98. With d = z - 1, exactly a pair,
    ln z = d - d²/2 + d³/3 - d⁴/4 + d⁵/5 - …, of which d is kept as a pair, the rest (below
    2^-25.7) errs by less than 8u of it, 2^-75.7 (its last three roundings, 2u for y = d without its
    low part, and a little), the sum with the low part rounds once, 2^-78.7, and the terms from d⁷/7
    on are below 2^-89.
    """
    count = np.rint(np.log2(x.high) * TICKS)
    whole = count.astype(np.int64)
    octaves = whole >> _BITS
    steps = whole - (octaves << _BITS)
    zero = np.zeros_like(x.high)
    factor = Pair(-steps.astype(np.float64), np.zeros_like(x.high))
    exponential(factor, np.zeros_like(steps), work=Scratch())
    x = Pair(np.ldexp(x.high, -octaves), np.ldexp(x.low, -octaves))
    d = add(multiply(x, factor), Pair(zero - 1, zero))
    y = d.high
    series = -y / 6
    for coefficient in (1 / 5, -1 / 4, 1 / 3, -1 / 2):
        series = (series + coefficient) * y
    series *= y
    return count, fast_two_sum(d.high, d.low + series)


def tanh(z: Pair, *, work: Scratch) -> tuple[Pair, Pair]:
    """tanh z and 1 - tanh² z: absolute error TANH_ERROR, relative error TANH_ERROR.

    With E = e^(-2|z|): (1 - E) / (1 + E) and 4E / (1 + E)². The argument in ticks is a product
    of pairs, so E errs by ε = EXP_ERROR + 2|z| 2^-97 <= 2^-74.9 relatively; tanh by
    2 E / (1 + E)² <= 1/2 of ε absolutely, its derivative by (1 - E) / (1 + E) < 1 of ε relatively,
    and both by some 2^-97 more. |z| is clipped to 300: beyond, tanh is ±1 to 2^-864, and the
    derivative and what stands for it are below 2^-863: an error that is not relative, but far
    below the 2^-97 that `Gradients` allows for what the derivative is multiplied with.
    """
    sign = np.where(z.high < 0, -1.0, 1.0)
    far = np.abs(z.high) > 300
    size = Pair(np.where(far, 300.0, z.high * sign), np.where(far, 0.0, z.low * sign))
    factor = Pair(*(np.full_like(z.high, -2 * part) for part in TICK_OF_NATURAL))
    E = multiply(size, factor)
    exponential(E, np.zeros(z.high.shape, np.int64), work=work)
    one = Pair.of(np.ones_like(z.high))
    below, above = add(one, Pair(-E.high, -E.low)), add(one, E)
    value = divide(below, above)
    half = divide(E, above)
    slope = times(divide(half, above), 4.0)
    return Pair(value.high * sign, value.low * sign), slope
