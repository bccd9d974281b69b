"""The PyTorch listing, its behaviour in NumPy: a mask of -∞, initial values, shapes, the flow."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence import binary, exact
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.statement import Check, Proof, Statement, require
from attnspec.spec.heart import listings

__all__ = ["STATEMENTS"]

Q, K, V = listings.inputs((1, 5, 4), (1, 5, 4), (1, 5, 4), seed=7)


# -- the module -----------------------------------------------------------------------------------


def filled(hidden: Any) -> Any:
    """Output where hidden scores are -∞, as in the module."""
    with np.errstate(invalid="ignore"):
        return listings.attention(Q, K, V, hidden, fill=-np.inf)[0]


def hides_exactly(module: Any) -> str:
    """Where every row sees a key: as if the hidden keys were not there, row by row."""
    hidden = listings.later(5)
    hidden[4, [0, 2]] = True
    out = module(hidden[None])[0]
    for i in range(5):
        keep = ~hidden[i]
        alone, _ = listings.attention(Q[:, i : i + 1], K[:, keep], V[:, keep])
        gap = abs(out[i] - alone[0, 0]).max()
        require(gap < 1e-14, f"row {i} is {gap:.2g} from the row without hidden keys")
    return "5 rows, a causal mask with further holes: each as if the hidden keys were not there"


def row_of_nan() -> str:
    """A row that sees nothing, left out of the loss: dO = 0 there, and 0 · NaN = NaN."""
    hidden = np.zeros((1, 5, 5), bool)
    hidden[0, 2] = True
    with np.errstate(invalid="ignore"):
        weights = listings.attention(Q, K, V, hidden, fill=-np.inf)[1][0]
        dout = np.ones((5, 4))
        dout[2] = 0
        dv = weights.T @ dout
    require(np.isnan(weights[2]).all(), "the row is a number")
    require(np.isnan(dv).all(), "dV is finite")
    return "a row that sees nothing is NaN; left out of the loss, it still makes all of dV NaN"


def uniform_variance() -> Proof:
    """Entries uniform within ±1/√d, x of covariance I in d channels."""
    w, d, dk = sp.symbols("w d d_k", positive=True)
    edge = 1 / sp.sqrt(d)
    entry = sp.integrate(w**2 / (2 * edge), (w, -edge, edge))
    query = d * entry
    score = dk * query**2 / dk
    return Proof(
        steps=(
            scalars("Var W = 1/(3d)", entry, 1 / (3 * d)),
            scalars("Var q_l = d Var W = 1/3", query, sp.Rational(1, 3)),
            scalars("Var of a scaled score = (1/3)² = 1/9", score, sp.Rational(1, 9)),
        ),
        mutations={
            "unit variance": scalars("Var of a scaled score = 1", score, 1),
            "not squared": scalars("Var of a scaled score = 1/3", score, sp.Rational(1, 3)),
        },
    )


def scores_are_narrow(edge: Any) -> str:
    """Scaled scores of different whitened tokens, d = 64, d_k = 32, 400 layers, seed 8."""
    rng = np.random.default_rng(8)
    found = []
    for _ in range(400):
        x, y = rng.standard_normal((2, 64))
        wq, wk = rng.uniform(-edge(64), edge(64), (2, 64, 32))
        found.append((x @ wq) @ (y @ wk) / np.sqrt(32))
    squares = np.square(found)
    mean, error = squares.mean(), squares.std() / 20
    require(abs(mean - 1 / 9) < 5 * error, f"the variance is {mean:.3f} ± {5 * error:.3f}")
    return f"400 scaled scores, seed 8: variance {mean:.3f} ± {5 * error:.3f} (5σ), exactly 1/9"


def gives_shapes(layer: Any) -> str:
    """(2, 10, 128), d_k = 64 for the values too."""
    [x] = listings.inputs((2, 10, 128), seed=9)
    out, weights = layer(x)
    require(out.shape == (2, 10, 64), f"the output is {out.shape}")
    require(weights.shape == (2, 10, 10), f"the weights are {weights.shape}")
    return "(2, 10, 128) -> (2, 10, 64), weights (2, 10, 10)"


# -- the diagram ----------------------------------------------------------------------------------

X = binary.integers((4, 3), seed=1)
WQ, WK, WV = (binary.integers((3, 2), seed=seed) for seed in (2, 3, 4))


def flow(x: Any, visible: Any) -> exact.Matrix:
    """The boxes in their order: three projections, scores, mask, softmax, average."""
    q, k, v = x @ WQ, x @ WK, x @ WV
    e = binary.power_of_two(q @ k.T) * visible
    return np.asarray(exact.weights(e) @ v)


def is_attention(boxes: Any) -> str:
    """With the optional mask and without."""
    for visible in (np.ones((4, 4), bool), binary.causal(4)):
        expected = binary.attention(X @ WQ, X @ WK, X @ WV, visible=visible)
        require(binary.same(boxes(X, visible), expected), "the boxes are not attention")
    return "4 tokens, with a causal mask and without one: the boxes are attention, exactly"


STATEMENTS = (
    Statement(
        id="heart.torch.module",
        where="PyTorch listing, the module",
        says="One head without biases, d_v = d_k, where hidden scores become -∞.",
        verdict="conditional",
        hypotheses={"a visible key in each row": row_of_nan},
        check=Check(
            run=hides_exactly,
            subject=filled,
            mutations={
                "-3 for -∞": lambda hidden: listings.attention(Q, K, V, hidden, fill=-3.0)[0],
                "True is visible": lambda hidden: filled(~hidden),
            },
        ),
        properties=("unseen-has-no-gradient", "row-without-keys-returns-zero"),
    ),
    Statement(
        id="heart.torch.init",
        where="PyTorch listing, the linear layers",
        says="The projections start as the framework's linear layers do; nothing more is said.",
        formula=r"W \sim U(\pm 1/\sqrt d) \Rightarrow \mathrm{Var}\,W = 1/(3d),\ "
        r"\mathrm{Var}\,\tilde S_{ij} = 1/9",
        verdict="imprecise",
        exact="That is not the unit variance of the argument for √d_k, nor the NumPy listing's "
        "1/d: scaled scores start with variance 1/9.",
        proof=uniform_variance,
        check=Check(
            run=scores_are_narrow,
            subject=lambda d: d**-0.5,
            mutations={
                "variance 1/d": lambda d: (3 / d) ** 0.5,
                "a third of the width": lambda d: d**-0.5 / 3,
            },
        ),
    ),
    Statement(
        id="heart.torch.shapes",
        where="PyTorch listing, its test",
        says="Shapes (2, 10, 64) and (2, 10, 10).",
        verdict="true",
        check=Check(
            run=gives_shapes,
            subject=lambda x: listings.layer(x, 64, 64),
            mutations={
                "values as wide as the model": lambda x: listings.layer(x, 64),
                "batch for tokens": lambda x: listings.layer(x.transpose(1, 0, 2), 64, 64),
            },
        ),
    ),
    Statement(
        id="heart.diagram",
        where="Diagram of the flow",
        says="X to Q, K and V; scores; mask; softmax; output.",
        verdict="true",
        check=Check(
            run=is_attention,
            subject=flow,
            mutations={
                "mask after softmax": lambda x, visible: (
                    exact.weights(binary.power_of_two((x @ WQ) @ (x @ WK).T)) * visible @ (x @ WV)
                ),
                "values before softmax": lambda x, visible: exact.weights(
                    binary.power_of_two((x @ WQ) @ (x @ WK).T @ (x @ WV)) * 1
                ),
            },
        ),
    ),
)
