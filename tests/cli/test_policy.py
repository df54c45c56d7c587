"""`gnvpro policy` prints every row; the page of the documentation is made from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gnvpro.cli import app
from gnvpro.policy import Policy, rows_of, shown

PAGE = Path(__file__).parents[2] / "docs" / "api" / "policy.md"


def printed(*words: str) -> str:
    done = CliRunner().invoke(app, ["policy", *words], env={"COLUMNS": "400"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("with_rich", [True, False])
def test_every_row_is_printed(with_rich: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_rich:

        def need(module: str, extra: str) -> None:
            raise ImportError(module)

        monkeypatch.setattr("gnvpro.cli.policy.need", need)
    lines = printed().splitlines()
    for row in rows_of(Policy()):
        name = f"{row.subject}.{row.name}"
        assert any(name in line and shown(row.value) in line and row.decides in line for line in lines), name


def test_the_page_of_the_documentation_is_up_to_date() -> None:
    assert PAGE.read_text() == printed("--markdown"), "run gnvpro policy --markdown > docs/api/policy.md"
