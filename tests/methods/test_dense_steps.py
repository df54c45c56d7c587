"""Training by exact steps: their cost, errors if they are impossible, and resuming."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import gnvpro
from dense_cases import CASES, F64, mlp, problem_of


def smooth(samples: int = 60) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    inputs = torch.rand(samples, 3, dtype=F64)
    targets = torch.stack([torch.sin(inputs.sum(1) + k) + inputs[:, 0] ** k for k in range(5)], 1)
    return mlp(5), inputs, targets


def fit(**options: object) -> gnvpro.Result:
    model, inputs, targets = smooth()
    return gnvpro.train(model, inputs, targets, loss="least_squares", work=150, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [{}, {"step_control": "radius"}, {"geodesic": False}, {"residual_term": True}, {"scaling": 0.0}, {"scaling": 1.0}],
    ids=str,
)
def test_every_variant_reduces_the_loss_within_its_budget(settings: dict[str, object]) -> None:
    result = fit(solver=gnvpro.solvers.Dense(**settings))  # type: ignore[arg-type]
    history = result.history
    assert {record.solver for record in history[1:]} == {"dense"}
    assert all((record.radius is None) == ("step_control" not in settings) for record in history[1:])
    assert all(record.damping is not None for record in history[1:])
    assert history[-1].loss < 1e-2 * history[0].loss
    assert result.work <= 150


def test_exact_steps_are_worth_more_than_krylov_steps_of_the_same_work() -> None:
    assert fit(solver="dense").history[-1].loss < fit(solver="krylov").history[-1].loss


def test_a_run_costs_a_matrix_for_each_accepted_point_and_two_passes_per_trial() -> None:
    history = fit(solver="dense").history
    trials = len(history) - 1
    told = [r.gradient_norm is not None for r in history]
    matrices = 1 + sum(r.accepted and known for r, known in zip(history[1:], told[1:], strict=True))
    assert history[-1].work == 1 + 2 * trials + 4 * matrices


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, second = fit(solver="dense"), fit(solver="dense")
    assert first.history.column("loss") == second.history.column("loss")


@pytest.mark.parametrize("batch_size", [None, 25])
@pytest.mark.parametrize("control", ["damping", "radius"])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path: Path, control: str, batch_size: int | None) -> None:
    batches = batch_size and gnvpro.methods.Batches(batch_size)
    options: dict[str, object] = {
        "method": gnvpro.methods.GNvpro(solver=gnvpro.solvers.Dense(step_control=control), batches=batches)
    }
    whole = fit(**options).history
    options |= {"checkpoint": gnvpro.Checkpoint(tmp_path / "run", every=1), "resume": True}

    heard: set[int] = set()

    def interrupt(record: gnvpro.extend.Record) -> None:
        if record.iteration % 6 == 3 and record.iteration not in heard:
            heard.add(record.iteration)
            raise KeyboardInterrupt

    while True:
        try:
            result = fit(**options, listeners=interrupt)
            break
        except KeyboardInterrupt:
            continue
    assert result.history.column("loss") == whole.column("loss")
    assert result.history.column("work") == whole.column("work")


def test_auto_says_what_it_chose() -> None:
    assert fit().history[-1].solver == "dense"
    assert fit(method="gauss-newton").history[-1].solver == "krylov"
    model = nn.Sequential(nn.Linear(3, 100), nn.Tanh(), nn.Linear(100, 100), nn.Tanh(), nn.Linear(100, 2)).double()
    _, inputs, targets = smooth(8)
    history = gnvpro.train(model, inputs, targets[:, :2], loss="least_squares", work=200).history
    assert history[-1].solver == "hybrid"


def test_dense_is_refused_where_it_cannot_work() -> None:
    inputs = torch.randn(6, 5, 3, dtype=F64)
    model = nn.Sequential(nn.Linear(3, 4, dtype=F64), nn.Tanh(), nn.Linear(4, 2, dtype=F64))
    targets = torch.randn(6, 5, 2, dtype=F64)
    with pytest.raises(ValueError, match="many positions of a sample"):
        gnvpro.train(model, inputs, targets, loss="least_squares", solver="dense")
    history = gnvpro.train(model, inputs, targets, loss="least_squares", work=200).history
    assert history[-1].solver == "hybrid"
    model, inputs, targets = smooth(8)
    with pytest.raises(ValueError, match="is for method='gnvpro'"):
        gnvpro.train(model, inputs, targets, loss="least_squares", solver="dense", method="gauss-newton")
    with pytest.raises(ValueError, match="do not fit"):
        gnvpro.train(
            model, inputs, targets, loss="least_squares", method=gnvpro.methods.GNvpro(solver="dense", memory=1e3)
        )


def test_float32_networks_train() -> None:
    model, inputs, targets = smooth()
    result = gnvpro.train(model.float(), inputs.float(), targets, loss="least_squares", solver="dense", work=80)
    assert result.history[-1].loss < 1e-1 * result.history[0].loss


def test_classification_trains() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(50, 3, dtype=F64)
    labels = (inputs.square().sum(1) > 2.5).long()
    for loss, outputs in (("logistic", 1), ("multinomial", 2)):
        result = gnvpro.train(mlp(outputs), inputs, labels, loss=loss, solver="dense", work=80)
        assert result.history[-1].accuracy == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(("loss", "probes"), [("least_squares", 1), ("logistic", 0)])
def test_geodesic_probes_are_made_for_least_squares_only_unless_asked_for(loss: str, probes: int) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(20, 3, dtype=F64)
    labels = (inputs.sum(1) > 0).to(F64)
    for switch, extra in ((None, probes), (True, 1), (False, 0)):
        history = gnvpro.train(
            mlp(1), inputs, labels, loss=loss, solver=gnvpro.solvers.Dense(geodesic=switch), iterations=1
        ).history
        matrix = 1 if loss == "least_squares" else 4  # Kaufman's, and the full one
        assert history[1].work == 1 + matrix + 1 + extra + matrix * history[1].accepted


def test_auto_takes_exact_steps_where_they_can_be_had() -> None:
    case = CASES["neural ode"]
    assert gnvpro.solvers.Auto().takes_exact_steps(problem_of(case))
    assert not gnvpro.solvers.Auto().takes_exact_steps(problem_of(case, memory=10.0))
    inexact = CASES["inexact elimination"]
    assert not gnvpro.solvers.Auto().takes_exact_steps(problem_of(inexact))
    exact = problem_of(inexact).with_eliminator(gnvpro.heads.Newton())
    assert gnvpro.solvers.Auto().takes_exact_steps(exact)
