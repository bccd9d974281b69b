"""Streams: a window over the last tokens, with the first ones kept as sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np

from attnspec.spec.evidence.binary import attention, causal, integers, same
from attnspec.spec.evidence.statement import Check, Statement, require
from attnspec.spec.systems.positions import rotated

__all__ = ["STATEMENTS"]

SINKS, WINDOW, TOKENS = 2, 3, 9
NAN = float("nan")


# -- A ring of the last tokens --------------------------------------------------------------------


def seen(count: int, *, sinks: int, window: int) -> Any:
    """(n, n): the last `window` tokens, self included, and the first `sinks`."""
    i, j = np.ogrid[:count, :count]
    return np.asarray((j <= i) & ((i - j < window) | (j < sinks)))


class Ring:
    """Slots for the sinks and for the last `window` tokens; the oldest is overwritten."""

    def __init__(self, sinks: int, window: int) -> None:
        self.sinks, self.window = sinks, window
        self.slots: dict[int, int] = {}

    def slot(self, token: int) -> int:
        """Where a token goes."""
        return token if token < self.sinks else self.sinks + (token - self.sinks) % self.window

    def kept(self, token: int) -> list[int]:
        """The tokens in the cache once `token` is in it, in the order of the slots."""
        self.slots[self.slot(token)] = token
        return list(self.slots.values())


class Full(Ring):
    """Stops taking tokens when it is full."""

    def kept(self, token: int) -> list[int]:
        """The first tokens, for ever."""
        if len(self.slots) < self.sinks + self.window:
            return super().kept(token)
        return list(self.slots.values())


class Sinkless(Ring):
    """Overwrites the sinks as well."""

    def slot(self, token: int) -> int:
        """A ring of all slots."""
        return token % (self.sinks + self.window)


def ring_is_a_mask(kind: type[Ring], *, sinks: int, window: int) -> str:
    """Token by token over the ring = attention under the mask; what left it may be NaN."""
    q, k, v = (integers((TOKENS, 2), seed=s) for s in (1, 2, 3))
    whole = attention(q, k, v, visible=seen(TOKENS, sinks=sinks, window=window))
    ring = kind(sinks, window)
    for token in range(TOKENS):
        kept = ring.kept(token)
        require(len(kept) <= sinks + window, f"{len(kept)} tokens are kept")
        gone = [j for j in range(TOKENS) if j not in kept]
        k_held, v_held = k.copy(), v.copy()
        k_held[gone], v_held[gone] = NAN, NAN
        out = attention(q[token : token + 1], k_held[kept], v_held[kept])[0]
        require(same(out, whole[token]), f"token {token} differs from its masked row")
    return f"{TOKENS} tokens through {sinks} + {window} slots, evicted ones NaN, exactly"


# -- Rotations by the place in the cache ----------------------------------------------------------


def by_slot(kept: list[int], token: int) -> tuple[list[int], int]:
    """Positions 0, 1, 2 … of the tokens that are kept, and of the query at their end."""
    return list(range(len(kept))), len(kept) - 1


def by_time(kept: list[int], token: int) -> tuple[list[int], int]:
    """Positions in the text."""
    return kept, token


Places = Callable[[list[int], int], tuple[list[int], int]]


def streamed(places: Places, token: int) -> list[Any]:
    """The weights of `token` over the sinks and the window, under rotated queries and keys."""
    q, k = integers((TOKENS, 2), seed=4), integers((TOKENS, 2), seed=5)
    kept = [j for j in range(token + 1) if j < SINKS or token - j < WINDOW]
    at, here = places(kept, token)
    scores = (rotated(q[token : token + 1], [here]) @ rotated(k[kept], at).T)[0]
    powers = [mpmath.exp(mpmath.mpf(s.numerator) / s.denominator) for s in scores]
    return [power / mpmath.fsum(powers) for power in powers]


def parts_from_the_mask_at_eviction(places: Places) -> str:
    """Equal to positions in the text up to token s + w - 1, and different from token s + w on."""
    with mpmath.workdps(40):
        for token in range(TOKENS):
            pairs = zip(streamed(places, token), streamed(by_time, token), strict=True)
            gap = max(abs(x - y) for x, y in pairs)
            full = token < SINKS + WINDOW
            require((gap < mpmath.mpf(10) ** -35) == full, f"token {token} differs by {gap}")
    return f"s = {SINKS}, w = {WINDOW}: tokens 0..4 agree to 35 digits, tokens 5..8 do not"


def first_difference() -> str:
    """The first token after an eviction."""
    with mpmath.workdps(40):
        pairs = zip(
            streamed(by_slot, SINKS + WINDOW), streamed(by_time, SINKS + WINDOW), strict=True
        )
        gap = max(abs(x - y) for x, y in pairs)
        require(gap > 0.01, f"the weights differ by {gap}")
        return f"token {SINKS + WINDOW}: weights differ by {mpmath.nstr(gap, 6)}"


# -- Layers of windows ----------------------------------------------------------------------------


def reach(layers: int, window: int) -> int:
    """Tokens that one output depends on, itself included."""
    return layers * (window - 1) + 1


def windows_stack(closed_form: Callable[[int, int], int]) -> str:
    """Paths through L masks, counted: how many tokens the last of 40 depends on."""
    for window in range(1, 6):
        step = seen(40, sinks=0, window=window)
        paths = np.eye(40, dtype=bool)
        for layers in range(1, 7):
            paths = paths @ step
            found = int(paths[-1].sum())
            claimed = closed_form(layers, window)
            require(found == claimed, f"L = {layers}, w = {window}: {found} tokens, not {claimed}")
    require((seen(9, sinks=0, window=9) == causal(9)).all(), "a window of n is not causal")
    return "w = 1..5, L = 1..6 on 40 tokens; Mistral's w = 4096, L = 32 reach 131041"


def short_text() -> str:
    """Near the start there are fewer tokens than the window reaches."""
    found = int(seen(4, sinks=0, window=3)[0].sum())
    require(found == 1, f"{found} tokens")
    return "w = 3: the first token of a text sees 1 token, not 3"


def sinks_out_of_window() -> str:
    """Without sinks a late token's weight on the first token is 0; with them it is not."""
    without, kept = (seen(TOKENS, sinks=s, window=WINDOW)[-1, 0] for s in (0, SINKS))
    require(kept and not without, "the first token is seen without sinks")
    q, k, v = (integers((TOKENS, 2), seed=s) for s in (1, 2, 3))
    rows = [attention(q, k, v, visible=seen(TOKENS, sinks=s, window=WINDOW))[-1] for s in (0, 2)]
    require(not same(*rows), "the sinks change nothing")
    return "the last of 9 tokens: a window alone gives another row than sinks and window"


def _ring(kind: type[Ring]) -> str:
    return ring_is_a_mask(kind, sinks=SINKS, window=WINDOW)


STATEMENTS = (
    Statement(
        id="sys.sink",
        where="Xiao et al. 2023; the third document, attention sinks",
        says="The first tokens are kept beside the last ones: a cache of s + w slots is attention "
        "under a mask, and evicted tokens have no influence.",
        formula=r"j \text{ visible to } i \iff j \le i \text{ and } (i - j < w \text{ or } j < s)",
        verdict="conditional",
        hypotheses={
            "no code of positions, or one of places in the text": first_difference,
            "the sinks stay": sinks_out_of_window,
        },
        check=Check(
            run=_ring,
            subject=Ring,
            mutations={"stops when it is full": Full, "overwrites the sinks": Sinkless},
        ),
    ),
    Statement(
        id="sys.streamingllm",
        where="Xiao et al. 2023; the third document, attention sinks (StreamingLLM)",
        says="Streaming over sinks and a window is said to give an infinite context.",
        formula=r"\text{positions in the cache: } 0, 1, \ldots, s + w - 1 "
        r"\text{ for all } t \ge s + w - 1",
        verdict="imprecise",
        exact="Memory stays at s + w tokens and the text may go on for ever, but the context is "
        "those s + w tokens. With rotations by the place in the cache it equals masked "
        "attention with rotations by the place in the text up to token s + w - 1 only.",
        check=Check(
            run=parts_from_the_mask_at_eviction,
            subject=by_slot,
            mutations={
                "positions in the text": by_time,
                "counted from the last": lambda kept, token: (
                    [token - j for j in kept],
                    0,
                ),
            },
        ),
    ),
    Statement(
        id="sys.window",
        where="Beltagy et al. 2020, Jiang et al. 2023 (Mistral, w = 4096); the third document "
        "names Mistral, for its shared heads",
        says="Each token reads the last w tokens, itself included; L layers reach L(w - 1) + 1.",
        formula=r"\mathrm{reach}(L, w) = L (w - 1) + 1",
        verdict="conditional",
        hypotheses={"the text goes back that far": short_text},
        check=Check(
            run=windows_stack,
            subject=reach,
            mutations={
                "w a layer": lambda layers, window: layers * window,
                "one layer": lambda layers, window: window,
            },
        ),
        properties=("window-hides-both-sides", "wide-window-hides-nothing"),
    ),
)
