"""The NumPy listing of a layer: widths, initial values, shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.evidence.sums import identity
from attnspec.spec.heart import listings

__all__ = ["STATEMENTS"]


# -- the constructor ------------------------------------------------------------------------------


def defaults(widths: Any) -> str:
    """(d_k, d_v) with none, the first and both given."""
    found = [widths(64), widths(64, 32), widths(64, 32, 16)]
    require(found == [(64, 64), (32, 64), (32, 16)], f"the widths are {found}")
    return "(64, 64) with none given, (32, 64) with d_k = 32: d_v does not follow d_k"


def width_zero() -> str:
    """0 is taken for "not given"."""
    require(listings.widths(64, 0) == (64, 64), "0 is kept")
    return "d_k = 0 silently becomes 64, where an error belongs"


def query_variance() -> Proof:
    """Var q_l = Σ_ab E[x_a x_b] E[W_al W_bl] for x of covariance I and W of variance 1/d."""
    a, b, d = sp.symbols("a b d", integer=True, positive=True)
    delta = sp.KroneckerDelta(a, b)

    def variance(of_weights: Any) -> Any:
        return sp.Sum(delta * delta * of_weights, (a, 0, d - 1), (b, 0, d - 1))

    return Proof(
        steps=(identity("Var q_l = Σ_ab δ_ab δ_ab / d = 1", variance(1 / d), 1),),
        mutations={
            "variance 1/d²": identity("Var q_l = 1", variance(1 / d**2), 1),
            "uniform within 1/√d": identity("Var q_l = 1", variance(1 / (3 * d)), 1),
        },
    )


def has_variance_one(draw: Any) -> str:
    """q = x W of standard normal x (2000, 64), W (64, 2048): within 5 standard errors of 1.

    The two norms |x|²/64 and |w|², averaged over rows and columns, have variance 2/64 over their
    numbers; what is left beside them is of second order.
    """
    [x] = listings.inputs((2000, 64), seed=3)
    q = x @ draw(64, 2048)
    band = 5 * np.sqrt(2 / 64 / 2000 + 2 / 64 / 2048)
    require(abs(q.var() - 1) < band, f"the variance is {q.var():.4g}, not 1 ± {band:.2g}")
    return f"variance {q.var():.4f} over 2000 × 2048 entries, seeds 3 and 0, 5σ band {band:.3f}"


def wider_tokens() -> str:
    """Tokens of variance 4."""
    [x] = listings.inputs((2000, 64), seed=3)
    variance = (2 * x @ listings.draw(64, 2048)).var()
    require(variance > 3, "the variance is still 1")
    return f"tokens of variance 4: queries of variance {variance:.2f}"


# -- shapes ---------------------------------------------------------------------------------------


def gives_shapes(layer: Any) -> str:
    """(2, 6, 64) with d_k = d_v = 32."""
    [x] = listings.inputs((2, 6, 64), seed=4)
    out, weights = layer(x, 32, 32)
    require(out.shape == (2, 6, 32), f"the output is {out.shape}")
    require(weights.shape == (2, 6, 6), f"the weights are {weights.shape}")
    require((weights[0].sum(-1).round(4) == 1).all(), "rows do not sum to 1.0000")
    return "(2, 6, 64) -> (2, 6, 32), weights (2, 6, 6) whose rows sum to 1.0000"


STATEMENTS = (
    Statement(
        id="heart.code.ctor",
        where="NumPy listing of the layer, its constructor",
        says="The widths of queries and values fall back to that of the model.",
        verdict="conditional",
        hypotheses={"no width of 0": width_zero},
        check=Check(
            run=defaults,
            subject=listings.widths,
            mutations={
                "d_v follows d_k": lambda d, d_k=None, d_v=None: (d_k or d, d_v or d_k or d),
                "what is given is not used": lambda d, d_k=None, d_v=None: (d, d),
            },
        ),
    ),
    Statement(
        id="heart.code.init",
        where="NumPy listing of the layer, initial projections",
        says="Small random values: normal, of standard deviation 1/√d_model.",
        formula=r"W_{al} \sim \mathcal N(0, 1/d)\ \Rightarrow\ \mathrm{Var}\,q_l = 1",
        verdict="conditional",
        hypotheses={"tokens of covariance I": wider_tokens},
        proof=query_variance,
        check=Check(
            run=has_variance_one,
            subject=listings.draw,
            mutations={
                "variance 1/d²": lambda d, width: listings.draw(d, width) / np.sqrt(d),
                "uniform within 1/√d": lambda d, width: np.random.default_rng(0).uniform(
                    -(d**-0.5), d**-0.5, (d, width)
                ),
            },
        ),
    ),
    Statement(
        id="heart.code.smoke",
        where="NumPy listing of the layer, smoke test",
        says="Shapes (2, 6, 32) and (2, 6, 6), and rows that sum to 1.",
        verdict="true",
        check=Check(
            run=gives_shapes,
            subject=listings.layer,
            mutations={
                "d_v left to its default": lambda x, d_k, d_v: listings.layer(x, d_k),
                "weights over the batch": lambda x, d_k, d_v: listings.layer(
                    x.transpose(1, 0, 2), d_k, d_v
                ),
            },
        ),
        properties=("weights-sum-to-one",),
    ),
)
