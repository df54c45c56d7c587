"""Benchmarks, examples and tests import names that the package has: most of them run too long to be run by a test."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

import pytest

import gnvpro

SOURCE = Path(gnvpro.__file__).parent
ROOT = Path(__file__).parents[2]
FILES = [file for folder in ("benchmarks", "examples", "tests") for file in sorted((ROOT / folder).rglob("*.py"))]


@lru_cache
def names_of(module: str) -> set[str]:
    """Return the names that a module of the package defines or imports; a package also has its modules."""
    place = SOURCE.joinpath(*module.split(".")[1:])
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    if not file.exists():
        return set()
    found = {each.stem for each in place.iterdir()} if place.is_dir() else set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # of names that are imported at their first use
    return found


@pytest.mark.skipif(not FILES, reason="not a checkout")
def test_every_name_that_is_imported_from_the_package_exists() -> None:
    missing = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.module}.{alias.name}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gnvpro"
        for alias in node.names
        if alias.name not in names_of(node.module or "")
    ]
    assert missing == []
