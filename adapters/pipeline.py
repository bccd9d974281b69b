"""Attention in NumPy with a method for each step, so that one step can be replaced.

`Pipeline` is the tiled online softmax of FlashAttention (Dao et al., 2022) with every option of
the protocol and all gradients. It computes in float32, or in float64 for float64 inputs, and
rounds each result once; what a row does not see, NaN and infinities included, never reaches it.
A subclass that replaces a step is another implementation: a conforming variant or a faulty one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from attnspec.adapters.kernel import Kernel, kernel
from attnspec.oracle.formats import FORMATS, format_of

__all__ = ["Array", "Pipeline", "State", "finite", "kernel_of", "product", "rounded", "shift"]

Array = npt.NDArray[Any]
Window = tuple[int | None, int | None]
State = tuple[Array, Array, Array]
"""Of each row so far: the largest score and Σ exp(score - largest), (B, H, Nq, 1), and
Σ exp(score - largest) · value, (B, H, Nq, Dv)."""


class Pipeline:
    """One call. In the shapes, H is the number of query heads; `keys` is a slice of Nk.

    tile: keys a tile. declares: what `kernel` is told besides. `raw` holds the inputs as given;
    `state` is what a kernel remembers from call to call; `returning` is set once the backward pass
    has begun, after the forward pass that it starts with.
    """

    tile: ClassVar[int] = 32
    declares: ClassVar[Mapping[str, Any]] = {}
    state: ClassVar[dict[Any, Any]] = {}

    def __init__(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        scale: float,
        causal: bool = False,
        window: Window | None = None,
        mask: Array | None = None,
        bias: Array | None = None,
        softcap: float | None = None,
        sinks: Array | None = None,
        alibi: Array | None = None,
        key_lengths: Array | None = None,
        query_lengths: Array | None = None,
        return_lse: bool = False,
        dout: Array | None = None,
        dlse: Array | None = None,
    ) -> None:
        self.raw: dict[str, Any] = {
            "q": q,
            "k": k,
            "v": v,
            "mask": mask,
            "bias": bias,
            "sinks": sinks,
            "alibi": alibi,
            "key_lengths": key_lengths,
            "query_lengths": query_lengths,
            "dout": dout,
            "dlse": dlse,
        }
        self.returning = False
        self.dtype = q.dtype
        self.real = np.dtype(np.float64 if q.dtype == np.float64 else np.float32)
        self.batch, self.heads, self.rows, self.size = q.shape
        self.kv_heads, self.keys, self.value_size = *k.shape[1:3], v.shape[3]
        self.scale, self.causal, self.window = scale, causal, window or (None, None)
        self.softcap, self.return_lse = softcap, return_lse
        head = self.key_heads()
        self.q = self.read("q", q)  # (B, H, Nq, D)
        self.k = self.read("k", k)[:, head]  # (B, H, Nk, D)
        self.v = self.read("v", v)[:, head]  # (B, H, Nk, Dv)
        self.mask = None if mask is None else self.spread("mask", mask)  # (B, H, Nq, Nk)
        self.bias = None if bias is None else self.spread("bias", bias)  # (B, H, Nq, Nk)
        self.sinks = None if sinks is None else self.per_head(sinks)  # (1, H, 1, 1)
        self.slopes = None if alibi is None else self.per_head(alibi)  # (1, H, 1, 1)
        self.key_lengths = self.lengths(key_lengths, self.keys)  # (B, 1, 1, 1)
        self.query_lengths = self.lengths(query_lengths, self.rows)  # (B, 1, 1, 1)
        self.ready()

    def ready(self) -> None:
        """What is done about the options once they are read: nothing more."""

    # -- what is read ------------------------------------------------------------------------------

    def read(self, name: str, x: Array) -> Array:
        """An operand, by its name, in the type that is computed in. Exact."""
        return x.astype(self.real)

    def key_heads(self) -> Array:
        """The key head of each query head: (H,)."""
        return np.arange(self.heads) // (self.heads // self.kv_heads)

    def spread(self, name: str, x: Array) -> Array:
        """A mask or bias at every score: (B, H, Nq, Nk)."""
        x = x if x.dtype == bool else x.astype(self.real)
        return np.broadcast_to(x, (self.batch, self.heads, self.rows, self.keys))

    def per_head(self, x: Array) -> Array:
        """Sinks or slopes: (1, H, 1, 1)."""
        return x.astype(self.real).reshape(1, self.heads, 1, 1)

    def lengths(self, given: Array | None, most: int) -> Array:
        """Lengths of the batch entries: (B, 1, 1, 1)."""
        found = np.full(self.batch, most) if given is None else given.astype(np.int64)
        return found.reshape(-1, 1, 1, 1)

    def key_tile(self, keys: slice) -> Array:
        """(B, H, c, D)."""
        return self.k[..., keys, :]

    def value_tile(self, keys: slice) -> Array:
        """(B, H, c, Dv)."""
        return self.v[..., keys, :]

    # -- who sees whom -----------------------------------------------------------------------------

    def row_index(self) -> Array:
        """i: (Nq, 1)."""
        return np.arange(self.rows)[:, None]

    def key_index(self, keys: slice) -> Array:
        """j: (c,)."""
        return np.arange(self.keys)[keys]

    def offset(self) -> Array:
        """Where row 0 meets the keys, bottom-right: (B, 1, 1, 1)."""
        return self.key_lengths - self.query_lengths

    def ahead(self, keys: slice) -> Array:
        """i + offset - j: (B, 1, Nq, c)."""
        return np.asarray(self.row_index() + self.offset() - self.key_index(keys))

    def seen_causally(self, ahead: Array) -> Array:
        """What `causal` leaves, where it is on."""
        return ahead >= 0

    def seen_in_window(self, ahead: Array) -> Array:
        """What the window leaves; both edges are inclusive."""
        left, right = self.window
        seen = np.ones(ahead.shape, np.bool_)
        if left is not None:
            seen &= ahead <= left
        if right is not None:
            seen &= ahead >= -right
        return seen

    def seen_by_mask(self, keys: slice) -> Array:
        """What the mask leaves: True may attend."""
        return np.asarray(True if self.mask is None else self.mask[..., keys])

    def seen_by_bias(self, keys: slice) -> Array:
        """What the bias leaves: -inf hides."""
        return np.asarray(True if self.bias is None else ~np.isneginf(self.bias[..., keys]))

    def seen_by_length(self, keys: slice) -> Array:
        """Slots within the lengths of their batch entry."""
        held: Array = self.key_index(keys) < self.key_lengths
        return (self.row_index() < self.query_lengths) & held

    def visible(self, keys: slice) -> Array:
        """Which of the keys each row sees: (B, H, Nq, c)."""
        ahead = self.ahead(keys)
        seen = self.seen_by_length(keys) & self.seen_by_mask(keys) & self.seen_by_bias(keys)
        if self.causal:
            seen = seen & self.seen_causally(ahead)
        if self.window != (None, None):
            seen = seen & self.seen_in_window(ahead)
        return np.broadcast_to(seen, (self.batch, self.heads, self.rows, ahead.shape[-1]))

    # -- scores ------------------------------------------------------------------------------------

    def dot(self, keys: slice) -> Array:
        """q kᵀ."""
        return self.q @ self.key_tile(keys).swapaxes(-1, -2)

    def scaled(self, s: Array) -> Array:
        """scale · q kᵀ."""
        return s * self.scale

    def capped(self, s: Array) -> tuple[Array, Array | float]:
        """The soft-capped scores, and the cap's derivative."""
        if self.softcap is None:
            return s, 1.0
        bent = np.tanh(s / self.softcap)
        return self.softcap * bent, 1 - bent * bent

    def biased(self, s: Array, keys: slice) -> Array:
        """With the bias."""
        return s if self.bias is None else s + self.bias[..., keys]

    def sloped(self, s: Array, ahead: Array) -> Array:
        """With ALiBi."""
        return s if self.slopes is None else s - self.slopes * np.abs(ahead).astype(self.real)

    def hidden(self, s: Array, visible: Array) -> Array:
        """-inf where a row does not see a key."""
        return np.where(visible, s, np.asarray(-np.inf, s.dtype))

    def scores(self, keys: slice) -> tuple[Array, Array | float]:
        """The masked scores (B, H, Nq, c), and the derivative of the soft cap."""
        s, slope = self.capped(self.scaled(self.dot(keys)))
        s = self.sloped(self.biased(s, keys), self.ahead(keys))
        return self.hidden(s, self.visible(keys)).astype(self.real), slope

    # -- softmax -----------------------------------------------------------------------------------

    def tiles(self) -> Iterable[slice]:
        """The tiles of keys, in the order of their turn."""
        starts = range(0, self.keys, self.tile)
        return [slice(start, min(start + self.tile, self.keys)) for start in starts]

    def start(self) -> State:
        """Before the first tile; a sink is a key that comes first and has no value."""
        shape = (self.batch, self.heads, self.rows, 1)
        sums = np.zeros((*shape[:3], self.value_size), self.real)
        if self.sinks is None:
            return np.full(shape, -np.inf, self.real), np.zeros(shape, self.real), sums
        return np.broadcast_to(self.sinks, shape), np.ones(shape, self.real), sums

    def largest(self, before: Array, s: Array) -> Array:
        """The running maximum after a tile: (B, H, Nq, 1)."""
        return np.maximum(before, s.max(axis=-1, keepdims=True))

    def exp(self, x: Array) -> Array:
        """e^x."""
        return np.exp(x)

    def fade(self, before: Array, after: Array) -> Array:
        """What an earlier sum is multiplied by when the maximum moves: (B, H, Nq, 1)."""
        return self.exp(before - shift(after))

    def added(self, total: Array, p: Array, fade: Array) -> Array:
        """The row sums with a tile's."""
        return total * fade + p.sum(axis=-1, keepdims=True)

    def probabilities(self, p: Array) -> Array:
        """The weights as they enter the product with the values."""
        return p

    def collected(self, sums: Array, p: Array, keys: slice, fade: Array) -> Array:
        """The sums of weighted values with a tile's."""
        weights = self.probabilities(p)
        return sums * fade + product(weights, self.value_tile(keys), lambda: self.visible(keys))

    def step(self, state: State, keys: slice) -> State:
        """One tile."""
        before, total, sums = state
        s, _ = self.scores(keys)
        after = self.largest(before, s)
        p, fade = self.exp(s - shift(after)), self.fade(before, after)
        return after, self.added(total, p, fade), self.collected(sums, p, keys, fade)

    def attend(self) -> State:
        """All tiles."""
        state = self.start()
        for keys in self.tiles():
            state = self.step(state, keys)
        return state

    def normalised(self, sums: Array, total: Array) -> Array:
        """sums / total; a row that sees nothing is 0, not 0/0."""
        return sums / np.where(total == 0, 1, total).astype(total.dtype)

    def log_sum_exp(self, largest: Array, total: Array) -> Array:
        """(B, H, Nq, 1); -inf for a row that sees nothing."""
        return shift(largest) + np.log(total)

    def stored(self, x: Array, like: Array) -> Array:
        """Rounded once to the type of an input."""
        return x if x.dtype == like.dtype else format_of(like.dtype).round(x)

    def forward(self) -> tuple[Array, Array]:
        """out (B, H, Nq, Dv) and lse (B, H, Nq, 1), before they are stored."""
        largest, total, sums = self.attend()
        return self.normalised(sums, total), self.log_sum_exp(largest, total)

    def answer(self) -> Array | tuple[Array, Array]:
        """What the kernel returns."""
        with np.errstate(all="ignore"):
            out, lse = self.forward()
            result = self.stored(out, self.raw["q"])
            return (result, self.reported(lse)[..., 0]) if self.return_lse else result

    def reported(self, lse: Array) -> Array:
        """lse as it is returned: (B, H, Nq, 1)."""
        return lse

    # -- backward ----------------------------------------------------------------------------------

    def inner(self, dout: Array, out: Array) -> Array:
        """<dout, out> - dlse of each row: (B, H, Nq, 1)."""
        inner: Array = (dout * out).sum(axis=-1, keepdims=True)
        dlse = self.raw["dlse"]
        return inner if dlse is None else inner - dlse.astype(self.real)[..., None]

    def weights(self, s: Array, lse: Array) -> Array:
        """P of a tile, recomputed from lse as FlashAttention does."""
        return self.exp(s - shift(lse))

    def dweights(self, dout: Array, keys: slice) -> Array:
        """dP = dout vᵀ."""
        return dout @ finite(self.value_tile(keys)).swapaxes(-1, -2)

    def dscores(self, p: Array, dp: Array, inner: Array) -> Array:
        """dS = P (dP - inner); a hidden slot has weight 0, but its dP may be NaN."""
        return np.where(p == 0, 0, p * (dp - inner)).astype(self.real)

    def dproduct(self, ds: Array, p: Array, slope: Array | float) -> Array:
        """The gradient of q kᵀ, which lies before scale and cap."""
        return self.scale * np.where(p == 0, 0, ds * slope).astype(self.real)

    def dq_tile(self, dproduct: Array, keys: slice) -> Array:
        """A tile's part of dq."""
        return dproduct @ finite(self.key_tile(keys))

    def dq_added(self, dq: Array, part: Array) -> Array:
        """dq with a tile's part."""
        dq += part
        return dq

    def dk_tile(self, dproduct: Array, keys: slice) -> Array:
        """dk of a tile."""
        return dproduct.swapaxes(-1, -2) @ finite(self.q)

    def dv_tile(self, p: Array, dout: Array, keys: slice) -> Array:
        """dv of a tile."""
        return p.swapaxes(-1, -2) @ dout

    def dbias_tile(self, ds: Array, keys: slice) -> Array:
        """The gradient of a tile's bias, before it is summed: (B, H, Nq, c)."""
        return ds

    def dsinks(self, lse: Array, inner: Array) -> Array:
        """(H,)."""
        weight = self.exp(self.sinks - shift(lse))
        total: Array = -(weight * inner).sum(axis=(0, 2, 3))
        return total

    def backward_tiles(self) -> Iterable[slice]:
        """The tiles of keys of the backward pass."""
        return self.tiles()

    def gradients(self) -> dict[str, Array]:
        """dq, dk, dv, and dbias and dsinks where there are a bias and sinks."""
        with np.errstate(all="ignore"):
            found = self.backward()
        return {name: self.stored(x, self.raw[name[1:]]) for name, x in found.items()}

    def backward(self) -> dict[str, Array]:
        """The gradients before they are stored, in the shapes of the inputs."""
        out, lse = self.forward()
        self.returning = True
        dout = self.read("dout", self.raw["dout"])
        inner = self.inner(dout, out)
        dq, dk, dv = np.zeros_like(self.q), np.zeros_like(self.k), np.zeros_like(self.v)
        dbias = None if self.bias is None else np.zeros(self.bias.shape, self.real)
        for keys in self.backward_tiles():
            s, slope = self.scores(keys)
            p = self.weights(s, lse)
            ds = self.dscores(p, self.dweights(dout, keys), inner)
            dproduct = self.dproduct(ds, p, slope)
            dq = self.dq_added(dq, self.dq_tile(dproduct, keys))
            dk[..., keys, :] = self.dk_tile(dproduct, keys)
            dv[..., keys, :] = self.dv_tile(p, dout, keys)
            if dbias is not None:
                dbias[..., keys] = self.dbias_tile(ds, keys)
        found = {"dq": dq, "dk": self.per_key_head("dk", dk), "dv": self.per_key_head("dv", dv)}
        if dbias is not None:
            found["dbias"] = self.gathered(dbias, self.raw["bias"].shape)
        if self.sinks is not None:
            found["dsinks"] = self.dsinks(lse, inner)
        return found

    def per_key_head(self, name: str, x: Array) -> Array:
        """(B, H, Nk, ·) -> (B, Hkv, Nk, ·): summed over the query heads of each key head."""
        group = self.heads // self.kv_heads
        total: Array = x.reshape(self.batch, self.kv_heads, group, *x.shape[2:]).sum(axis=2)
        return total

    def gathered(self, x: Array, shape: tuple[int, ...]) -> Array:
        """(B, H, Nq, Nk) summed over the axes along which `shape` is broadcast."""
        full = (1,) * (x.ndim - len(shape)) + shape
        axes = tuple(axis for axis, n in enumerate(full) if n == 1)
        total: Array = x.sum(axis=axes, keepdims=True).reshape(shape)
        return total


# -- shared arithmetic -----------------------------------------------------------------------------


def shift(largest: Array) -> Array:
    """What to subtract before exp: -inf - (-inf) is NaN, so a row that sees nothing uses 0."""
    return np.where(np.isneginf(largest), 0, largest).astype(largest.dtype)


def finite(x: Array) -> Array:
    """NaN and infinities replaced by 0: 0 · NaN is NaN, so a zero weight does not hide them."""
    return np.where(np.isfinite(x), x, 0)


def rounded(x: Array, name: str) -> Array:
    """Rounded to a format by its name, in the type that it came in."""
    return FORMATS[name].round(x).astype(x.dtype)


def product(weights: Array, value: Array, visible: Callable[[], Array]) -> Array:
    """Weights (…, r, c) times values (…, c, Dv), where a hidden value cannot matter.

    NaN where a row sees a value that is not finite; only then is `visible` asked.
    """
    spoilt = ~np.isfinite(value)
    if not spoilt.any():
        return weights @ value
    sees_it = visible().astype(weights.dtype) @ spoilt.astype(weights.dtype) > 0
    return np.where(sees_it, np.nan, weights @ finite(value)).astype(weights.dtype)


def kernel_of(pipeline: type[Pipeline], *, name: str, **declares: Any) -> Kernel:
    """The pipeline as a kernel: all options, all gradients, float32 inside unless declared."""
    of_class = {"dtypes": FORMATS, "accumulate": "float32", "hidden_nan": True}
    of_class |= {"tile": pipeline.tile, **pipeline.declares}

    def attention(
        q: Array,
        k: Array,
        v: Array,
        *,
        scale: float,
        causal: bool = False,
        window: Window | None = None,
        mask: Array | None = None,
        bias: Array | None = None,
        softcap: float | None = None,
        sinks: Array | None = None,
        alibi: Array | None = None,
        key_lengths: Array | None = None,
        query_lengths: Array | None = None,
        return_lse: bool = False,
    ) -> Array | tuple[Array, Array]:
        return pipeline(
            q,
            k,
            v,
            scale=scale,
            causal=causal,
            window=window,
            mask=mask,
            bias=bias,
            softcap=softcap,
            sinks=sinks,
            alibi=alibi,
            key_lengths=key_lengths,
            query_lengths=query_lengths,
            return_lse=return_lse,
        ).answer()

    def backward(q: Array, k: Array, v: Array, dout: Array, **options: Any) -> dict[str, Array]:
        return pipeline(q, k, v, dout=dout, **options).gradients()

    attention.__module__ = pipeline.__module__
    made = kernel(name=name, **{**of_class, **declares})(attention)
    made.backward = backward
    return made
