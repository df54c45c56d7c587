"""The python blocks of the documentation run, page by page; every page is in the navigation, every public name in the API."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from test_readme import python_blocks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RUNNABLE = ("index", "method", "choose", "own_loop", "extend", "faq", "equations")


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE)
def test_the_blocks_of_a_page_run_in_order(page: str) -> None:
    path = DOCS / f"{page}.md"
    blocks = python_blocks(path.read_text())
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(path), "exec", dont_inherit=True), names)


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    assert listed == {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}


@pytest.mark.parametrize(
    ("module", "page", "elsewhere"),
    [
        ("gnvpro", "gnvpro", {"listeners", "networks"}),
        ("gnvpro.networks", "networks", set()),
        ("gnvpro.data", "data", set()),
        ("gnvpro.pde", "pde", {"points"}),
    ],
)
def test_every_public_name_is_in_the_api(module: str, page: str, elsewhere: set[str]) -> None:
    text = (DOCS / "api" / f"{page}.md").read_text()
    described = set(re.findall(rf"^::: {re.escape(module)}\.(\w+)$", text, flags=re.MULTILINE))
    for members in re.findall(rf"^::: {re.escape(module)}\n.*members: \[(.*?)\]", text, flags=re.MULTILINE):
        described |= set(members.split(", "))
    assert set(importlib.import_module(module).__all__) - elsewhere <= described


def test_every_example_is_on_its_page() -> None:
    listed = set(re.findall(r"`(\w+\.py)`", (DOCS / "examples.md").read_text()))
    assert listed == {path.name for path in (ROOT / "examples").glob("*.py")}


def test_nothing_is_fetched_from_elsewhere() -> None:
    """Neither pages nor settings refer to another host."""
    for path in [ROOT / "mkdocs.yml", *DOCS.rglob("*.css"), *(DOCS / f"{page}.md" for page in RUNNABLE)]:
        assert "://" not in path.read_text(), path
