"""The checkout contains no accidental files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {".ci", "benchmarks", "docs", "examples", "src", "tests"}
FILES = {
    ".gitignore",
    ".pre-commit-config.yaml",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "constraints.txt",
    "mkdocs.yml",
    "pyproject.toml",
}


def unexpected(tracked: list[str]) -> set[str]:
    """Unexpected names at the root of the checkout."""
    return {path.partition("/")[0] for path in tracked} - FOLDERS - FILES


def test_nothing_else_is_tracked_at_the_root() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not unexpected(tracked.stdout.splitlines())


def test_a_file_left_by_an_example_is_noticed() -> None:
    assert unexpected(["README.md", "src/gnvpro/__init__.py", "digits.png", "lost/a.py"]) == {"digits.png", "lost"}
