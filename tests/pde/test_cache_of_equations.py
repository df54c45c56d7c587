"""The law of the cache for `pde.solve`: dropping it changes no bit; and a run of it is one as in `train`."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gnvpro
from equation_cases import ENDS, LINE, SQUARE, network
from gnvpro import pde
from gnvpro.extend import Cache
from gnvpro.pde.features import Kind
from gnvpro.pde.steps import EquationProblem, EquationState, EquationSteps
from gnvpro.state import loaded, saved

F64 = torch.float64
Posed = tuple[pde.Field, list[pde.Equation]]


def front() -> Posed:
    """Too few points for its front: points are drawn again, the penalty falls, and the head is treated both ways."""
    u = pde.Field(network(1, [8, 8]))
    inside = lambda x: 1 + 20 / torch.cosh(20 * (x[:, 0] - 0.5)) ** 2  # noqa: E731
    return u, [pde.Equation(pde.d(u, 0) + u**2, LINE.inside(20), inside), pde.Equation(u, ENDS[:1], -1.0)]


def oscillation() -> Posed:
    """Too fast for its first weights: others are tried."""
    torch.manual_seed(0)
    u = pde.Field(gnvpro.networks.MLP(1, [12], pde.Sine, dtype=torch.float64))
    return u, [
        pde.Equation(pde.d(u, 0, 0) + 3600 * u, LINE.inside(60), 0.0),
        pde.Equation(u, ENDS[:1], 0.0),
        pde.Equation(pde.d(u, 0), ENDS[:1], 60.0),
    ]


def diffusion() -> Posed:
    """With an unknown constant."""
    u, kappa = pde.Field(network(1, [6])), pde.Constant(1.0)
    where = LINE.inside(8).points
    inside = pde.Equation(-kappa * pde.d(u, 0, 0), LINE.inside(40), lambda x: torch.sin(3 * x[:, 0]))
    return u, [inside, pde.Equation(u, where, torch.sin(3 * where[:, 0]) / 2.7)]


def narrow() -> Posed:
    """With few features: more are added."""
    u, kind = pde.Field(SQUARE), Kind(sines=6, scales=(3.0,))
    u.take(kind.build(u.domain, 0), torch.zeros(1, 7, dtype=F64))
    u.kind = kind
    values = lambda x: x[:, 0] * x[:, 1] ** 3  # noqa: E731
    inside = pde.Equation(pde.laplacian(u), SQUARE.inside(200), lambda x: 6 * x[:, 0] * x[:, 1])
    return u, [inside, pde.Equation(u, SQUARE.boundary(120), values)]


def bits(make: Callable[[], Posed], iterations: int) -> tuple[list[Tensor], list[dict[str, Any]], list[float]]:
    """Parameters, history without clock times, and residuals of a short run."""
    u, equations = make()
    result = pde.solve(u, equations, iterations=iterations)
    records = [{k: v for k, v in r.to_dict().items() if not k.endswith("seconds")} for r in result.history]
    return [p.detach() for p in u.parameters()], records, [float(r) for r in result.residuals]


@pytest.mark.parametrize(
    ("make", "iterations", "happens"),
    [(front, 64, "points: "), (oscillation, 24, "first weights"), (diffusion, 24, ""), (narrow, 45, "features: ")],
)
def test_a_cache_may_be_dropped_at_any_time_without_changing_a_bit(
    make: Callable[[], Posed], iterations: int, happens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bits(make, iterations)
    assert any(happens in (record["note"] or "") for record in expected[1])
    step, dropped = EquationSteps.step, []

    def on_an_empty_cache(
        self: EquationSteps, problem: EquationProblem, state: EquationState, budget: Any, cache: Cache
    ) -> Any:
        cache.drop()
        dropped.append(state)
        file = io.BytesIO()
        torch.save(saved(state), file)
        copied = loaded(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
        return step(self, problem, copied, budget, cache)

    monkeypatch.setattr(EquationSteps, "step", on_an_empty_cache)
    found = bits(make, iterations)
    assert len(dropped) == iterations
    assert found[1:] == expected[1:]
    assert all(torch.equal(a, b) for a, b in zip(found[0], expected[0], strict=True))


def poisson() -> Posed:
    u = pde.Field(network(1, [5]))
    return u, [pde.Equation(pde.d(u, 0, 0), LINE.inside(40), -1.0), pde.Equation(u, ENDS, 0.0)]


def test_work_is_a_cap() -> None:
    u, equations = poisson()
    result = pde.solve(u, equations, work=9)
    assert 7 < result.work <= 9
    assert f"{gnvpro.Status.WORK_SPENT}" in [str(result.status), *(n.rpartition(": ")[2] for n in result.notes)]
    losses = []
    for limit in ({"iterations": 8}, {"iterations": 8, "work": 1e9}):
        u, equations = poisson()
        losses.append(pde.solve(u, equations, **limit).history.column("loss"))  # type: ignore[arg-type]
    assert losses[0] == losses[1]


def test_patience_ends_a_run_whose_residuals_on_fresh_points_no_longer_fall() -> None:
    u, equations = poisson()
    result = pde.solve(u, equations, patience=25)
    assert result.status is gnvpro.Status.NO_BETTER
    seen = [r.validation_loss for r in result.history if r.validation_loss is not None]
    best = next(r.iteration for r in result.history if r.validation_loss == min(seen))
    assert result.history[-1].iteration == best + 25


def test_a_spent_budget_is_taken_up_by_a_larger_one_and_by_no_other(tmp_path: Path) -> None:
    whole, equations = poisson()
    pde.solve(whole, equations, work=25)
    for work in (11, 11, 25):
        u, equations = poisson()
        result = pde.solve(u, equations, work=work, checkpoint=tmp_path / "run", resume=True)
        assert result.work <= work
    assert torch.equal(u.W(), whole.W())


def test_a_solution_is_a_result_with_plot_summary_and_file(tmp_path: Path) -> None:
    u, equations = poisson()
    result = pde.solve(u, equations, iterations=4)
    assert isinstance(result, gnvpro.Result)
    assert result.field is result.model is u
    assert "residual of equation 1" in result.summary()
    assert result.plot("iteration").axes
    result.save(tmp_path / "field.pt")
    again, _ = poisson()
    points = torch.rand(7, 1, dtype=F64)
    assert torch.equal(gnvpro.load(tmp_path / "field.pt", model=again)(points), u(points))
