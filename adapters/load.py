"""From the text after `--impl=` to a kernel.

    numpy-flash            a registered name; its first word names the file, numpy_kernels.py
    my_kernel.py           the only kernel of a file
    my_kernel.py:attention
    package.module:attention
    mine                   an entry point of the group `attnspec.adapters`
    faulty:causal-top-left an entry of a catalogue (see `catalogue`)

There is no table of names: a kernel is registered by standing in `<word>_kernels.py` of this
package under a `name=` that starts with that word. Such a file imports its framework inside its
functions, so that names can be listed where the framework is missing.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import traceback
from collections.abc import Iterable
from importlib import import_module, util
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from attnspec.adapters.catalogue import CATALOGUES, catalogue
from attnspec.adapters.frameworks import uninstalled
from attnspec.adapters.kernel import Kernel, KernelError, as_kernel

__all__ = ["LoadError", "bound_name", "load", "load_fresh", "registered"]

GROUP = "attnspec.adapters"


class LoadError(ValueError):
    """There is no such kernel, or it cannot run here; the message says what to do, in one line."""


def load(spec: str) -> Kernel:
    """The kernel that `spec` names, ready to run. Raises `LoadError`."""
    found = _find(spec)
    try:
        kernel = as_kernel(found)
    except KernelError as error:
        raise LoadError(f"{spec}: {error}") from None
    if reason := kernel.available():
        raise LoadError(f"{spec}: {reason}")
    return kernel


def load_fresh(spec: str) -> Kernel:
    """The same, remembering nothing of earlier calls: a file is executed anew. Raises `LoadError`.

    A module that is imported by name stays as it is.
    """
    if file := re.fullmatch(r"(.+\.py)(?::(\w+))?", spec):
        sys.modules.pop(_module_name(Path(file[1]).resolve()), None)
    return load(spec)


def bound_name(path: Path) -> str:
    """The name of the only kernel of a file that has been loaded."""
    module = _execute(path.resolve())
    return next(iter(_kernels(module) or _functions(module)))


def registered() -> dict[str, str | None]:
    """Every registered name, with None where it can run, or what to install or plug in."""
    names = {kernel.name: kernel.available() for kernel in _all_registered()}
    return names | {point.name: None for point in entry_points(group=GROUP)}


# -- finding -------------------------------------------------------------------------------------


def _find(spec: str) -> Any:
    word, _, name = spec.partition(":")
    if word in CATALOGUES and name:
        return _from_catalogue(word, name)
    if file := re.fullmatch(r"(.+\.py)(?::(\w+))?", spec):
        return _from_file(Path(file[1]), file[2])
    if module := re.fullmatch(r"([\w.]+):(\w+)", spec):
        return _named(_import(spec, module[1]), module[2], module[1])
    return _from_names(spec)


def _from_names(spec: str) -> Any:
    word = spec.partition("-")[0]
    for kernel in _registered(word) if word in _words() else ():
        if kernel.name == spec:
            return kernel
    for point in entry_points(group=GROUP, name=spec):
        return _from_entry_point(point)
    known = sorted(
        {kernel.name for kernel in _all_registered()}
        | {point.name for point in entry_points(group=GROUP)}
    )
    raise LoadError(
        f"{spec}: no such implementation{_meant(spec, known)}; known: {', '.join(known)}; "
        "or give file.py, file.py:name or package.module:name"
    )


def _from_catalogue(word: str, name: str) -> Kernel:
    known = catalogue(word)
    if name not in known:
        which = "" if word == "faulty" else f"--{word} "
        raise LoadError(
            f"{word}:{name}: no such implementation{_meant(name, known)}; "
            f"`attnspec selftest {which}--list` names them"
        )
    found: Kernel = known[name].kernel()
    return found


def _words() -> list[str]:
    """The first words of the registered names."""
    files = Path(__file__).parent.glob("*_kernels.py")
    return sorted(file.stem.removesuffix("_kernels") for file in files)


def _registered(word: str) -> list[Kernel]:
    return list(_kernels(import_module(f"attnspec.adapters.{word}_kernels")).values())


def _all_registered() -> list[Kernel]:
    return [kernel for word in _words() for kernel in _registered(word)]


def _from_entry_point(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        raise LoadError(
            f"{point.name}: the entry point {point.value} does not load: {_said(error)}"
        ) from None


def _import(spec: str, name: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:  # where the user stands, as `python -m` looks; last
        sys.path.append(str(Path.cwd()))
    try:
        return import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and name.startswith(error.name or "?"):
            raise LoadError(f"{spec}: no module {error.name}; install it, or give a file") from None
        raise LoadError(f"{spec}: {name} does not import: {_said(error)}") from None


def _from_file(path: Path, name: str | None) -> Any:
    if not path.is_file():
        raise LoadError(f"{path}: no such file (looked in {Path.cwd()})")
    module = _execute(path.resolve())
    if name is not None:
        return _named(module, name, str(path))
    found: dict[str, Any] = _kernels(module) or _functions(module)
    if not found:
        raise LoadError(f"{path}: no kernel in it; define a function of q, k, v with @kernel")
    if len(found) > 1:
        choices = ", ".join(f"{path}:{one}" for one in found)
        raise LoadError(f"{path}: {len(found)} kernels in it; give one of {choices}")
    return next(iter(found.values()))


def _execute(path: Path) -> ModuleType:
    """The user's file as a module, once a process: libraries may register their operators once."""
    name = _module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # its own imports; last, so that it hides no library
    spec = util.spec_from_file_location(name, path)
    assert spec is not None, "the name ends in .py"
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise LoadError(f"{_where(error, path)}: {_said(error)}") from None
    return module


def _module_name(path: Path) -> str:
    return f"attnspec_impl_{abs(hash(str(path)))}_{path.stem}"


def _where(error: BaseException, path: Path) -> str:
    """file:line, the last line of the file that was reached."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _said(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "jax"):
        return uninstalled(error.name) or str(error)
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {(text.strip().splitlines() or ['no message'])[0]}"


# -- choosing ------------------------------------------------------------------------------------


def _named(module: ModuleType, name: str, place: str) -> Any:
    found = getattr(module, name, None)
    if callable(found):
        return found
    if found is not None:
        raise LoadError(f"{place}: {name} is not a function")
    names = [*_kernels(module), *_functions(module)]
    raise LoadError(
        f"{place}: no {name} in it{_meant(name, names)}; it defines {', '.join(names) or 'none'}"
    )


def _kernels(module: ModuleType) -> dict[str, Kernel]:
    """The kernels that a module declares, by the name they are bound to."""
    return {n: v for n, v in _own(module).items() if isinstance(v, Kernel)}


def _functions(module: ModuleType) -> dict[str, Any]:
    return {n: v for n, v in _own(module).items() if inspect.isfunction(v)}


def _own(module: ModuleType) -> dict[str, Any]:
    public = {n: v for n, v in vars(module).items() if not n.startswith("_")}
    return {n: v for n, v in public.items() if not _imported(v, module)}


def _imported(value: Any, module: ModuleType) -> bool:
    """Whether another module holds the same object: `kernel(their_function)` is not imported."""
    home = sys.modules.get(getattr(value, "__module__", None) or "")
    if home is None or home is module:
        return False
    return any(value is held for held in vars(home).values())


def _meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=2)
    return f" (did you mean {' or '.join(close)}?)" if close else ""
