"""The law of the cache: it may be dropped at any time without changing a bit; and what makes states worth their name."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam

import gnvpro
from gnvpro.extend import Cache, Method, MethodState
from gnvpro.methods import AdamVPro, Batches, GaussNewton, GNvpro, LBFGSvpro, TorchOptimizer
from gnvpro.methods.stochastic import NESTEROV
from gnvpro.network.work import WorkMeter
from gnvpro.policy import BatchPolicy, Policy, SolverPolicy
from gnvpro.solvers import Auto, Dense, Hybrid, Krylov
from gnvpro.state import loaded, saved

F64 = torch.float64
INPUTS = 2 * torch.rand(120, 3, dtype=F64, generator=torch.Generator().manual_seed(0)) - 1
REAL = torch.stack([torch.sin(3 * INPUTS[:, 0]) * INPUTS[:, 1], INPUTS[:, 2] ** 2], 1)
LABELS = (INPUTS[:, 0] * INPUTS[:, 1] > INPUTS[:, 2] ** 3).long()
METHODS: dict[str, Method] = {
    "dense": GNvpro(solver=Dense()),
    "dense, radius": GNvpro(solver=Dense(step_control="radius")),
    "matrix of a part": GNvpro(solver=Dense(samples=60)),
    "krylov": GNvpro(solver=Krylov(max_rank=4)),
    "hybrid": GNvpro(solver=Hybrid(max_rank=2)),
    "auto": GNvpro(solver=Auto(max_rank=4)),
    "auto, cheap first": GNvpro(solver=Auto(max_rank=4)),
    "auto, batches first": GNvpro(solver=Auto(max_rank=4)),
    "krylov in batches": GNvpro(solver=Krylov(max_rank=4), batches=Batches(60, iterations=2)),
    "lbfgs-vpro": LBFGSvpro(),
    "adam-vpro": AdamVPro(batch_size=16),
    "gauss-newton": GaussNewton(solver=Krylov(max_rank=4)),
    "adam": TorchOptimizer(Adam, batch_size=16),
    "nesterov": TorchOptimizer(NESTEROV, batch_size=16),
}


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)).double()


FIRST = Policy(solver=SolverPolicy(cheap_first=0.0))
POLICIES = {
    "auto, cheap first": FIRST,
    "auto, batches first": replace(FIRST, batches=BatchPolicy(begin_from=100, steps=200)),
}


def bits(name: str, loss: str) -> tuple[list[Tensor], list[dict[str, Any]], gnvpro.Status]:
    """Parameters, history without clock times, and status of a short run."""
    model, targets = network(), LABELS if loss == "multinomial" else REAL
    settings: dict[str, Any] = {"method": METHODS[name], "policy": POLICIES.get(name)}
    result = gnvpro.train(model, INPUTS, targets, loss=loss, work=200, iterations=24, **settings)
    records = [{k: v for k, v in r.to_dict().items() if not k.endswith("seconds")} for r in result.history]
    return [p.detach() for p in model.parameters()], records, result.status


@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
@pytest.mark.parametrize("name", METHODS)
def test_a_cache_may_be_dropped_at_any_time_without_changing_a_bit(
    name: str, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (name, loss) == ("matrix of a part", "multinomial"):
        pytest.skip("for least squares only")
    method = METHODS[name]
    expected = bits(name, loss)
    assert len(expected[1]) > 4
    step, dropped = type(method).step, []

    def on_an_empty_cache(self: Method, problem: Any, state: MethodState, budget: Any, cache: Cache) -> Any:
        cache.drop()
        dropped.append(state)
        copied = loaded(torch.load(io.BytesIO(written(state)), weights_only=True))
        return step(self, problem, copied, budget, cache)

    monkeypatch.setattr(type(method), "step", on_an_empty_cache)
    found = bits(name, loss)
    assert len(dropped) >= len(found[1]) - 2
    assert found[1] == expected[1]
    assert found[2] is expected[2]
    assert all(torch.equal(a, b) for a, b in zip(found[0], expected[0], strict=True))


def written(state: MethodState) -> bytes:
    buffer = io.BytesIO()
    torch.save(saved(state), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("name", METHODS)
def test_a_step_depends_on_its_arguments_alone_and_writes_into_none(name: str) -> None:
    method = METHODS[name]
    policy = POLICIES.get(name)
    problem = gnvpro.Problem(network(), INPUTS, REAL, loss="least_squares", policy=policy)
    meter = problem.meter
    budget, cache = gnvpro.extend.Budget(meter, 1e6), Cache(meter)
    state = method.begin(problem, gnvpro.extend.Start(problem.theta()), budget, cache)
    for _ in range(3):
        state, _ = method.step(problem, state, budget, cache)
    before, passes = written(state), meter.sample_passes
    first, _ = method.step(problem, state, budget, cache)
    spent, meter.sample_passes = meter.sample_passes - passes, passes
    assert written(state) == before
    cache.drop()
    second, _ = method.step(problem, state, budget, cache)
    assert meter.sample_passes - passes == spent  # what is made again was counted before
    assert written(first) == written(second)


def test_what_is_made_again_is_not_counted_as_work() -> None:
    meter = WorkMeter(10)
    cache, owner = Cache(meter), object()

    def make() -> int:
        meter.count(10)
        return 7

    assert cache.recall("x", make, owner) == 7
    assert cache.recall("x", make, owner) == 7
    assert meter.sample_passes == 0


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"kind of state": "os.path"}, ValueError),
        ({"kind of state": "gnvpro.methods.protocol.Nothing"}, ValueError),
        ({"radius": 1.0}, ValueError),
        ({"damping": "large"}, TypeError),
        ({"damping": None}, TypeError),
    ],
)
def test_what_is_no_state_is_not_loaded(change: dict[str, Any], error: type[Exception]) -> None:
    from gnvpro.minimize.step_rules import Damping

    content = saved(Damping(1.0, 2.0))
    assert loaded(content) == Damping(1.0, 2.0)
    with pytest.raises(error):
        loaded({**content, **change})
