"""The python blocks of the documentation run, page by page; every page is in the navigation, every public name in the API."""

from __future__ import annotations

import enum
import functools
import importlib
import importlib.util
import inspect
import json
import re
from pathlib import Path
from types import ModuleType

import pytest
from test_readme import python_blocks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RUNNABLE = (
    "index",
    "method",
    "choose",
    "own_loop",
    "extend",
    "faq",
    "streams",
    "equations",
    "equations/elliptic",
    "equations/evolution",
    "equations/ode",
    "equations/flow",
    "equations/inverse",
    "coming/deep_learning",
    "coming/scikit_learn",
    "coming/matlab",
    "coming/deepxde",
    "curves",
    "coming/lmfit",
    "coming/pyglotaran",
)
NOTEBOOKS = sorted(path.stem for path in (DOCS / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE)
def test_the_blocks_of_a_page_run_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = DOCS / f"{page}.md"
    blocks = python_blocks(path.read_text())
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(path), "exec", dont_inherit=True), names)
    assert not list(tmp_path.iterdir())  # blocks are run from the checkout, too


def notebook_tools() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebook_tools", DOCS / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_its_assertions_hold(name: str) -> None:
    notebook = json.loads((DOCS / "notebooks" / f"{name}.ipynb").read_text())
    notebook_tools().run(notebook, name)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert sum("assert " in "".join(cell["source"]) for cell in code) >= 2


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_shown_with_its_outputs(name: str) -> None:
    notebook = json.loads((DOCS / "notebooks" / f"{name}.ipynb").read_text())
    page = notebook_tools().page(notebook, name)
    assert page.startswith("# ")
    assert "data:image/png;base64," in page  # run `python docs/notebooks.py` after a change
    for cell in notebook["cells"]:
        assert "".join(cell["source"]) in page
        assert cell["cell_type"] == "markdown" or cell["execution_count"], "python docs/notebooks.py writes the outputs"


def test_a_cell_that_fails_fails_the_test() -> None:
    cell = {"cell_type": "code", "source": ["x = 1\n", "assert x == 2"], "outputs": []}
    with pytest.raises(AssertionError):
        notebook_tools().run({"cells": [cell]}, "bad")


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r": ([\w/]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert listed == pages | {f"notebooks/{name}.md" for name in NOTEBOOKS}


# modules with their own pages
MODULES = {"curves", "extend", "heads", "listeners", "losses", "methods", "networks", "pde", "solvers", "surrogate"}


@pytest.mark.parametrize(
    ("module", "page", "elsewhere"),
    [
        ("gnvpro", "gnvpro", MODULES),
        ("gnvpro.methods", "gnvpro", set()),
        ("gnvpro.solvers", "gnvpro", set()),
        ("gnvpro.heads", "gnvpro", set()),
        ("gnvpro.losses", "gnvpro", set()),
        ("gnvpro.extend", "gnvpro", {"Listener"}),  # on the page of the listeners
        ("gnvpro.networks", "networks", set()),
        ("gnvpro.data", "data", set()),
        ("gnvpro.pde", "pde", {"points"}),
        ("gnvpro.surrogate", "surrogate", set()),
        ("gnvpro.curves", "curves", set()),
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
    pages = (DOCS / f"{page}.md" for page in RUNNABLE)
    for path in [ROOT / "mkdocs.yml", *DOCS.rglob("*.css"), DOCS / "javascripts" / "formulas.js", *pages]:
        assert not re.search(r"(?<!file)://(?!\s)", path.read_text()), path


def test_the_page_on_networks_names_every_layer_with_a_formula() -> None:
    from gnvpro.network.derivatives.rules import RULES

    page = (DOCS / "extend.md").read_text()
    assert [kind.__name__ for kind in RULES if f"`{kind.__name__}`" not in page] == []


def test_no_entry_of_the_reference_stands_twice() -> None:
    entries = [
        entry for page in (DOCS / "api").glob("*.md") for entry in re.findall(r"^::: (\S+)", page.read_text(), re.M)
    ]
    assert sorted(entries) == sorted(set(entries))


PROSE = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def commands(start: str) -> set[tuple[str, str]]:
    """Page and rest of each command in the documentation that starts with these words, in a block or between backticks."""
    pattern = re.compile(rf"(?:^|`|\$ |&& )\s*(?:OMP_NUM_THREADS=1 )?(?:\.venv/bin/)?{start}([^`\n#]*)", re.M)
    return {(page.name, rest.strip()) for page in PROSE for rest in pattern.findall(page.read_text())}


def test_every_benchmark_and_script_that_a_page_names_exists() -> None:
    """Benchmarks may need packages of the extra bench, so they are found rather than imported."""
    named = commands(r"python (?=-m benchmarks|benchmarks|examples|docs|tests)")
    assert len(named) > 40
    lost = []
    for page, command in sorted(named):
        first = command.removeprefix("-m ").split()[0]
        path = ROOT / (first if first.endswith(".py") else first.replace(".", "/") + ".py")
        if not path.is_file() and not (path.with_suffix("") / "__main__.py").is_file():
            lost.append(f"{page}: {command}")
    assert lost == []


def test_every_option_and_choice_that_a_page_gives_to_a_benchmark_is_in_its_source() -> None:
    unknown = []
    for page, command in sorted(commands(r"python (?=-m benchmarks|benchmarks)")):
        first, *words = command.removeprefix("-m ").split()
        path = ROOT / (first if first.endswith(".py") else first.replace(".", "/") + ".py")
        folder = path.with_suffix("")
        source = path.read_text() if path.is_file() else "".join(p.read_text() for p in folder.glob("*.py"))
        unknown += [
            f"{page}: {command}: {w}" for w in words if w.startswith("--") and f'"{w.split("=")[0]}"' not in source
        ]
    assert unknown == []


def test_every_command_of_gnvpro_that_a_page_shows_is_valid() -> None:
    import typer

    from gnvpro.cli import app

    group = typer.main.get_command(app)
    wrong = []
    for page, line in sorted(commands(r"gnvpro (?=train|predict|run|report|list|inspect|policy|data )")):
        words, command = line.split(), group
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
        wrong += [f"{page}: gnvpro {line}: {word}" for word in words if word.startswith("-") and word not in options]
    assert wrong == []


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {rest.split()[0] for _, rest in commands(r"make (?=[a-z])") if rest} <= targets


def test_every_reference_to_a_python_name_has_an_entry_in_the_api() -> None:
    """Only the build of the site would notice otherwise."""
    entries: set[str] = set()
    for page in (DOCS / "api").glob("*.md"):
        for name, members in re.findall(r"^::: (\S+)(?:\n +options: \{.*?members: \[(.*?)\])?", page.read_text(), re.M):
            entries |= {name} | {f"{name}.{member}" for member in members.split(", ") if member}
    lost = [f"docs/api: {name} does not exist" for name in sorted(entries) if not is_there(name)]
    for page in PROSE:
        for name in re.findall(r"\]\[(gnvpro[\w.]*)\]", page.read_text()):
            owners = {name.rsplit(".", k)[0] for k in (0, 1, 2)}
            if not owners & entries:
                lost.append(f"{page.name}: {name}")
            elif not is_there(name):
                lost.append(f"{page.name}: {name} does not exist")
    assert lost == []


INTERNAL = ("inside",)  # pages without examples


def described() -> dict[str, object]:
    """Functions and classes that the reference describes, by their dotted names; not the modules inside."""
    found: dict[str, object] = {}
    for page in sorted(path for path in (DOCS / "api").glob("*.md") if path.stem not in INTERNAL):
        for name, members in re.findall(
            r"^::: (\S+)(?:\n +options: \{.*?(?<!_)members: \[(.*?)\])?", page.read_text(), re.M
        ):
            module, rest = imported(name)
            value = functools.reduce(getattr, rest, module)
            if members:
                found |= {f"{name}.{member}": getattr(value, member) for member in members.split(", ")}
            else:
                found[name] = value
    return {name: value for name, value in found.items() if inspect.isclass(value) or inspect.isfunction(value)}


def test_every_entry_of_the_reference_has_an_example_and_describes_its_arguments() -> None:
    entries, lacking = described(), []
    assert len(entries) > 80
    for name, value in entries.items():
        text = vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__
        if ">>> " not in text:
            lacking.append(f"{name}: an example")
        takes = (
            []
            if inspect.isclass(value) and issubclass(value, enum.Enum | Warning)
            else inspect.signature(value).parameters
        )
        named = {key for key in takes if not key.startswith("_")} - {"args", "kwargs"}
        if named and not re.search(r"^ *(Args|Attributes)", text, re.M):
            lacking.append(f"{name}: Args")
        if inspect.isfunction(value) and value.__annotations__.get("return") != "None" and "eturn" not in text:
            lacking.append(f"{name}: Returns")
    assert lacking == []


def imported(name: str) -> tuple[ModuleType, list[str]]:
    """Return the module of a dotted name, and the names inside that module."""
    module, rest = name, []
    while True:
        try:
            return importlib.import_module(module), rest
        except ModuleNotFoundError:
            module, _, last = module.rpartition(".")
            rest.insert(0, last)


def is_there(name: str) -> bool:
    """Return whether a dotted name can be imported."""
    found, rest = imported(name)
    for attribute in rest:
        if not hasattr(found, attribute) and attribute not in getattr(found, "__annotations__", {}):
            return False
        found = getattr(found, attribute, None)
    return True
