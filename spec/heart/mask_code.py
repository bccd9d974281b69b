"""The NumPy listing behind a mask of -1e9: what is hidden, what True means, and number types."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from attnspec.spec.evidence.statement import Check, Statement, require
from attnspec.spec.heart import listings

__all__ = ["STATEMENTS"]

CLOSE = 1e-13
NUMPY_2 = int(np.__version__.partition(".")[0]) >= 2
Q, K, V = listings.inputs((2, 6, 4), (2, 6, 4), (2, 6, 3), seed=1)


# -- a mask of -1e9 -------------------------------------------------------------------------------


def one_row(visible: float, fill: float) -> Any:
    """Weights of a hidden and a visible key of the given score."""
    hidden = np.array([[[True, False]]])
    q, k = np.ones((1, 1, 1)), np.array([[[0.0], [visible]]])
    return listings.attention(q, k, np.ones((1, 2, 1)), hidden, fill=fill)[1][0, 0]


def hides_and_fails(fill: float) -> str:
    """Ordinary scores, nothing visible, visible scores below -1e9, and where underflow begins."""
    with np.errstate(invalid="ignore"):
        require(one_row(5.0, fill)[0] == 0, "the hidden key has weight beside ordinary scores")
        every = np.ones((2, 6, 6), bool)
        out, weights = listings.attention(Q, K, V, every, fill=fill)
        require((weights == 1 / 6).all(), "with nothing visible, the weights are not uniform")
        require(abs(out - V.mean(1, keepdims=True)).max() < CLOSE, "nor the output the plain mean")
        require(one_row(-1e10, fill)[0] == 1, "visible scores of -1e10 still win")
        require(one_row(-1e9 + 745, fill)[0] > 0, "745 above the fill is already exact")
        require(one_row(-1e9 + 746, fill)[0] == 0, "746 above the fill is not yet exact")
    return (
        "hidden weight 0 from 746 above -1e9, positive at 745; nothing visible: 1/6 each and the "
        "mean of hidden values; visible scores of -1e10: the hidden key takes weight 1"
    )


def becomes_infinite(kind: Any) -> str:
    """-1e9 as a number of this type."""
    with np.errstate(over="ignore", invalid="ignore"):
        fill = np.array(-1e9).astype(kind)
        row = np.full(3, fill).astype(np.float32)
        empty = listings.stable_softmax(row)
    require(np.isneginf(row).all(), f"-1e9 is stored as {float(row[0]):.8g}")
    require(np.isnan(empty).all(), "a row of it has weights")
    stored = float(np.array(-1e9).astype(ml_dtypes.bfloat16).astype(np.float32))
    return f"float16 stores -1e9 as -inf, and a row of it is NaN; bfloat16 as {stored:.5g}"


def sums_to_one(weights: Any) -> str:
    """Visible rows and a row that sees nothing."""
    hidden = listings.later(6)[None].repeat(2, 0)
    hidden[0, 2] = True
    sums = weights(hidden).sum(-1)
    require(abs(sums - 1).max() < CLOSE, f"a row sums to {sums.flat[abs(sums - 1).argmax()]:.3g}")
    return "12 rows sum to 1, the one that sees nothing too"


def weights_of(hidden: Any, *, fill: float = -1e9) -> Any:
    """The listing's weights under a mask."""
    with np.errstate(invalid="ignore"):
        return listings.attention(Q, K, V, hidden, fill=fill)[1]


def hidden_row_sums_too() -> str:
    """All the weight on hidden keys."""
    hidden = np.zeros((2, 6, 6), bool)
    hidden[0, 2] = True
    mass = weights_of(hidden)[0, 2].sum()
    require(abs(mass - 1) < CLOSE, "the hidden keys have no weight")
    return "a row that sees nothing sums to 1 with all its weight on hidden keys"


def true_hides(weights: Any) -> str:
    """True at the later keys: no weight there, and weight at every other."""
    hidden = listings.later(6)
    a = weights(hidden[None])[0]
    require((a[hidden] == 0).all() and (a[~hidden] > 0).all(), "True does not mean hidden")
    return "6 tokens: weight 0 exactly at the 15 places of True, positive at the 21 of False"


def read_the_other_way() -> str:
    """The causal mask of the document, given to a function where True is visible."""
    a = weights_of(~listings.later(6)[None])[0]
    require((a[np.tril_indices(6)][:-6] == 0).all(), "the past is seen")
    return "read as True = visible, rows see only later keys, and the last row none"


def widens(divisor: Any) -> str:
    """float16 and float32 scores over √d_k: a scalar of NumPy has a type, a number has none."""
    over = divisor(Q.shape[-1])
    for kind in (np.float16, np.float32):
        typed = isinstance(over, np.generic)
        found = np.promote_types(kind, over.dtype) if typed else np.dtype(kind)
        require(found == np.float64, f"{kind.__name__} scores stay {found}")
        if NUMPY_2:
            weights = listings.attention(*(x.astype(kind) for x in (Q, K, V)))[1]
            require(weights.dtype == found, f"the listing gives {weights.dtype}")
    return "NumPy 2: float16 and float32 in, float64 weights out"


STATEMENTS = (
    Statement(
        id="heart.code.mask1e9",
        where="NumPy listing, where the mask enters",
        says="A score of -1e9 hides a key.",
        formula=r"e^{-10^9 - \max s} = 0 \text{ in double precision} \iff "
        r"\max s \ge -10^9 + 745.13\ldots",
        verdict="imprecise",
        exact="It does beside visible scores of at least -1e9 + 746. A row that sees nothing "
        "averages all the hidden values; visible scores below -1e9 lose to the hidden key.",
        check=Check(
            run=hides_and_fails,
            subject=-1e9,
            mutations={"-∞": -np.inf, "-30": -30.0, "-1e4": -1e4},
        ),
        properties=("hidden-keys-have-no-influence", "row-without-keys-returns-zero"),
    ),
    Statement(
        id="heart.code.fp16",
        where="NumPy listing, where the mask enters, in half precision",
        says="The same fill of -1e9, a large finite number, for inputs of any type.",
        formula=r"|{-10^9}| > 65504",
        verdict="false",
        exact="float16 has no -1e9: it becomes -∞ (NumPy warns, PyTorch raises), and a row that "
        "sees nothing is NaN. The listing escapes only as NumPy 2 widens its scores.",
        check=Check(
            run=becomes_infinite,
            subject=np.float16,
            mutations={"bfloat16": ml_dtypes.bfloat16, "float32": np.float32},
        ),
    ),
    Statement(
        id="heart.code.rowsum",
        where="NumPy listing, what it returns",
        says="The rows of the returned weights sum to 1.",
        formula=r"\textstyle\sum_j A_{ij} = 1",
        verdict="conditional",
        hypotheses={
            "a visible key in each row, if the sum is to be over such keys": hidden_row_sums_too
        },
        check=Check(
            run=sums_to_one,
            subject=weights_of,
            mutations={
                "hidden weights set to 0": lambda hidden: weights_of(hidden) * ~hidden,
                "-∞ for -1e9": lambda hidden: weights_of(hidden, fill=-np.inf),
            },
        ),
        properties=("weights-sum-to-one", "row-without-keys-returns-zero"),
    ),
    Statement(
        id="heart.code.polarity",
        where="NumPy and PyTorch listings, what True means",
        says="True hides a key.",
        formula=r"m_{ij} = \text{True} \Rightarrow A_{ij} = 0",
        verdict="conditional",
        hypotheses={
            "a receiver that reads it so; PyTorch's `scaled_dot_product_attention` reads True as "
            "visible": read_the_other_way
        },
        check=Check(
            run=true_hides,
            subject=weights_of,
            mutations={
                "True is visible": lambda hidden: weights_of(~hidden),
                "transposed": lambda hidden: weights_of(hidden.transpose(0, 2, 1)),
            },
        ),
        properties=("visible-set", "true-mask-hides-nothing"),
    ),
    Statement(
        id="heart.code.dtype",
        where="NumPy listing, the division by √d_k",
        says="Nothing is said of types: half and single precision seem to stay what they are.",
        verdict="false",
        exact="Under NumPy 2 `np.sqrt` of an int is a float64 scalar, which widens float16 and "
        "float32 scores to float64.",
        check=Check(
            run=widens,
            subject=np.sqrt,
            mutations={
                "a number of Python": math.sqrt,
                "in half precision": lambda size: np.float16(np.sqrt(size)),
            },
        ),
    ),
)
