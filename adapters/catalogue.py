"""Implementations made for the suite's own test: `faulty:NAME` and `conforming:NAME`.

There is no table of names. An entry is a subclass of `Pipeline` with a decorator, in any module of
`adapters/faulty/` or `adapters/conforming/`; its name is the class's own, in words.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

from attnspec.adapters.fault_classes import class_of
from attnspec.adapters.kernel import Kernel
from attnspec.adapters.pipeline import Pipeline, kernel_of
from attnspec.oracle.problem import OUTPUTS

__all__ = ["CATALOGUES", "GRADIENTS", "Fault", "Variant", "catalogue", "fault", "variant"]

CATALOGUES = ("faulty", "conforming")

GRADIENTS = tuple(name for name in OUTPUTS if name not in ("out", "lse"))


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A pipeline with a name. `says` is what it does otherwise, in one sentence.

    group: the module that it stands in. options: what it claims, None for every option.
    dtypes: the types in which the suite's own test asks it.
    """

    name: str
    group: str
    says: str
    pipeline: type[Pipeline]
    without: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    reports: tuple[str, ...] = ()

    def kernel(self, **declares: Any) -> Kernel:
        """A fresh kernel: what the pipeline remembers between calls starts anew."""
        fresh = type(self.pipeline.__name__, (self.pipeline,), {"state": {}})
        made = kernel_of(fresh, name=self.name, **declares)
        return replace(made, options=made.options - set(self.without))


@dataclass(frozen=True, kw_only=True)
class Fault(Variant):
    """A pipeline that is wrong.

    kind: the kind of fault, as bug reports are sorted: one of `fault_classes.CLASSES`.
    reports: the public reports it re-creates.
    shows: claims that must fail, each of them, at `level`: `standard`, or `full` for what only
        long contexts show.
    spoils: the outputs that are wrong; comparisons of every other output must pass.
    sentinel: no level may let it pass.
    beyond_smoke: why level smoke cannot see it; empty for what it must catch.
    """

    kind: str
    shows: tuple[str, ...]
    spoils: tuple[str, ...]
    sentinel: bool = False
    level: str = "standard"
    beyond_smoke: str = ""

    @property
    def class_name(self) -> str:
        """The class of its kind."""
        return class_of(self.kind)


def fault(
    *,
    kind: str,
    shows: tuple[str, ...] = ("out",),
    spoils: tuple[str, ...] = OUTPUTS,
    reports: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = ("float32",),
    sentinel: bool = False,
    level: str = "standard",
    beyond_smoke: str = "",
) -> Callable[[type[Pipeline]], type[Pipeline]]:
    """A decorator: the subclass of `Pipeline` is a fault; see `Fault`.

    ValueError for a kind that no class has.
    """
    class_of(kind)

    def register(pipeline: type[Pipeline]) -> type[Pipeline]:
        return _register(
            Fault(
                **_named(pipeline),
                kind=kind,
                shows=shows,
                spoils=spoils,
                reports=reports,
                dtypes=dtypes,
                sentinel=sentinel,
                level=level,
                beyond_smoke=beyond_smoke,
            )
        )

    return register


def variant(
    *,
    without: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = ("float32",),
    reports: tuple[str, ...] = (),
) -> Callable[[type[Pipeline]], type[Pipeline]]:
    """A decorator: the subclass of `Pipeline` conforms to what it `declares`; see `Variant`.

    without: options that it does not claim.
    """

    def register(pipeline: type[Pipeline]) -> type[Pipeline]:
        named = _named(pipeline)
        return _register(Variant(**named, without=without, dtypes=dtypes, reports=reports))

    return register


_ENTRIES: dict[str, Variant] = {}
"""By module and name, as they are met."""


def _named(pipeline: type[Pipeline]) -> dict[str, Any]:
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", pipeline.__name__).lower()
    says = (pipeline.__doc__ or "").partition("\n")[0]
    return {"name": name, "group": pipeline.__module__, "says": says, "pipeline": pipeline}


def _register(entry: Variant) -> type[Pipeline]:
    key = f"{entry.group.rpartition('.')[0]}:{entry.name}"
    if key in _ENTRIES and _ENTRIES[key].group != entry.group:
        raise ValueError(f"{entry.name}: both in {_ENTRIES[key].group} and in {entry.group}")
    group = entry.group.rpartition(".")[2].replace("_", " ")
    _ENTRIES[key] = replace(entry, group=group)
    return entry.pipeline


@cache
def catalogue(name: str) -> Mapping[str, Any]:
    """Every entry of `faulty` or `conforming`, by its name, module by module."""
    package = import_module(f"attnspec.adapters.{name}")
    for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
        import_module(f"{package.__name__}.{module.name}")
    own = {key: entry for key, entry in _ENTRIES.items() if key.startswith(package.__name__ + ":")}
    return {entry.name: entry for entry in own.values()}
