"""From the text after --impl= to a kernel, and one line where that fails."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from attnspec.adapters import Kernel, LoadError, load, registered
from attnspec.adapters.frameworks import uninstalled

ONE = """
from attnspec.adapters import kernel
from attnspec.adapters.numpy_kernels import naive

@kernel
def attention(q, k, v, *, scale):
    return _helper(q)

def _helper(q):
    return q

def another(q, k, v):
    return q
"""

TWO = (
    ONE
    + """
@kernel(name="second")
def other(q, k, v):
    return q

number = 3
"""
)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def refusal(spec: object) -> str:
    with pytest.raises(LoadError) as raised:
        load(str(spec))
    message = str(raised.value)
    assert "\n" not in message
    return message


# -- registered names ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numpy", "numpy-flash"])
def test_a_registered_name_loads(name: str) -> None:
    assert load(name).name == name


def test_every_registered_name_starts_with_its_files_word_and_loads_or_says_why_not() -> None:
    names = registered()
    assert {"numpy", "numpy-flash", "torch-sdpa", "torch-eager", "torch-cuda", "jax"} <= set(names)
    for name, reason in names.items():
        if reason is None:
            assert load(name).name == name
        else:
            assert refusal(name) == f"{name}: {reason}"


def test_an_unknown_name_suggests_what_was_meant_and_lists_the_rest() -> None:
    message = refusal("numpy-flsh")
    assert "did you mean numpy-flash" in message
    assert "torch-sdpa" in message


def test_a_name_whose_library_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("attnspec.adapters.frameworks.find_spec", lambda name: None)
    assert refusal("jax") == "jax: jax is not installed: pip install 'attnspec[jax]'"
    assert registered()["torch-sdpa"] == uninstalled("torch")
    assert registered()["numpy"] is None


def frameworks_after(code: str) -> set[str]:
    """What a fresh interpreter has imported after running the code."""
    code = f"import sys; {code}; print(*[m for m in ('torch', 'jax') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_no_framework_is_imported_before_it_is_used() -> None:
    used = "from attnspec.adapters import load; load('numpy'); load('torch-sdpa'); load('jax')"
    assert frameworks_after(used) == set()


def test_that_test_can_fail() -> None:
    pytest.importorskip("jax")
    assert "jax" in frameworks_after("import jax")


# -- files ---------------------------------------------------------------------------------------


def test_a_file_with_one_kernel_needs_no_name(write: Any) -> None:
    loaded = load(str(write(ONE)))
    assert isinstance(loaded, Kernel)
    assert loaded.name == "attention"
    assert loaded(1, 2, 3, scale=1.0) == 1


def test_an_undecorated_function_is_taken_with_the_defaults(write: Any) -> None:
    loaded = load(str(write("def attention(q, k, v, *, causal=False):\n    return q\n")))
    assert (loaded.framework, loaded.options) == ("numpy", {"causal"})
    assert load(f"{write(ONE, 'one.py')}:another").name == "another"


def test_somebody_elses_function_may_be_declared(write: Any) -> None:
    write("def theirs(q, k, v):\n    return q\n", "theirs_module.py")
    text = "import theirs_module\nfrom attnspec.adapters import kernel\n"
    loaded = load(str(write(f"{text}mine = kernel(theirs_module.theirs)\n", "wraps.py")))
    assert loaded.name == "theirs"


def test_a_file_with_several_kernels_lists_them(write: Any) -> None:
    path = write(TWO)
    assert refusal(path) == f"{path}: 2 kernels in it; give one of {path}:attention, {path}:other"
    assert load(f"{path}:other").name == "second"


def test_a_file_runs_once(write: Any) -> None:
    path = write(TWO)
    assert load(f"{path}:other") is load(f"{path}:other")


@pytest.mark.parametrize(
    "name, message",
    [
        ("attentoin", "no attentoin in it (did you mean attention?); it defines attention, other"),
        ("number", "number is not a function"),
    ],
)
def test_a_name_that_is_not_there_suggests_another(write: Any, name: str, message: str) -> None:
    path = write(TWO)
    assert refusal(f"{path}:{name}").startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    "text, message",
    [
        ("x = 1\ndef attention(q, k, v)\n    return q\n", "2: SyntaxError: expected ':'"),
        ("x = 1\n\ny = x / 0\n", "3: ZeroDivisionError: division by zero"),
        ("import no_such_module\n", "1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("import sys\nsys.exit('one\\ntwo')\n", "2: SystemExit: one"),
        ("def f():\n    raise OSError\n\nf()\n", "2: OSError: no message"),
        (
            "from attnspec.adapters import kernel\n@kernel(diagonal='up')\n"
            "def attention(q, k, v):\n    return q\n",
            "2: KernelError: attention: diagonal: expected one of",
        ),
    ],
)
def test_a_file_that_does_not_run_is_named_with_its_line(
    write: Any, text: str, message: str
) -> None:
    path = write(text)
    assert refusal(path).startswith(f"{path}:{message}")


def test_a_function_that_cannot_be_a_kernel_is_refused_in_one_line(write: Any) -> None:
    path = write("def attention(q, **options):\n    return q\n")
    assert refusal(path) == f"{path}: attention: expected the positional parameters q, k, v"


def test_a_missing_or_empty_file_says_so(write: Any, tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.py")
    assert "no kernel in it" in refusal(write("x = 1\n"))


# -- modules and entry points --------------------------------------------------------------------


def test_a_module_and_a_name(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(TWO, "attnspec_test_module.py")
    monkeypatch.syspath_prepend(path.parent)
    assert load("attnspec_test_module:other").name == "second"
    assert "no nothing in it" in refusal("attnspec_test_module:nothing")


def test_a_module_that_is_missing_or_broken(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("1 / 0\n", "attnspec_test_broken.py")
    monkeypatch.syspath_prepend(path.parent)
    assert "no module attnspec_absent" in refusal("attnspec_absent.kernels:attention")
    assert "does not import: ZeroDivisionError" in refusal("attnspec_test_broken:attention")


def test_entry_points_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("theirs", "attnspec.adapters.numpy_kernels:flash", "attnspec.adapters"),
        EntryPoint("broken", "attnspec.adapters.numpy_kernels:none", "attnspec.adapters"),
    ]

    def entry_points(*, group: str, name: str | None = None) -> list[EntryPoint]:
        assert group == "attnspec.adapters"
        return [point for point in points if name in (None, point.name)]

    module = sys.modules["attnspec.adapters.load"]  # the package's own `load` is the function
    monkeypatch.setattr(module, "entry_points", entry_points)
    assert load("theirs").name == "numpy-flash"
    assert registered()["theirs"] is None
    assert refusal("broken").startswith("broken: the entry point attnspec.adapters.numpy_kernels")
    assert "did you mean theirs" in refusal("thiers")
