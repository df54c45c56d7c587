"""The advice for a missing library works from a checkout, a wheel or an index: it names libraries, not this package."""

from __future__ import annotations

import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest

from gnvpro import extras

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def test_the_advice_names_what_the_extra_stands_for(monkeypatch):
    lines = ['rich>=13 ; extra == "cli"', "gnvpro[cli] ; extra == 'all'", 'matplotlib ; extra == "all"', "torch>=2"]
    monkeypatch.setattr(extras, "requires", lambda name: lines)
    assert extras.requirements("cli") == ["rich>=13"]
    assert extras.requirements("all") == ["rich>=13", "matplotlib"]
    assert "pip install 'rich>=13' 'matplotlib' (the extra gnvpro[all])" in extras.how_to_get("all")


def test_no_extra_of_the_project_is_left_unresolved():
    for extra in PROJECT["optional-dependencies"]:
        # an environment may have been installed before an extra was added
        if extra not in ("bench", "docs", "dev") and extra in metadata("gnvpro").get_all("Provides-Extra"):
            assert not [each for each in extras.requirements(extra) if each.startswith("gnvpro")], extra


def test_a_checkout_that_is_not_installed_names_the_extra(monkeypatch):
    def nothing(name):
        raise extras.PackageNotFoundError(name)

    monkeypatch.setattr(extras, "requires", nothing)
    assert "pip install 'gnvpro[plot]'" in extras.how_to_get("plot")


def test_a_library_that_lacks_something_of_its_own_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "half_there.py").write_text("import surely_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="surely_not_there"):
        extras.need("half_there", "plot")
