"""Right numbers in the wrong container."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnspec.adapters.catalogue import fault
from attnspec.adapters.pipeline import Array, Pipeline

__all__: list[str] = []


class Returned(Pipeline):
    """What is returned can be changed: out, and lse of shape (B, H, Nq)."""

    def answer(self) -> Any:
        found = super().answer()
        if isinstance(found, tuple):
            return self.wrapped(self.out(found[0]), self.lse(found[1]))
        return self.out(found)

    def out(self, x: Array) -> Any:
        """The output as it is returned."""
        return x

    def lse(self, x: Array) -> Any:
        """lse as it is returned."""
        return x

    def wrapped(self, out: Any, lse: Any) -> Any:
        """Both."""
        return out, lse


# -- out -------------------------------------------------------------------------------------------


@fault(kind="contract", shows=("out", "lse"))
class Float64Output(Returned):
    """The output has the type float64."""

    def out(self, x: Array) -> Any:
        return x.astype(np.float64)


@fault(kind="contract", shows=("out", "lse"), dtypes=("float16",))
class OutputInTheTypeOfTheSums(Returned):
    """The output of half precision inputs has the type float32."""

    def out(self, x: Array) -> Any:
        return x.astype(np.float32)


@fault(kind="output-layout", shows=("out", "lse"))
class TransposedOutput(Returned):
    """The output has the shape (B, N, H, D)."""

    def out(self, x: Array) -> Any:
        return x.swapaxes(1, 2)


@fault(kind="output-layout", shows=("out", "lse"))
class HeadsJoinedInTheOutput(Returned):
    """The output has the shape (B, N, H · D)."""

    def out(self, x: Array) -> Any:
        return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(self.batch, self.rows, -1)


@fault(kind="contract", shows=("out", "lse"))
class BatchOfOneDropped(Returned):
    """A batch of one has no batch axis in the output."""

    def out(self, x: Array) -> Any:
        return x[0] if self.batch == 1 else x


@fault(kind="contract", shows=("out", "lse"))
class OutputOfTheSizeOfKeys(Returned):
    """The output has as many columns as a key, which a value need not have."""

    def out(self, x: Array) -> Any:
        found = np.zeros((*x.shape[:3], self.size), x.dtype)
        found[..., : self.value_size] = x[..., : self.size]
        return found


@fault(kind="contract", shows=("out",))
class OutputInTuple(Returned):
    """The output comes in a tuple of one."""

    def answer(self) -> Any:
        found = super().answer()
        return found if isinstance(found, tuple) else (found,)


@fault(kind="contract", shows=("out", "lse"))
class OutputInList(Returned):
    """The output comes as a list of lists."""

    def out(self, x: Array) -> Any:
        return x.tolist()


@fault(kind="contract", shows=("out", "lse"), sentinel=True)
class ReturnsNothing(Returned):
    """Nothing is returned."""

    def answer(self) -> Any:
        return None


# -- lse -------------------------------------------------------------------------------------------


@fault(kind="contract", shows=("lse",))
class LseWithTrailingAxis(Returned):
    """lse has the shape (B, H, N, 1)."""

    def lse(self, x: Array) -> Any:
        return x[..., None]


@fault(kind="output-layout", shows=("lse",))
class LseByRows(Returned):
    """lse has the shape (B, N, H)."""

    def lse(self, x: Array) -> Any:
        return x.swapaxes(1, 2)


@fault(kind="contract", shows=("lse",), dtypes=("float16",))
class LseInStorage(Returned):
    """lse has the type of the inputs, though float32 is declared."""

    def lse(self, x: Array) -> Any:
        return x.astype(self.dtype)


@fault(kind="contract", shows=("lse",))
class LseFirst(Returned):
    """lse comes before the output."""

    def wrapped(self, out: Any, lse: Any) -> Any:
        return lse, out


@fault(kind="contract", shows=("lse",))
class LseNotReturned(Returned):
    """lse is not returned although it is asked for."""

    def wrapped(self, out: Any, lse: Any) -> Any:
        return out


@fault(kind="contract", shows=("out-beside-lse",), spoils=())
class OutputScaledBesideLse(Returned):
    """Where lse is asked for, the output is not divided by the sum of the weights."""

    def wrapped(self, out: Any, lse: Any) -> Any:
        with np.errstate(all="ignore"):
            return (out * np.exp(lse)[..., None]).astype(out.dtype), lse


# -- gradients -------------------------------------------------------------------------------------


@fault(kind="contract", shows=("dk", "dv"))
class GradientsOfEveryQueryHead(Pipeline):
    """dk and dv come for each query head, not for each key head."""

    def per_key_head(self, name: str, x: Array) -> Array:
        return x


@fault(kind="broadcast", shows=("dbias",))
class DbiasOfTheFullShape(Pipeline):
    """dbias has the shape of the scores whatever the shape of the bias."""

    def gathered(self, x: Array, shape: tuple[int, ...]) -> Array:
        return x


@fault(kind="contract", shows=("dq", "dk", "dv"))
class GradientsSwapped(Pipeline):
    """dq and dk are returned in each other's place."""

    def gradients(self) -> dict[str, Array]:
        found = super().gradients()
        return {**found, "dq": found["dk"], "dk": found["dq"]}


# -- refusals --------------------------------------------------------------------------------------


@fault(kind="contract", shows=("out", "lse", "dq"), sentinel=True)
class Raises(Pipeline):
    """Every call raises an error."""

    def ready(self) -> None:
        raise ValueError("no attention today")


@fault(kind="contract", reports=("Dao-AILab/flash-attention#2470",))
class RaisesWithoutKeys(Pipeline):
    """A call without keys raises an error."""

    def ready(self) -> None:
        if self.keys == 0:
            raise ZeroDivisionError("integer division by the number of tiles")


@fault(kind="contract")
class RaisesForMasksOfTwoAxes(Pipeline):
    """A mask of two axes raises an error."""

    def spread(self, name: str, x: Array) -> Array:
        if name == "mask" and x.ndim == 2:
            raise ValueError("mask: expected four axes")
        return super().spread(name, x)


@fault(kind="contract", reports=("jax-ml/jax#28974",))
class RaisesForMasksOfKeys(Pipeline):
    """A mask of the shape (B, 1, 1, Nk) raises an error."""

    def spread(self, name: str, x: Array) -> Array:
        if name == "mask" and x.shape[1:3] == (1, 1):
            raise ValueError("mask: cannot be broadcast")
        return super().spread(name, x)


@fault(kind="contract")
class ExitsOnLongRows(Pipeline):
    """Rows of more than 512 keys end the program."""

    def ready(self) -> None:
        if self.keys > 512:
            raise SystemExit(3)
