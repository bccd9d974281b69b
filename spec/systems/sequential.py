"""Recurrent networks: what a token's state keeps of an earlier one, and what a token costs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import sympy as sp

from attnspec.spec.evidence.binary import same
from attnspec.spec.evidence.exact import Matrix, matrix, rational
from attnspec.spec.evidence.expressions import scalars
from attnspec.spec.evidence.linear import identity_matrix, powers, product
from attnspec.spec.evidence.statement import Check, Proof, Statement, require

__all__ = ["STATEMENTS"]

W = matrix([["1/2", "1/3"], ["-1/4", "2/3"]])
U = matrix([["1", "-1/2"], ["2/5", "1/3"]])


@dataclass
class Counter:
    """Matrix-vector products, and the operations they take: 2 a multiply-add."""

    operations: int = 0
    steps: int = 0

    def apply(self, weight: Matrix, vector: Matrix) -> Matrix:
        """weight @ vector, counted."""
        self.operations += 2 * weight.size
        return np.asarray(weight @ vector)


# -- A plain recurrent network --------------------------------------------------------------------


def states(x: Matrix, counter: Counter) -> list[Matrix]:
    """h_t = W h_(t-1) + U x_t."""
    h, found = x[0] * 0, []
    for token in x:
        h = counter.apply(W, h) + counter.apply(U, token)
        counter.steps += 1
        found.append(h)
    return found


def influence(x: Matrix, j: int) -> list[Matrix]:
    """∂h_i/∂x_j for every i, columns by a unit step: exact, as the network is affine."""
    before = states(x, Counter())
    columns = []
    for channel in range(2):
        moved = x.copy()
        moved[j, channel] = moved[j, channel] + 1
        columns.append([a - b for a, b in zip(states(moved, Counter()), before, strict=True)])
    return [np.stack([columns[0][i], columns[1][i]], 1) for i in range(len(x))]


def jacobians_multiply(exponent: Any) -> str:
    """n = 6: ∂h_i/∂x_j = W^(i-j) U for i ≥ j, 0 before; 4 n d² operations, n steps in a row."""
    x = rational((6, 2), seed=1)
    for j in range(6):
        for i, found in enumerate(influence(x, j)):
            expected = powers(W, exponent(i, j)) @ U if i >= j else U * 0
            require(same(found, expected), f"∂h_{i}/∂x_{j} is not W^{exponent(i, j)} U")
    counter = Counter()
    states(x, counter)
    require(counter.operations == 4 * 6 * 2**2 and counter.steps == 6, "it costs not 4 n d²")
    return "n = 6, d = 2: 36 Jacobians, 96 = 4 n d² operations, 6 steps one after the other"


def later_tokens() -> str:
    """The state of one direction holds nothing of later tokens."""
    found = influence(rational((4, 2), seed=1), 3)
    require(same(found[1], U * 0), "h_1 depends on x_3")
    return "∂h_1/∂x_3 = 0: |i - j| steps lead only forward"


def activation_between() -> str:
    """With a nonlinearity the product has a slope in each factor: here a ReLU that is off."""
    before, after = (max(Fraction(0), Fraction(-3) + step) for step in (0, 1))
    require(before == after, "the unit is on")
    return "h = max(0, W h + U x), off: the Jacobian is 0, not W"


def powers_of_a_scale() -> Proof:
    """An orthogonal matrix times ρ: neither fades nor grows at ρ = 1 only."""
    angle, rho = sp.symbols("theta rho", positive=True)
    c, s = sp.cos(angle), sp.sin(angle)
    w = rho * sp.Matrix([[c, -s], [s, c]])
    t = sp.Symbol("t", integer=True, positive=True)

    def squared_length(vector: Any) -> Any:
        return sp.simplify(vector.dot(vector))

    x = sp.Matrix(sp.symbols("x_1 x_2", real=True))
    one = squared_length(w * x)
    return Proof(
        sizes="one step of a rotation by any angle, scaled by any ρ; steps multiply",
        steps=(
            scalars("|W x|² = ρ² |x|²", one, rho**2 * x.dot(x)),
            scalars("ρ = 9/10: ρ^(2t) → 0", sp.limit(sp.Rational(9, 10) ** (2 * t), t, sp.oo), 0),
        ),
        mutations={
            "lengths kept for every ρ": scalars("|W x|² = |x|²", one, x.dot(x)),
            "ρ alone": scalars("|W x|² = ρ |x|²", one, rho * x.dot(x)),
        },
    )


# -- LSTM -----------------------------------------------------------------------------------------


GATES = 4


def lstm_operations(tokens: int, width: int, *, gates: int = GATES) -> int:
    """Counted: each gate and the candidate meets the input and the state."""
    counter = Counter()
    weight, vector = identity_matrix(width), matrix([1] * width)
    for _ in range(tokens):
        for _ in range(gates):
            counter.apply(weight, vector)
            counter.apply(weight, vector)
    return counter.operations


def cells(forget: Matrix, added: Matrix) -> Matrix:
    """c_t = f_t c_(t-1) + i_t g_t along one channel, gates given."""
    c, found = Fraction(0), []
    for f, a in zip(forget, added, strict=True):
        c = f * c + a
        found.append(c)
    return np.array(found, object)


def along_the_cell(slope: Any) -> str:
    """∂c_i/∂(i_j g_j) with gates held = the product of the forget gates between; 16 n d²."""
    forget, added = matrix(["1/2", "9/10", "2/3", "1", "1/5"]), rational((5,), seed=2)
    for j in range(5):
        moved = added.copy()
        moved[j] = moved[j] + 1
        step = cells(forget, moved) - cells(forget, added)
        require(all(step[:j] == 0), "an earlier cell moves")
        for i in range(j, 5):
            require(step[i] == slope(forget, i, j), f"∂c_{i}/∂c_{j} is not the product of gates")
    require(lstm_operations(3, 4) == 16 * 3 * 4**2, "it costs not 16 n d²")
    return "5 cells, all pairs, exactly; 768 = 16 n d² operations for n = 3, d = 4"


def gates_below_one() -> str:
    """Memory still fades with distance unless the gates are 1."""
    half, open_gate = (cells(matrix([f] * 20), matrix([1] + [0] * 19))[-1] for f in ("1/2", "1"))
    require(half < Fraction(1, 10**5) and open_gate == 1, "it does not fade")
    return "forget gates 1/2: 1.9e-6 is left after 19 steps; gates 1: all of it"


def attention_beside_recurrence() -> Proof:
    """n tokens of width d, projections and W_O included: 8nd² + 4n²d."""
    n, d = sp.symbols("n d", positive=True)
    attention = 8 * n * d**2 + 4 * n**2 * d
    lstm, rnn = 16 * n * d**2, 4 * n * d**2
    return Proof(
        steps=(
            scalars("attention - LSTM = 4nd (n - 2d)", attention - lstm, 4 * n * d * (n - 2 * d)),
            scalars("attention - RNN = 4nd (n + d) > 0", attention - rnn, 4 * n * d * (n + d)),
        ),
        mutations={
            "equal at n = d": scalars("4nd (n - d)", attention - lstm, 4 * n * d * (n - d)),
            "without projections": scalars(
                "4nd (n - 4d)", attention - lstm, 4 * n * d * (n - 4 * d)
            ),
        },
    )


STATEMENTS = (
    Statement(
        id="sys.rnn",
        where="Elman 1990; chapter 11, Proposition 1; the third document, complexity analysis",
        says="A token reaches a later state through one matrix a step; n steps run one after the "
        "other and cost 4nd².",
        formula=r"\partial h_i / \partial x_j = W^{i-j} U \ (i \ge j), \qquad "
        r"\mathrm{FLOPs} = 4 n d^2",
        verdict="conditional",
        hypotheses={
            "i ≥ j, in a network of one direction": later_tokens,
            "linear, or each factor has the activation's slope": activation_between,
        },
        proof=powers_of_a_scale,
        check=Check(
            run=jacobians_multiply,
            subject=lambda i, j: i - j,
            mutations={
                "a step too many": lambda i, j: i - j + 1,
                "one step at any distance": lambda i, j: min(1, i - j),
            },
        ),
    ),
    Statement(
        id="sys.lstm",
        where="Hochreiter and Schmidhuber 1997; the third document, the example of the animal and "
        "the street",
        says="Gates let a cell keep an earlier token: along the cell the factors are forget gates, "
        "not one matrix; four gates cost 16nd², less than attention when n > 2d.",
        formula=r"\partial c_i / \partial c_j = \textstyle\prod_{l=j+1}^{i} f_l, \qquad "
        r"\mathrm{FLOPs} = 16 n d^2",
        verdict="conditional",
        hypotheses={
            "gates at 1, for memory that does not fade": gates_below_one,
            "the way through the gates themselves is not counted": None,
        },
        proof=attention_beside_recurrence,
        check=Check(
            run=along_the_cell,
            subject=lambda forget, i, j: product(forget[j + 1 : i + 1]),
            mutations={
                "the gate at j counts": lambda forget, i, j: product(forget[j : i + 1]),
                "nothing fades": lambda forget, i, j: Fraction(1),
            },
        ),
    ),
)
