"""L-BFGSvpro's searches do not creep through concave regions."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import gnvpro
import gnvpro.methods.lbfgs as module
from gnvpro.methods.lbfgs import SearchPoint


def waves() -> tuple[nn.Module, Tensor, Tensor]:
    """Waves, and features far too smooth for them: along the first gradient the objective is concave."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 6, generator=draw, dtype=torch.float64)
    y = torch.sin(4 * x @ torch.randn(6, 3, generator=draw, dtype=torch.float64) / 6**0.5)
    torch.manual_seed(0)
    layers = [nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3)]
    return nn.Sequential(*layers).double(), x, y


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[SearchPoint]:
    made, plain = [], module.evaluated

    def keeping(point):
        made.append(plain(point))
        return made[-1]

    monkeypatch.setattr(module, "evaluated", keeping)
    return made


def test_no_two_trials_lie_next_to_each_other(trials: list[SearchPoint]) -> None:
    model, x, y = waves()
    gnvpro.train(
        model, x, y, loss="least_squares", method="lbfgs-vpro", iterations=1, theta_penalty=1e-4, head_penalty=1e-4
    )
    lengths = [float((trial.theta - trials[0].theta).norm()) for trial in trials]
    slopes = [float(trial.gradient @ trials[0].gradient) for trial in trials]
    assert slopes[1] > slopes[0], "the objective is not concave here: another problem is needed"
    assert all(not a < b < 1.05 * a for a, b in pairwise(lengths[1:]))
    assert trials[-1].value < trials[0].value


def test_rounding_errors_do_not_decide_the_search() -> None:
    """The order of sums is another one with another budget of memory."""
    found = []
    for memory in (1e12, 1e5):
        model, x, y = waves()
        method = gnvpro.methods.LBFGSvpro(memory=memory)
        result = gnvpro.train(
            model, x, y, loss="least_squares", method=method, iterations=3, theta_penalty=1e-4, head_penalty=1e-4
        )
        found.append((result.work, torch.cat([p.detach().reshape(-1) for p in model.parameters()])))
    assert found[0][0] == found[1][0]
    assert float((found[0][1] - found[1][1]).norm() / found[0][1].norm()) <= 1e-10


def test_a_search_that_was_called_off_leaves_the_optimiser_as_it_was() -> None:
    model, x, y = waves()
    result = gnvpro.train(
        model, x, y, loss="least_squares", method="lbfgs-vpro", work=60, theta_penalty=1e-4, head_penalty=1e-4
    )
    losses = result.history.column("loss")
    assert all(b < a for a, b in pairwise(losses))
    assert len(losses) > 10
