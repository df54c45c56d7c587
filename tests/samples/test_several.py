"""A model that is called with several arguments trains as the same model of one argument does."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import gnvpro

F64 = torch.float64


class Pair(nn.Module):
    """Two inputs, of different shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 5, dtype=F64), nn.Linear(1, 5, dtype=F64)
        self.head = nn.Linear(5, 2, dtype=F64)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x)) * self.second(scale[:, None]))


class Joined(Pair):
    """The model with one joined input."""

    def forward(self, both: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(both[:, :2], both[:, 2])


def samples() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(3)
    x, scale = torch.randn(60, 2, dtype=F64), torch.rand(60, dtype=F64) + 0.5
    return x, scale, torch.stack([torch.sin(x[:, 0]) * scale, x[:, 1] * scale], 1)


def model(kind: type[Pair]) -> Pair:
    torch.manual_seed(5)
    return kind()


GIVEN = {
    "tuple": lambda x, s: (x, s),
    "list of arrays": lambda x, s: [x.numpy(), s.numpy()],
    "dictionary": lambda x, s: {"scale": s, "x": x},
    "tables": lambda x, s: {"x": pd.DataFrame(x.numpy(), columns=["a", "b"]), "scale": pd.Series(s.numpy())},
}


@pytest.mark.parametrize("given", GIVEN)
def test_several_inputs_train_as_one_does(given):
    x, scale, y = samples()
    one, several = model(Joined), model(Pair)
    options = {"loss": "least_squares", "solver": "krylov", "work": 60}
    expected = gnvpro.train(one, torch.cat([x, scale[:, None]], 1), y, **options)
    result = gnvpro.train(several, GIVEN[given](x, scale), y, **options)
    assert result.work == expected.work
    assert result.history[-1].loss == pytest.approx(expected.history[-1].loss, rel=1e-10)
    assert torch.allclose(several(x, scale), one(torch.cat([x, scale[:, None]], 1)), rtol=0, atol=1e-9)


@pytest.mark.parametrize("method", ["gauss-newton", "lbfgs-vpro", "adam", "nesterov", "adam-vpro", "gnvpro"])
def test_every_method_takes_several_inputs(method):
    x, scale, y = samples()
    result = gnvpro.train(
        model(Pair), (x, scale), y, loss="least_squares", method=method, work=80, validation=((x, scale), y)
    )
    assert result.history[-1].loss < result.history[0].loss
    assert result.history[-1].validation_loss == pytest.approx(result.history[-1].misfit, rel=1e-9)


def test_parts_of_the_samples_are_parts_of_every_input():
    x, scale, y = samples()
    batches = gnvpro.methods.GNvpro(solver="dense", batches=gnvpro.methods.Batches(20, sweeps=1))
    several = gnvpro.train(model(Pair), (x, scale), y, loss="least_squares", method=batches)
    one = gnvpro.train(model(Joined), torch.cat([x, scale[:, None]], 1), y, loss="least_squares", method=batches)
    assert several.history[-1].loss == pytest.approx(one.history[-1].loss, rel=1e-8)


def test_little_memory_changes_nothing():
    x, scale, y = samples()
    problem = gnvpro.Problem(model(Pair), (x, scale), y, loss="least_squares")
    tight = gnvpro.Problem(model(Pair), (x, scale), y, loss="least_squares", memory=2e4)
    assert tight.passes.size < len(x)
    v = torch.ones_like(problem.theta())
    A, B = (p.reduced.at(p.theta()).curvature().mv(v) for p in (problem, tight))
    assert torch.allclose(A, B, rtol=1e-11)


def test_one_column_of_a_table_is_one_input():
    x = pd.Series(np.linspace(0, 1, 30), name="x")
    result = gnvpro.train(
        nn.Linear(1, 1).double(), x, 2 * x, loss="least_squares", head_penalty=0.0, sample_weight=x + 1
    )
    assert result.model.weight.item() == pytest.approx(2.0)


def test_integers_and_missing_values_of_a_table():
    table = pd.DataFrame({"a": [1, 2, 3, 4], "b": [0.5, 1.5, 0.0, 2.0], "c": [True, False, True, True]})
    result = gnvpro.train(nn.Linear(3, 1).double(), table, table["a"] + table["b"], loss="least_squares", work=0)
    assert result.history[-1].misfit < 1e-12
    with pytest.raises(ValueError, match="inputs holds NaN or infinity, first in sample 2"):
        gnvpro.train(
            nn.Linear(1, 1).double(), pd.Series([1, 2, None], dtype="Int64"), torch.ones(3), loss="least_squares"
        )


REFUSED = [
    ((torch.ones(4, 2), torch.ones(3)), ValueError, r"inputs are 2 arguments of the model, with \[4, 3\] samples"),
    ((torch.ones(4, 2), torch.full((4,), torch.nan)), ValueError, r"inputs\[1\] holds NaN or infinity"),
    ({1: torch.ones(4, 2)}, TypeError, "must name the model's arguments"),
    ({}, TypeError, "must name the model's arguments"),
    ({"x": torch.ones(4, 2), "other": torch.ones(4)}, ValueError, "cannot be run on inputs of shape"),
    (pd.DataFrame({"a": [1.0, 2.0], "city": ["A", "B"]}), TypeError, "column 'city' is of type"),
]


@pytest.mark.parametrize(("inputs", "error", "message"), REFUSED)
def test_what_cannot_be_used_is_named(inputs, error, message):
    with pytest.raises(error, match=message):
        gnvpro.train(model(Pair), inputs, torch.ones(4, 2), loss="least_squares")


def test_lists_of_numbers_keep_their_digits():
    """torch alone would read them in single precision."""
    x, _, y = samples()
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    problem = gnvpro.Problem(net, x.tolist(), y.tolist(), loss="least_squares")
    assert torch.equal(problem.inputs, x)
    assert torch.equal(problem.misfit.targets, y)
