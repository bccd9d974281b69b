from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnspec.oracle.formats import FORMATS, Format, format_of

# digits, exponent of the smallest normal number, exponent of the largest (IEEE 754-2019, table 3.5;
# bfloat16 is binary32 cut to 16 bits).
PARAMETERS = {
    "bfloat16": (8, -126, 127),
    "float16": (11, -14, 15),
    "float32": (24, -126, 127),
    "float64": (53, -1022, 1023),
}


def nearest(x: float, name: str) -> float:
    """Round to nearest, ties to even, in exact rational arithmetic."""
    digits, exponent_min, exponent_max = PARAMETERS[name]
    if x == 0 or not math.isfinite(x):
        return x
    size = Fraction(abs(x))
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent  # now 2^exponent <= size < 2^(exponent + 1)
    ulp = Fraction(2) ** (max(exponent, exponent_min) - digits + 1)
    rounded = round(size / ulp) * ulp  # Python rounds a Fraction's ties to even
    finite = rounded < Fraction(2) ** (exponent_max + 1)
    return math.copysign(float(rounded) if finite else math.inf, x)


def bits(x: float) -> bytes:
    return b"nan" if math.isnan(x) else struct.pack(">d", x)


@st.composite
def near_ties(draw: st.DrawFn) -> tuple[str, float]:
    """A multiple of half an ulp of the format, and sometimes a float64's least step from it."""
    name = draw(st.sampled_from(sorted(PARAMETERS)))
    digits, exponent_min, exponent_max = PARAMETERS[name]
    halves = draw(st.integers(0, 2 ** (digits + 1) + 2))
    half = draw(st.integers(exponent_min - digits, exponent_max - digits))
    x = math.ldexp(halves, half) * draw(st.sampled_from((1, -1)))
    return name, math.nextafter(x, draw(st.sampled_from((x, math.inf, -math.inf))))


@settings(derandomize=True, max_examples=1000, deadline=None)
@given(near_ties())
@example(("bfloat16", 1 + 2.0**-8 + 2.0**-40))  # through float32 this would be a tie, and give 1
@example(("bfloat16", 2.0**-134))  # half the least subnormal: to even, which is 0
@example(("bfloat16", math.nextafter(2.0**-134, 1)))
@example(("bfloat16", 2.0**127 * (2 - 2.0**-8)))  # half an ulp beyond the largest: to inf
@example(("bfloat16", math.nextafter(2.0**127 * (2 - 2.0**-8), 0)))
@example(("float16", math.nextafter(65520.0, 0)))
def test_rounding_is_to_nearest_even_and_once(case: tuple[str, float]) -> None:
    name, x = case
    assert bits(float(FORMATS[name].round(x))) == bits(nearest(x, name))


@settings(derandomize=True, max_examples=500, deadline=None)
@given(st.sampled_from(sorted(PARAMETERS)), st.floats())
@example("bfloat16", math.inf)
@example("bfloat16", -math.inf)
@example("bfloat16", math.nan)
@example("bfloat16", -0.0)
@example("bfloat16", float(np.finfo(np.float64).max))
@example("bfloat16", 5e-324)
@pytest.mark.filterwarnings("error")
def test_any_float64_is_rounded_to_nearest(name: str, x: float) -> None:
    assert bits(float(FORMATS[name].round(x))) == bits(nearest(x, name))


@pytest.mark.parametrize("format_", FORMATS.values(), ids=str)
def test_the_constants_are_those_of_the_format(format_: Format) -> None:
    digits, exponent_min, exponent_max = PARAMETERS[format_.name]
    assert (format_.digits, format_.exponent_min) == (digits, exponent_min)
    assert Fraction(format_.largest) == 2**exponent_max * (2 - Fraction(2) ** (1 - digits))
    assert format_.unit_roundoff == 2.0**-digits
    assert format_.smallest_normal == 2.0**exponent_min
    assert format_.smallest_subnormal == math.ldexp(1.0, exponent_min - digits + 1)
    assert format_of(format_.dtype) is format_


def test_arrays_keep_their_shape_and_get_the_dtype() -> None:
    rounded = FORMATS["bfloat16"].round(np.ones((2, 3)))
    assert (rounded.shape, rounded.dtype.name) == ((2, 3), "bfloat16")


def test_an_unsupported_dtype_is_named_with_the_ones_that_are() -> None:
    with pytest.raises(TypeError, match="int32 is not supported; expected one of bfloat16"):
        format_of(np.int32)
