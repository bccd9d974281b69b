"""What every call must keep, whatever it computes: the claims that are no statement of the spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CONTRACTS", "Contract"]


@dataclass(frozen=True)
class Contract:
    """A claim about calls: the row of the report that it stands in, and one sentence.

    needs: what a kernel must offer to be asked, as in `Claim.options`.
    """

    topic: str
    statement: str
    needs: tuple[str, ...] = ()


GRADIENTS = ("gradients",)

CONTRACTS: Mapping[str, Contract] = {
    "inputs-unchanged": Contract(
        "contract", "A call writes neither into an input nor into the memory around it."
    ),
    "inputs-unchanged-by-gradients": Contract(
        "contract", "A backward pass writes into no input, cotangent or memory around.", GRADIENTS
    ),
    "memory-grows-as-declared": Contract(
        "contract", "The forward pass takes as much more memory with n as declared."
    ),
    "out-beside-lse": Contract(
        "contract", "The output is right too where lse is asked for with it.", ("return_lse",)
    ),
    "out-beside-gradients": Contract(
        "contract", "The output is right too where gradients are asked for with it.", GRADIENTS
    ),
    "equal-operands": Contract("contract", "q, k and v may hold the same numbers."),
    "degenerate-sizes": Contract("contract", "Sizes of 0 and 1 give the exact result like others."),
    # -- layouts
    **{
        f"layout-{name}": Contract(
            "layouts",
            f"The memory layout of {name} alone does not change the output beyond rounding.",
            (name,) if name in ("mask", "bias") else (),
        )
        for name in ("q", "k", "v", "mask", "bias")
    },
    **{
        f"layout-{name}-gradients": Contract(
            "layouts",
            f"The memory layout of {name} alone does not change a gradient beyond rounding.",
            ((name,) if name in ("mask", "bias") else ()) + GRADIENTS,
        )
        for name in ("q", "k", "v", "mask", "bias", "dout")
    },
    "layout-packed": Contract("layouts", "q, k and v may be slices of one packed array."),
    "layout-packed-gradients": Contract(
        "layouts", "q, k and v may be slices of one packed array, for gradients too.", GRADIENTS
    ),
    # -- poison
    "hidden-nan": Contract(
        "poison", "NaN and Inf in slots that a row does not see are harmless to it, where claimed."
    ),
    "hidden-nan-gradients": Contract(
        "poison",
        "NaN and Inf in keys that no row sees reach no gradient, where claimed.",
        GRADIENTS,
    ),
    "hidden-extremes-gradients": Contract(
        "poison", "Extreme finite keys and values that no row sees reach no gradient.", GRADIENTS
    ),
    "hidden-bias": Contract("poison", "A bias where a row does not see has no effect.", ("bias",)),
    "hidden-bias-gradients": Contract(
        "poison", "A bias where a row does not see reaches no gradient.", ("bias", *GRADIENTS)
    ),
    "padding-is-not-read": Contract(
        "poison", "What stands beyond the lengths of queries and keys has no effect."
    ),
    "padding-is-not-read-gradients": Contract(
        "poison", "What stands beyond the lengths, cotangents too, reaches no gradient.", GRADIENTS
    ),
    "batch-position": Contract(
        "poison", "A batch entry alone gives what it gives at any place beside NaN entries."
    ),
    "batch-position-gradients": Contract(
        "poison", "So do the gradients of a batch entry beside NaN entries.", GRADIENTS
    ),
    "freed-memory": Contract("poison", "What freed memory holds does not reach the output."),
    "freed-memory-gradients": Contract(
        "poison", "What freed memory holds does not reach a gradient.", GRADIENTS
    ),
    # -- repetition
    "same-bits-again": Contract("repetition", "The same call gives the same bits, where declared."),
    "same-bits-again-lse": Contract(
        "repetition", "The same call gives the same bits of lse, where declared.", ("return_lse",)
    ),
    "same-bits-again-gradients": Contract(
        "repetition", "The same call gives the same bits of gradients, where declared.", GRADIENTS
    ),
    "eleven-calls": Contract("repetition", "The eleventh call gives what the first gave."),
    "other-values-between": Contract(
        "repetition", "A call with other values of the same shapes is right, and the next one."
    ),
    "other-shapes-between": Contract(
        "repetition", "A call with other shapes is right, and the next one with the first shapes."
    ),
    "other-options-between": Contract(
        "repetition", "A call without the options is right, and the next one with them."
    ),
    "forward-after-backward": Contract(
        "repetition", "A forward pass after a backward pass gives what it gave before.", GRADIENTS
    ),
    # -- cotangents
    "gradient-subsets": Contract(
        "cotangents", "A gradient asked for alone, or in pairs, is the one of all.", GRADIENTS
    ),
    "cotangent-scales": Contract(
        "cotangents", "A cotangent times a power of two scales every gradient.", GRADIENTS
    ),
    "one-hot-cotangent": Contract(
        "cotangents", "The gradients of a single number of the output are exact.", GRADIENTS
    ),
}
"""By claim, in the order of the report's topics."""
