"""The properties of an attention implementation, by the codes that the claims' sources name."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ELSEWHERE", "PROPERTIES"]

PROPERTIES: Mapping[str, str] = {
    "KP1": "The weights of a row that sees a key are at least 0 and sum to 1.",
    "KP2": "Each output lies between the least and greatest visible value; one key gives its own.",
    "KP3": "Hidden keys have no weight and no influence, whatever they hold.",
    "KP4": "A row that sees no key has one documented answer, and no NaN.",
    "KP5": "Large scores do not overflow; a constant added to a row of scores changes nothing.",
    "KP6": "Without a mask, queries and keys may come in any order.",
    "KP7": "A causal row knows nothing of later tokens, gradients included.",
    "KP8": "What a mask's True means, and where the diagonal lies for Nq != Nk, is as declared.",
    "KP9": "The tiles' sizes do not show: ragged tails, Nq != Nk, Dv != D.",
    "KP10": "Parts of the keys, in any split and order, merge by their lse to the whole.",
    "KP11": "The scale is a factor of the scores.",
    "KP12": "The gradients are those of the definition.",
    "KP13": "What is invariant forward constrains the gradients: their sums and products.",
    "KP14": "Heads are independent: computed apart they give what they give together.",
    "KP15": "Grouped heads are repeated heads, and their gradients add up.",
    "KP16": "A cache gives what the whole gives: row by row, in chunks, in pages, padded.",
    "KP17": "A rotation common to queries and keys changes nothing.",
    "KP18": "A low-rank update merged into a weight is the update applied beside it.",
    "KP19": "A cache of the first and last keys is a mask.",
    "KP20": "A tiled kernel holds no n × n numbers.",
    "KP21": "Counted operations and bytes are the closed forms.",
    "KP22": "Results are within the declared arithmetic's bounds of the exact ones, in their type.",
    "KP23": "lse is the log of the sum of e^score, between the largest score and that plus log n.",
    "KP24": "Shapes are as declared: one token, one batch entry, broadcast masks and biases.",
    "KP25": "Values, keys and channels may be transformed as the definition allows.",
}

ELSEWHERE: Mapping[str, str] = {
    "KP18": "of weights, not of attention: spec/systems/adaptation.py",
    "KP21": "of frameworks' counters: benchmarks/costs.py",
}
"""What a function of q, k and v cannot be asked, and where it is shown."""
