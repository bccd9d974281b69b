"""One case: its name, and the problem that is drawn from it.

A case's id is `family/shape/settings`. Its numbers depend on that id, the type and the seed
alone, so any case can be drawn by itself, at any level.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from attnspec.conformance.inputs import FAMILIES, Family
from attnspec.conformance.judge import RMS_ELEMENTS
from attnspec.conformance.long_inputs import LONG_FAMILIES, LONG_VARIANTS, judged_rows
from attnspec.conformance.options import OPTIONS, Variant
from attnspec.oracle.formats import FORMATS, Format
from attnspec.oracle.problem import Diagonal, Problem

__all__ = [
    "Case",
    "Settings",
    "Shape",
    "draw",
    "has_gradients",
    "is_generic",
    "parse_settings",
    "rows_of",
]

Settings = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Shape:
    """The sizes of a problem; written `b2h4g2q19k37d32v32` in ids."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    size: int
    value_size: int

    def __str__(self) -> str:
        return (
            f"b{self.batch}h{self.heads}g{self.kv_heads}"
            f"q{self.queries}k{self.keys}d{self.size}v{self.value_size}"
        )

    @classmethod
    def parse(cls, text: str) -> Shape:
        """The inverse of `str`."""
        return cls(*(int(number) for number in re.findall(r"\d+", text)))


@dataclass(frozen=True)
class Case:
    """One problem to be drawn: an input family, a shape and option settings."""

    family: str
    shape: Shape
    settings: Settings = ()

    @property
    def id(self) -> str:
        """The case as it stands in test ids and reports."""
        chosen = "+".join(f"{option}:{variant}" for option, variant in self.settings)
        return f"{self.family}/{self.shape}/{chosen or 'plain'}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """The inverse of `id`."""
        family, shape, settings = text.split("/")
        chosen = () if settings == "plain" else parse_settings(settings)
        return cls(family, Shape.parse(shape), chosen)

    @property
    def is_long(self) -> bool:
        """Whether it is of the long-context families, of which some rows are judged."""
        return self.family in LONG_FAMILIES


def parse_settings(text: str) -> Settings:
    """`causal+bias:full` as (("causal", "on"), ("bias", "full"))."""
    pairs = (word.partition(":") for word in text.split("+") if word)
    return tuple((option, variant or "on") for option, _, variant in pairs)


# -- what a case is good for -------------------------------------------------------------------

WITHOUT_GRADIENTS = ("huge", "tiny")
"""Families whose products with a unit cotangent overflow or underflow, legitimately."""

GRADIENT_NUMBERS = 2**24
"""Numbers in k, or in v, from which on gradients are not asked: the tolerance of dk and dv works
with some thirty float64 arrays of that size, 4 GB."""

STRUCTURED_SETTINGS = {("scale", "zero"), ("bias", "finite-minimum"), ("bias", "far-below")}
"""Settings that make the weights equal or the scores huge, whatever the inputs."""


def has_gradients(case: Case) -> bool:
    """Whether gradients of the case are asked at all."""
    shape = _with_heads(case)
    numbers = shape.batch * shape.kv_heads * shape.keys * max(shape.size, shape.value_size)
    return case.family not in WITHOUT_GRADIENTS and numbers <= GRADIENT_NUMBERS


def is_generic(case: Case) -> bool:
    """Whether the roundings that the case causes are independent (see `inputs`).

    One row's errors are in every number of dk and dv: where these are enough for a mean square,
    it has nothing to average.
    """
    elements = case.shape.keys * max(case.shape.size, case.shape.value_size)
    lone_row = case.shape.queries == 1 and elements >= RMS_ELEMENTS
    structured = not STRUCTURED_SETTINGS.isdisjoint(case.settings)
    return _family(case).generic and not structured and not lone_row


def rows_of(case: Case, *, seed: int) -> tuple[int, ...] | None:
    """The query rows that are judged; None for all. dk and dv are then those rows' share."""
    if not case.is_long:
        return None
    rng = np.random.default_rng([seed, zlib.crc32(case.id.encode())])
    return judged_rows(case.shape.queries, rng)


def _family(case: Case) -> Family:
    return LONG_FAMILIES[case.family] if case.is_long else FAMILIES[case.family]


# -- drawing -----------------------------------------------------------------------------------


def draw(case: Case, *, dtype: str, diagonal: Diagonal, seed: int) -> Problem:
    """The problem of a case, in the type under test, with a unit-scale cotangent `dout`.

    `dout` is 0 in rows that are not judged. The last problems drawn are kept, and returned again.
    """
    if not case.is_long:
        return _draw(case, dtype, diagonal, seed)
    if not any(option in DIAGONAL_OPTIONS for option, _ in case.settings):
        diagonal = "bottom-right"  # of no account, and kernels that align otherwise share it
    return _draw_long(case, dtype, diagonal, seed)


DIAGONAL_OPTIONS = ("causal", "window", "alibi")


def _drawn(case: Case, dtype: str, diagonal: Diagonal, seed: int) -> Problem:
    """Numbers are drawn in float64; a million keys' in float32, for a third of time and memory."""
    form, shape = FORMATS[dtype], _with_heads(case)
    rng = np.random.default_rng([seed, zlib.crc32(f"{dtype}/{case.id}".encode())])
    real = np.float32 if case.is_long else np.float64
    queries = (shape.batch, shape.heads, shape.queries)
    keys = (shape.batch, shape.kv_heads, shape.keys)
    normal = (
        rng.standard_normal((*queries, shape.size), real),
        rng.standard_normal((*keys, shape.size), real),
        rng.standard_normal((*keys, shape.value_size), real),
    )
    q, k, v = (_stored(x, form) for x in _family(case).draw(rng, form, normal))
    dout = _stored(rng.standard_normal((*queries, shape.value_size), real), form)
    rows = rows_of(case, seed=seed)
    if rows is not None:
        dout[:, :, np.setdiff1d(np.arange(shape.queries), rows)] = 0
    fields: dict[str, Any] = {"scale": shape.size**-0.5}
    full = (shape.batch, shape.heads, shape.queries, shape.keys)
    for option, variant in case.settings:
        fields |= _variant(option, variant)(rng, full, form)
    return Problem(q=q, k=k, v=v, dout=dout, diagonal=diagonal, **fields)


_draw = lru_cache(maxsize=16)(_drawn)
_draw_long = lru_cache(maxsize=2)(_drawn)  # kernels align the diagonal in two ways; they are large


def _stored(x: npt.NDArray[Any], form: Format) -> npt.NDArray[Any]:
    """Rounded once: from float32, unlike from float64, every `astype` does so."""
    return x.astype(form.dtype) if x.dtype == np.float32 else form.round(x)


def _variant(option: str, variant: str) -> Variant:
    return (OPTIONS[option] | LONG_VARIANTS.get(option, {}))[variant]


def _with_heads(case: Case) -> Shape:
    """Query heads for each key head: three (two is halving) or eight; or all share one."""
    chosen = dict(case.settings).get("gqa")
    if chosen in ("grouped", "eight"):
        return replace(case.shape, heads=case.shape.kv_heads * (3 if chosen == "grouped" else 8))
    return replace(case.shape, kv_heads=1) if chosen else case.shape
