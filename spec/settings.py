"""The option settings under which properties are asked: alone, and in the pairs that matter."""

from __future__ import annotations

__all__ = ["BROADCASTS", "PAIRS", "SINGLES", "without"]

SINGLES = (
    "",
    "causal:on",
    "window:sliding",
    "window:both",
    "mask:full",
    "mask:empty-rows",
    "bias:full",
    "bias:neg-inf",
    "softcap:tight",
    "sinks:normal",
    "alibi:standard",
    "key_lengths:ragged",
    "gqa:grouped",
)

BROADCASTS = (
    "mask:keys",
    "mask:heads",
    "mask:batch",
    "mask:two-dimensional",
    "bias:keys",
    "bias:heads",
    "bias:batch",
    "bias:two-dimensional",
)

# Real faults hide in pairs: a second option changes the route through the code.
PAIRS = (
    "causal:on+window:sliding",
    "causal:on+mask:full",
    "causal:on+bias:full",
    "causal:on+bias:neg-inf",
    "causal:on+softcap:tight",
    "causal:on+sinks:normal",
    "causal:on+alibi:standard",
    "causal:on+key_lengths:ragged",
    "causal:on+gqa:grouped",
    "window:sliding+mask:full",
    "window:sliding+bias:full",
    "window:sliding+sinks:normal",
    "window:sliding+gqa:grouped",
    "window:both+key_lengths:ragged",
    "mask:full+bias:neg-inf",
    "mask:full+softcap:tight",
    "mask:full+gqa:grouped",
    "mask:full+key_lengths:ragged",
    "bias:neg-inf+softcap:tight",
)


def without(*options: str, among: tuple[str, ...] = SINGLES) -> tuple[str, ...]:
    """The settings that name none of these options."""
    return tuple(s for s in among if not any(o in s for o in options))
