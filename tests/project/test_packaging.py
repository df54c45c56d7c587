"""Wheel and source distribution: built, installed into a clean environment, and used there."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def run(*words: object, cwd: Path, **more: str) -> str:
    hidden = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden} | more
    done = subprocess.run(
        [str(w) for w in words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="hatchling builds the wheel; it is in the extra dev")
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", out, cwd=ROOT)
    return out


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_files(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    here = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.suffix in (".py", ".npz", ".css", ".js", ".html", ".typed") or path.name == "py.typed"
    }
    assert here <= names
    assert not [name for name in names if not name.startswith(("gnvpro/", f"gnvpro-{PROJECT['version']}.dist-info/"))]


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    assert sdist.stat().st_size < 3e6
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has none
        archive.extractall(tmp_path)
    (source,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again", cwd=source)
    (wheel,), (again,) = built.glob("*.whl"), (tmp_path / "again").glob("*.whl")
    assert sorted(zipfile.ZipFile(again).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_the_wheel_works_in_a_clean_environment(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    place = tmp_path / "clean"
    venv.create(place, with_pip=False)
    python = place / "bin" / "python"
    # its packages are the wheel's; torch and the other libraries come from the existing installation
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel, cwd=tmp_path)
    libraries = {str(Path(torch.__file__).parents[1]), sysconfig.get_path("purelib")}
    (site / "libraries.pth").write_text("\n".join(libraries))
    script = (
        "import torch, gnvpro\n"
        "x = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]\n"
        "model = gnvpro.networks.MLP(1, [5], n_outputs=1, dtype=torch.float64)\n"
        "result = gnvpro.train(model, x, x**3, loss='least_squares', work=30)\n"
        "print(gnvpro.__file__, result.history[-1].loss < result.history[0].loss)"
    )
    file, better = run(python, "-c", script, cwd=tmp_path).split()
    assert Path(file).is_relative_to(site)
    assert better == "True"
    assert run(place / "bin" / "gnvpro", "--version", cwd=tmp_path).startswith(f"gnvpro {PROJECT['version']} ")


def test_only_versions_of_python_that_are_tested_are_claimed() -> None:
    prefix = "Programming Language :: Python :: 3."
    claimed = [each.removeprefix(prefix) for each in PROJECT["classifiers"] if each.startswith(prefix)]
    assert claimed
    assert PROJECT["requires-python"] == f">=3.{claimed[0]}"
    assert sys.version_info[:2] >= (3, int(claimed[0]))


def test_versions_agree() -> None:
    version = PROJECT["version"]
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"## {version}" in (ROOT / "docs" / "release_notes.md").read_text()
