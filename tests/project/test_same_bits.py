"""The clock decides nothing by default: the same call gives the same bits, however the machine's clocks run.

The default solver has the same test in `tests/methods`: on all samples in test_auto, on batches in test_relay.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch

import gnvpro
from clocks import run_wildly
from gnvpro import pde
from gnvpro.policy import BatchPolicy, Policy, SolverPolicy
from stochastic_cases import network, samples

SMALL = Policy(solver=SolverPolicy(cheap_first=0.0), batches=BatchPolicy(begin_from=300, steps=160, least_passes=10.0))


def trained(loss: str, method: str | gnvpro.extend.Method = "gnvpro", **settings: object) -> list[float]:
    x, y = samples(400, loss)
    settings = {"iterations": 12, **settings}
    result = gnvpro.train(network(), x, y, loss=loss, method=method, **settings)  # type: ignore[arg-type]
    return [*result.history.column("loss"), *torch.cat([p.flatten() for p in result.model.parameters()]).tolist()]


def solved() -> list[float]:
    torch.manual_seed(0)
    u = pde.Field(gnvpro.networks.MLP(1, [12], dtype=torch.float64))
    line = pde.points.Box([0], [1])
    x = line.inside(40)
    equations = [pde.Equation(pde.laplacian(u) - u**3, x, 1.0), pde.Equation(u, line.boundary(2), 0.0)]
    result = pde.solve(u, equations, iterations=30, clock=time.perf_counter)
    return [*result.history.column("loss"), *torch.cat([p.flatten() for p in u.parameters()]).tolist()]


def estimated(classify: bool) -> list[float]:
    x, y = samples(150, "multinomial" if classify else "least_squares")
    kind = gnvpro.GNvproClassifier if classify else gnvpro.GNvproRegressor
    estimator = kind(random_state=0, max_iter=15).fit(x.numpy(), y.numpy())
    found = estimator.predict_proba(x.numpy()) if classify else estimator.predict(x.numpy())
    return list(found.ravel().tolist())


CALLS: dict[str, Callable[[], list[float]]] = {
    "batches of classes": lambda: trained("multinomial", policy=SMALL),
    "adam-vpro": lambda: trained("least_squares", "adam-vpro"),
    "adam": lambda: trained("multinomial", "adam", iterations=3),
    "lbfgs-vpro": lambda: trained("least_squares", "lbfgs-vpro"),
    "hybrid": lambda: trained("multinomial", solver="hybrid"),
    "penalties from the data": lambda: trained("least_squares", theta_penalty="auto", head_penalty="auto"),
    "equation": solved,
    "regressor": lambda: estimated(False),
    "classifier": lambda: estimated(True),
}
each = pytest.mark.parametrize("name", CALLS)


@each
def test_a_clock_that_runs_wildly_changes_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = CALLS[name]()
    run_wildly(monkeypatch)
    assert CALLS[name]() == first


@pytest.mark.slow
@each
def test_processes_that_load_the_machine_change_no_bit(name: str) -> None:
    first = CALLS[name]()
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
    try:
        assert CALLS[name]() == first
    finally:
        for other in others:
            other.kill()
            other.wait()
