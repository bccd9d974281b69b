"""The cases: which shapes, option settings and input families an implementation is asked.

A level draws from a bounded set of shapes, because compilers pay for every new one; values and
settings are free.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from attnspec.conformance.case import Case, Shape, has_gradients, parse_settings
from attnspec.conformance.contracts import CONTRACTS
from attnspec.conformance.inputs import FAMILIES
from attnspec.conformance.options import OPTIONS
from attnspec.oracle.problem import OUTPUTS
from attnspec.spec.claim import all_claims

__all__ = [
    "LEVELS",
    "chapter_of",
    "claim_cases",
    "gradient_cases",
    "needs",
    "reference_cases",
    "sources_of",
]

LEVELS = ("smoke", "standard", "full")

Turn = tuple[str, tuple[str, ...]]
"""The type that is asked, and all types under test: they share cases at level standard."""

CLAIMS = {claim.id: claim for claim in all_claims()}


SMALL = Shape(2, 2, 2, 33, 65, 40, 40)
WIDE = Shape(1, 2, 2, 128, 256, 64, 64)  # 8,192 elements a head: enough for a mean square
OPTION = Shape(2, 2, 2, 24, 40, 16, 16)
SQUARE = Shape(2, 2, 2, 33, 33, 16, 16)
TILED = Shape(1, 2, 2, 65, 513, 16, 16)  # every usual tile of rows and keys, and one more of each
TALL = Shape(1, 2, 2, 129, 65, 16, 16)  # more rows than keys, and than a tile of rows
DECODE = Shape(3, 3, 3, 1, 1025, 8, 8)  # one row and the keys of a cache; more heads than a pair

EXTREMES = Shape(1, 2, 2, 40, 257, 16, 16)  # causal rows do not see the last tile, of one key
EXTREME = (
    *("causal", "window:sliding", "mask:first-keys-hidden", "mask:empty-rows", "bias:neg-inf"),
    *("softcap:tight", "sinks:normal", "scale:negative", "key_lengths:ragged"),
)

TILE_EDGES = (
    *((1, 1), (1, 2), (2, 1), (1, 127), (1, 128), (1, 129), (15, 17), (16, 16), (17, 15)),
    *((31, 33), (32, 32), (33, 31), (63, 65), (64, 64), (65, 63), (127, 129), (128, 128)),
    *((129, 127), (255, 257), (256, 256), (257, 255), (0, 5), (5, 0)),
)
HALF_TILES = (48, 96, 192)  # keys: half of a last tile of 32, 64 and 128
HEAD_SIZES = ((1, 1), (3, 3), (8, 8), (80, 80), (96, 96), (127, 127), (128, 128), (129, 129))
LARGE_HEAD_SIZES = ((256, 256), (257, 257))
UNEQUAL_SIZES = ((32, 48), (64, 16), (24, 1))
FULL = Shape(1, 2, 2, 64, 128, 16, 16)  # rows and keys fill every usual tile
MANY = Shape(5, 9, 9, 3, 7, 8, 8)  # more entries and heads than other shapes have
SPECIALISED = ((64, 64), (96, 96), (128, 128), (256, 256), (192, 128))
"""Head sizes that kernels have code of their own for, options and all."""


def chapter_of(claim: str) -> str:
    """The chapter of the spec that a claim stands in, or the topic of a contract."""
    if claim in CONTRACTS:
        return CONTRACTS[claim].topic
    return CLAIMS[claim].check.__module__.rpartition(".")[2].replace("_", " ")


SOURCES = {
    "out": ("ch11.thm2", "KP22"),
    "lse": ("ext.lse", "KP23"),
    "dq": ("ch11.prop9", "KP12"),
    "dk": ("ch11.prop9", "KP12"),
    "dv": ("ch11.prop7", "KP12"),
    "dbias": ("ch11.prop8", "KP12"),
    "dsinks": ("ext.nullsink", "KP12"),
    "hidden-nan": ("ch11.def9", "KP3"),
    "memory-grows-as-declared": ("ch11.flash", "lesson3.sec7.memory", "KP20"),
}
"""What outputs and contracts go back to; a claim of the spec says so itself."""


def sources_of(claim: str) -> tuple[str, ...]:
    """The statements that a kernel violates where it fails the claim; none for a bare contract."""
    return CLAIMS[claim].sources if claim in CLAIMS else SOURCES.get(claim, ())


def needs(claim: str) -> tuple[str, ...]:
    """What a kernel must offer for a claim to be asked: options, a gradient, or "gradients"."""
    if claim in CLAIMS:
        return CLAIMS[claim].options
    if claim in CONTRACTS:
        return CONTRACTS[claim].needs
    needed = {"lse": ("return_lse",)} | {name: (name,) for name in OUTPUTS if name[0] == "d"}
    return needed.get(claim, ())


def reference_cases(claim: str, *, level: str, options: Collection[str], turn: Turn) -> list[Case]:
    """The cases that forward and lse are compared with the oracle on, for claimed options."""
    parts: Iterable[Iterator[Case]] = (_families(level), _lengths(level, options), _sizes(level))
    found = [*itertools.chain(*parts), *_settings(level, options)]
    found += [*_tiles(level, options, turn), *_extremes(level, options, turn)]
    found += _triples(level, options, turn)
    found += [*_specialised(level, options, turn), *_walks(level, options, turn)]
    found += _long(options) if level == "full" else []
    return list(dict.fromkeys(found))


def gradient_cases(claim: str, *, level: str, options: Collection[str], turn: Turn) -> list[Case]:
    """The cases that gradients are compared on.

    dbias and dsinks are asked where the problem has a bias or sinks.
    """
    found = reference_cases(claim, level=level, options=options, turn=turn)
    found = [case for case in found if has_gradients(case)]
    needed = {"dbias": "bias", "dsinks": "sinks"}.get(claim)
    return [case for case in found if needed is None or needed in dict(case.settings)]


def claim_cases(claim: str, *, level: str, options: Collection[str], turn: Turn) -> list[Case]:
    """The problems that a claim's property starts from: its own settings, where claimed.

    At level standard the types share them: each takes the first two, and its turn of the others,
    since what they show (who sees whom, which head reads which) depends little on the type.
    """
    record = CLAIMS[claim]
    shape = SQUARE if record.self_attention else OPTION
    settings = [parse_settings(text) for text in record.settings]
    settings = [chosen for chosen in settings if {name for name, _ in chosen} <= set(options)]
    if level == "smoke":
        settings = settings[:2]
    if level == "standard":
        settings = [*settings[:2], *_share(settings[2:], turn)]
    families = ("normal", "large", "needle") if level == "full" else ("normal",)
    return [Case(family, shape, chosen) for family in families for chosen in settings]


def _families(level: str) -> Iterator[Case]:
    for name, family in FAMILIES.items():
        yield Case(name, SMALL)
        if level != "smoke" and family.generic:
            yield Case(name, WIDE)
        if level == "full":
            yield Case(name, Shape(1, 1, 1, 65, 1025, 128, 128))


def _lengths(level: str, options: Collection[str]) -> Iterator[Case]:
    edges = TILE_EDGES if level != "smoke" else TILE_EDGES[5:9]
    for queries, keys in edges:
        shape = Shape(1, 2, 2, queries, keys, 16, 16)
        yield Case("needle", shape)
        if "causal" in options:
            yield Case("normal", shape, (("causal", "on"),))
    if level != "smoke":
        yield Case("positive", Shape(1, 1, 1, 8, 2048, 32, 32))
        yield Case("uniform", Shape(1, 1, 1, 4, 4099, 16, 16))
        for keys in HALF_TILES:
            yield Case("negative", Shape(1, 2, 2, 9, keys, 16, 16))
    if level == "full":
        yield Case("uniform", Shape(1, 1, 1, 2, 65536, 8, 8))
        yield Case("positive", Shape(1, 1, 1, 2, 65536, 8, 8))
        for queries, keys in itertools.product((1, 31, 32, 33, 127, 129), repeat=2):
            yield Case("normal", Shape(1, 1, 1, queries, keys, 64, 64))


def _sizes(level: str) -> Iterator[Case]:
    sizes = {
        "smoke": (*HEAD_SIZES[-1:], *UNEQUAL_SIZES[:1]),
        "standard": (*HEAD_SIZES, *LARGE_HEAD_SIZES, *UNEQUAL_SIZES),
        "full": (*HEAD_SIZES, *LARGE_HEAD_SIZES, *UNEQUAL_SIZES),
    }
    for size, value_size in sizes[level]:
        keys = 149 if max(size, value_size) > 64 else 21  # large heads: over several tiles
        yield Case("normal", Shape(1, 2, 2, 9, keys, size, value_size))


def _settings(level: str, options: Collection[str]) -> Iterator[Case]:
    """Every variant of every claimed option, alone; then every pair of options."""
    claimed = [option for option in OPTIONS if option in options]
    for option in claimed:
        variants = list(OPTIONS[option])
        for variant in variants if level != "smoke" else variants[:1]:
            yield Case("normal", OPTION, ((option, variant),))
        if level != "smoke":  # rows and keys cannot be told apart by their number
            yield Case("normal", SQUARE, ((option, variants[0]),))
    if level == "smoke":
        return
    for number, pair in enumerate(itertools.combinations(claimed, 2)):
        for first, second in _variants(*pair, number=number, every=level == "full"):
            settings = ((pair[0], first), (pair[1], second))
            yield Case("normal", OPTION, settings)
            if level == "full":
                yield Case("large", SQUARE, settings)


def _tiles(level: str, options: Collection[str], turn: Turn) -> Iterator[Case]:
    """Every claimed option beyond the first tile of keys; at level standard types share variants.

    `OPTION` fits in one tile of most kernels: an index that starts again in each tile, or a tile
    skipped that should not be, shows here alone.
    """
    if level == "standard":
        dtype, dtypes = turn
        dtypes = tuple(name for name in dtypes if name != "float64") or dtypes  # the slow oracle
        if dtype not in dtypes:
            return
        turn = (dtype, dtypes)
    for option in OPTIONS if level != "smoke" else ():
        variants = list(OPTIONS[option]) if option in options else []
        shared = _share(variants, turn) if level == "standard" else variants
        for variant in shared or variants[:1]:
            for shape in (TILED, TALL, DECODE):
                yield Case("normal", shape, ((option, variant),))


def _extremes(level: str, options: Collection[str], turn: Turn) -> Iterator[Case]:
    """Large, low and saturated scores with options, over several tiles; types share the cases.

    A maximum that is wrong, or a stand-in for -inf, shows where all that a row sees is far away.
    """
    families = ("large", "negative", "saturated", "abyss") if level != "smoke" else ()
    chosen = [s for s in map(parse_settings, EXTREME) if {name for name, _ in s} <= set(options)]
    cases = [Case(family, EXTREMES, settings) for family in families for settings in chosen]
    yield from _share(cases, turn) if level == "standard" else cases


def _triples(level: str, options: Collection[str], turn: Turn) -> Iterator[Case]:
    """Every three claimed options together, in one variant each; types share as in `_tiles`."""
    claimed = [option for option in OPTIONS if option in options] if level != "smoke" else []
    triples = list(enumerate(itertools.combinations(claimed, 3)))
    for number, triple in _share(triples, turn) if level == "standard" else triples:
        variants = [list(OPTIONS[option]) for option in triple]
        chosen = [names[number % len(names)] for names in variants]
        yield Case("normal", OPTION, tuple(zip(triple, chosen, strict=True)))


def _specialised(level: str, options: Collection[str], turn: Turn) -> Iterator[Case]:
    """Every claimed option at `SPECIALISED` head sizes; types share the cases."""
    claimed = [option for option in OPTIONS if option in options] if level != "smoke" else []
    every = list(itertools.product(claimed, SPECIALISED))
    for option, sizes in _share(every, turn) if level == "standard" else every:
        settings = ((option, next(iter(OPTIONS[option]))),)
        yield Case("normal", Shape(1, 2, 2, 9, 21, *sizes), settings)


HIDING = ("causal", "window", "mask", "key_lengths", "query_lengths")
CACHED = ("gqa", "key_lengths")


def _walks(level: str, options: Collection[str], turn: Turn) -> Iterator[Case]:
    """Pairs of options that decide where a kernel begins and ends; types share the cases.

    Which tiles it visits, in `TILED`; how it reads a cache of ragged lengths, or one that groups
    of heads share, for a single row, in `DECODE`. And every option in `FULL` and `MANY`.
    """
    claimed = [option for option in OPTIONS if option in options] if level != "smoke" else []
    hiding = [option for option in HIDING if option in claimed]
    walks: list[tuple[Shape, tuple[str, ...]]] = [
        *((TILED, pair) for pair in itertools.combinations(hiding, 2)),
        *((DECODE, (a, b)) for a in claimed for b in CACHED if b in claimed and a != b),
        *((shape, (option,)) for option in claimed for shape in (FULL, MANY)),
    ]
    every = list(enumerate(walks))
    for number, (shape, names) in _share(every, turn) if level == "standard" else every:
        turned = number if len(names) > 1 else 0
        chosen = [list(OPTIONS[option]) for option in names]
        settings = [(o, v[turned % len(v)]) for o, v in zip(names, chosen, strict=True)]
        yield Case("normal", shape, tuple(settings))


LONG = {  # queries, keys and head size: enough for one of everything, and a materialised S < 0.5 GB
    "rows": Shape(1, 1, 1, 2, 2**17, 64, 64),
    "wide": Shape(1, 1, 1, 2, 2**17, 128, 128),
    "heads": Shape(1, 2, 2, 1, 2**17 + 29, 64, 64),  # a last tile of its own length
    "block": Shape(1, 1, 1, 385, 2**17, 64, 64),
    "million": Shape(1, 1, 1, 2, 2**20, 64, 64),  # forward alone (see `case.GRADIENT_NUMBERS`)
    "narrow": Shape(1, 1, 1, 2, 2**20, 16, 16),
}


def _long(options: Collection[str]) -> Iterator[Case]:
    """A few rows against 128k and 1M keys, and a block of rows of which some are judged."""
    for shape, family, text in (
        ("rows", "long-normal", ""),
        ("wide", "long-sharp", ""),
        ("rows", "long-positive", ""),
        ("rows", "long-uniform", ""),
        ("rows", "long-rising", ""),
        ("heads", "long-needle", "gqa:single"),
        ("rows", "long-sharp", "window:long"),
        ("rows", "long-uniform", "key_lengths:long"),
        ("rows", "long-needle", "mask:keys"),
        ("block", "long-needle", "causal"),
        ("block", "long-sharp", "causal"),
        ("million", "long-needle", ""),
        ("million", "long-uniform", ""),
        ("narrow", "long-sharp", ""),
    ):
        settings = parse_settings(text)
        if {name for name, _ in settings} <= set(options):
            yield Case(family, LONG[shape], settings)


def _share(things: list[Any], turn: Turn) -> list[Any]:
    """The type's share of what all types ask together."""
    dtype, dtypes = turn
    return things[dtypes.index(dtype) :: len(dtypes)]


def _variants(first: str, second: str, *, number: int, every: bool) -> Iterator[tuple[str, str]]:
    """Variants of a pair of options: all of them, or three that move on from pair to pair."""
    left, right = list(OPTIONS[first]), list(OPTIONS[second])
    if every:
        yield from itertools.product(left, right)
        return
    for turn in range(3 * number, 3 * number + 3):
        yield left[turn % len(left)], right[turn % len(right)]
