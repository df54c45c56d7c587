"""The python blocks of the README run, one after the other, as a newcomer would type them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import torch

README = Path(__file__).parents[2] / "README.md"


def python_blocks(text: str) -> list[str]:
    """Fenced python blocks, padded with blank lines so that errors point at the README's own lines."""
    found = re.finditer(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return ["\n" * text[: match.start(1)].count("\n") + match.group(1) for match in found]


def run_blocks(text: str) -> dict[str, object]:
    names: dict[str, object] = {}
    for block in python_blocks(text):
        exec(compile(block, str(README), "exec"), names)
    return names


@pytest.mark.slow
def test_the_quick_starts_train_what_they_promise(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_blocks(README.read_text())
    result, model, (inputs, labels) = names["result"], names["model"], names["validation"]
    assert max(result.history.column("validation_accuracy")) > 0.9
    assert (model(inputs).argmax(1) == labels).double().mean() > 0.9  # after the own loop, too
    assert names["regressor"].score(names["X"], names["y"]) > 0.99
    corners = torch.tensor([[0.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    assert names["u"](corners)[:, 0].tolist() == pytest.approx(
        [0.0, 0.0737], abs=2e-3
    )  # a series of Poisson's equation
    assert "validation accuracy" in capsys.readouterr().out


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) < 120


def test_a_block_that_fails_fails_the_test() -> None:
    with pytest.raises(ZeroDivisionError):
        run_blocks("text\n```python\n1 / 0\n```\n")


def code_map() -> list[str]:
    """The packages and modules of the README's code map, from top to bottom."""
    section = README.read_text().split("## Code map")[1].split("\n## ")[0]
    tree = section.split("```text\n")[1].split("```")[0]
    return [line.split()[0].rstrip("/") for line in tree.splitlines()]


def test_the_code_map_names_every_package_and_nothing_else() -> None:
    package = README.parent / "src" / "gnvpro"
    here = {p.name for p in package.iterdir() if (p / "__init__.py").is_file()}
    here |= {p.stem for p in package.glob("*.py")} - {"__init__", "__main__"}
    listed = code_map()
    assert set(listed) == here
    assert len(listed) == len(here)


def test_the_code_map_is_in_the_order_of_imports() -> None:
    settings = tomllib.loads((README.parent / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert code_map() == [name for layer in settings["contracts"][0]["layers"] for name in layer.split(" | ")]
