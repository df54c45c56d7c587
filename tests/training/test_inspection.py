"""Before training: what `inspect` finds, and what `train` warns of."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gnvpro
from checks import F64
from gnvpro.training.inspection import MatrixColumns

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(80, 3, dtype=F64, generator=GENERATOR)
Y = torch.sin(X.sum(1, keepdim=True))


def network(dtype: torch.dtype = F64, width: int = 5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1)).to(dtype)


def look(inputs: torch.Tensor = X, model: nn.Module | None = None, **more: Any) -> gnvpro.extend.Inspection:
    return gnvpro.inspect(model or network(), inputs, Y, **{"loss": "least_squares", **more})


def test_what_is_good_gets_no_advice_and_its_numbers_are_right() -> None:
    model = network()
    before = [p.detach().clone() for p in model.parameters()]
    found = look(model=model)
    assert (found.head, found.samples, found.n_inputs, found.n_features, found.n_targets) == ("2", 80, 3, 5, 1)
    assert (found.n_theta, found.precision) == (20, "passes in float64, as the model")
    assert found.advice == ()
    assert found.inputs is not None
    assert torch.allclose(found.inputs.std, X.std(0, unbiased=False))
    Z = model[:2](X).detach()
    assert torch.allclose(found.features.mean, Z.mean(0))
    scaled = (Z - Z.mean(0)) / Z.std(0, unbiased=False)
    assert found.features.condition == pytest.approx(float(torch.linalg.cond(scaled)), rel=1e-8)
    assert found.seconds_per_pass > 0
    assert found.memory_of_pass > 80 * 5 * 8  # the features alone
    assert found.solver == "dense"
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert "5 features -> 1 outputs" in str(found)
    assert str(found) == repr(found)


SCALED = X * torch.tensor([1.0, 1e3, 1.0], dtype=F64)
SHIFTED = X + torch.tensor([0.0, 0.0, 1e3], dtype=F64)
CONSTANT = torch.cat([X[:, :2], torch.full((80, 1), 3.0, dtype=F64)], 1)
TWICE = torch.cat([X[:, :2], 5 * X[:, :1] + 1], 1)
ADVICE: dict[str, tuple[Any, str]] = {
    "another scale": (SCALED, r"Standardise the inputs.*column 1:"),
    "far from zero": (SHIFTED, r"Standardise the inputs.*column 2:"),
    "constant": (CONSTANT, r"input column 2: the same for every sample"),
    "double": (TWICE, r"columns 0 and 2 say the same"),
    "small": (1e-3 * X, r"Scale the inputs.*linear"),
    "large": (1e3 * X, r"Scale the inputs.*saturated"),
}


@pytest.mark.parametrize("what", ADVICE)
def test_inputs_that_should_be_changed_are_named(what: str) -> None:
    inputs, sentence = ADVICE[what]
    told = look(inputs).advice
    import re

    assert any(re.search(sentence, advice) for advice in told), told


def test_features_that_are_dead_or_double_are_named() -> None:
    model = network()
    with torch.no_grad():
        model[0].weight[1] = 0.0
        model[0].weight[3] = model[0].weight[2]
        model[0].bias[3] = model[0].bias[2]
    found = look(model=model)
    assert found.features.constant == (1,)
    assert found.features.double == ((2, 3),)
    assert any("never: feature 1." in told for told in found.advice)
    assert any("Features 2 and 3 are alike" in told for told in found.advice)
    with torch.no_grad():
        model[0].weight.zero_()
    assert any("dead" in told for told in look(model=model).advice)


def test_a_single_model_is_trained_in_double_precision_and_needs_no_advice() -> None:
    found = look(X.float(), network(torch.float32))
    assert "passes in float64, the model in float32" in str(found)
    assert not any("float64" in told for told in found.advice)


def test_few_samples_and_little_memory_are_spoken_of() -> None:
    assert any("keep=" in told for told in look(model=network(width=40)).advice)
    assert any("more than the budget" in told for told in look(memory=100.0).advice)


def test_columns_beside_a_matrix_of_nothing_but_constants() -> None:
    columns = MatrixColumns.of(torch.ones(5, 2, dtype=F64), 5)
    assert columns.constant == (0, 1)
    assert columns.uneven(10.0) == ()


def test_bad_arguments_are_refused_as_in_training() -> None:
    with pytest.raises(ValueError, match=r"^targets has 80 samples but the inputs have 10"):
        look(X[:10])


def test_train_warns_of_what_will_surely_hurt_and_of_nothing_else() -> None:
    settings: dict[str, Any] = {"loss": "least_squares", "iterations": 1}
    with pytest.warns(UserWarning, match=r"^inputs: the scale of column 1, .*Standardise"):
        gnvpro.train(network(), X * torch.tensor([1.0, 1e6, 1.0], dtype=F64), Y, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for inputs in (X, SCALED, CONSTANT, 1e6 * X):
            gnvpro.train(network(), inputs, Y, **settings)


def test_the_command_line_inspects_a_saved_model_and_arrays(tmp_path: Path) -> None:
    typer = pytest.importorskip("typer.testing")
    from gnvpro.cli import app

    torch.save(network(), tmp_path / "model.pt")
    np.save(tmp_path / "x.npy", SCALED.numpy())
    np.save(tmp_path / "y.npy", Y.numpy())
    np.savez(tmp_path / "both.npz", inputs=SCALED.numpy(), targets=Y.numpy())
    for files in (["x.npy", "y.npy"], ["both.npz"]):
        words = ["inspect", *(str(tmp_path / name) for name in ("model.pt", *files)), "--loss", "least_squares"]
        result = typer.CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        assert "Standardise the inputs" in result.output
    torch.save({"a": 1}, tmp_path / "state.pt")
    result = typer.CliRunner().invoke(app, ["inspect", str(tmp_path / "state.pt"), str(tmp_path / "both.npz")])
    assert result.exit_code == 1
    assert "not a module" in result.output
    (tmp_path / "table.csv").write_text("1,2\n")
    for words, said in (
        (["table.csv", "both.npz"], "table.csv is no file of torch; write it by torch.save"),
        (["model.pt", "table.csv", "y.npy"], "table.csv is no array of numbers; write it by numpy.save"),
        (["none.pt", "both.npz"], "none.pt; check its name"),
    ):
        result = typer.CliRunner().invoke(app, ["inspect", *(str(tmp_path / name) for name in words)])
        assert result.exit_code == 1
        assert said in result.output.replace("\n", "")
