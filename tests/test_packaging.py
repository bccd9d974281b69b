"""What is installed is what is in the tree: an unlisted folder would be left out silently."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_folder_of_code_is_packaged_and_linked():
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    code = [p.parent.relative_to(ROOT) for p in ROOT.glob("[!.]*/**/__init__.py")]
    code = [folder for folder in code if folder.parts[0] not in ("attnspec", "tests", "build")]
    names = {"attnspec." + ".".join(folder.parts) for folder in code}
    assert listed == {"attnspec", *names}
    assert set(PROJECT["tool"]["setuptools"]["package-dir"].values()) == set(map(str, code))
    for folder in {folder.parts[0] for folder in code}:  # links serve editors and type checkers
        assert (ROOT / "attnspec" / folder).resolve() == ROOT / folder


def test_the_version_is_said_once():
    import attnspec

    assert attnspec.__version__ == PROJECT["project"]["version"]


def test_the_plugin_is_an_entry_point():
    points = importlib.metadata.entry_points(group="pytest11")
    assert {p.value for p in points if p.name == "attnspec"} == {"attnspec.conformance.plugin"}


def test_importing_the_package_loads_no_framework():
    code = (
        "import sys, attnspec.oracle, attnspec.adapters, attnspec.conformance.session; "
        "print(sorted({'torch', 'jax', 'sympy', 'flint', 'mpmath'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
