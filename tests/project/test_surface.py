"""The public names of `gnvpro`: about twenty at the top, the rest in four modules, and no torch before it is needed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import gnvpro

TOP = """Checkpoint GNvproClassifier GNvproRegressor Metric Problem ReducedLoss Result Status Tikhonov curves extend heads
    inspect listeners load losses methods networks pde solvers surrogate time_differences train"""
BELOW = {
    "methods": "AdamVPro Batches GNvpro GaussNewton LBFGSvpro RotatedAdam TorchOptimizer",
    "solvers": "Auto Dense Hybrid Krylov",
    "heads": "BatchHead LeastSquares Newton NewtonCG NewtonKrylov",
    "losses": "HalfSquaredError Logistic Multinomial",
    "extend": """Budget Cache Eliminator HeadFit History Inspection Iterate LinearOperator Listener LocalModel Loss Method
        MethodState ModelSolver Record ReducedPoint Solver Start State Step StepReport WarmStart iterate_at""",
}


def test_the_names_at_the_top_are_these() -> None:
    assert gnvpro.__all__ == TOP.split()


@pytest.mark.parametrize("module", BELOW)
def test_the_names_of_a_module_are_these(module: str) -> None:
    assert sorted(importlib.import_module(f"gnvpro.{module}").__all__) == sorted(BELOW[module].split())


@pytest.mark.parametrize("name", TOP.split())
def test_every_name_at_the_top_can_be_imported(name: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"from gnvpro import {name}", namespace)
    assert namespace[name] is getattr(gnvpro, name)


def test_dir_shows_the_public_names_and_no_helpers() -> None:
    shown = set(dir(gnvpro))
    assert set(TOP.split()) <= shown
    assert all(name in TOP.split() or name.startswith("__") for name in shown)


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ("Krylov", "from gnvpro.solvers import Krylov"),
        ("AdamVPro", "from gnvpro.methods import AdamVPro"),
        ("NewtonCG", "from gnvpro.heads import NewtonCG"),
        ("Loss", "from gnvpro.extend import Loss"),
        ("trian", "did you mean 'train'"),
    ],
)
def test_a_name_that_is_elsewhere_or_misspelt_is_pointed_out(wrong: str, advice: str) -> None:
    with pytest.raises(AttributeError, match=advice):
        getattr(gnvpro, wrong)


def imported_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has imported after running this code."""
    report = "\nimport sys; print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", ["import gnvpro", "import gnvpro; dir(gnvpro); gnvpro.__version__", "import gnvpro.cli"]
)
def test_import_does_not_load_torch(code: str) -> None:
    assert not {"torch", "numpy", "scipy", "pandas", "sklearn", "matplotlib"} & imported_after(code)


@pytest.mark.slow
def test_train_is_loaded_without_the_libraries_of_the_extras() -> None:
    imported = imported_after("import gnvpro; gnvpro.train; gnvpro.Problem")
    assert "torch" in imported
    assert not {"scipy.optimize", "pandas", "sklearn", "matplotlib", "rich", "typer", "torch._dynamo"} & imported


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["train", "--help"], ["train", "nowhere.csv", "--target", "y"]]
)
def test_the_command_answers_without_torch(words: list[str], tmp_path: Path) -> None:
    code = f"import sys; sys.argv = ['gnvpro', *{words!r}]\ntry:\n    import gnvpro.__main__\nexcept SystemExit: pass"
    imported = imported_after(code)
    assert "gnvpro.cli.table" in imported
    assert not {"torch", "pandas", "scipy", "sklearn", "matplotlib"} & imported
