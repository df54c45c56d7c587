"""Resuming gives the same bits for every method and solver, whatever the memory."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import gnvpro
from gnvpro.methods.stochastic import NESTEROV

F64 = torch.float64
GENERATOR = torch.Generator().manual_seed(0)
INPUTS = 2 * torch.rand(200, 3, dtype=F64, generator=GENERATOR) - 1
REAL = torch.stack([torch.sin(3 * INPUTS[:, 0]) * INPUTS[:, 1], INPUTS[:, 2] ** 2], 1)
LABELS = (INPUTS[:, 0] * INPUTS[:, 1] > INPUTS[:, 2] ** 3).long()
TARGETS = {"least_squares": REAL, "multinomial": LABELS}
# Bytes for exact steps and for all others, and chunks that they make of the samples: with one there is little to go wrong.
ENDED_BY_ITSELF = (gnvpro.Status.CONVERGED, gnvpro.Status.SETTLED)
BUDGETS = {"much": (1e9, 1e9, 1), "less": (1.5e6, 2e5, 2), "least": (6e5, 5e4, 6)}

SOLVERS: dict[str, gnvpro.extend.Solver] = {
    "krylov": gnvpro.solvers.Krylov(max_rank=5),
    "hybrid": gnvpro.solvers.Hybrid(max_rank=2),
    "dense": gnvpro.solvers.Dense(),
    "matrix of a part": gnvpro.solvers.Dense(samples=60),
    "auto": gnvpro.solvers.Auto(max_rank=4),
}
METHODS: dict[str, gnvpro.extend.Method] = {
    **{name: gnvpro.methods.GNvpro(solver=solver) for name, solver in SOLVERS.items()},
    "dense in batches": gnvpro.methods.GNvpro(solver="dense", batches=gnvpro.methods.Batches(90, iterations=2)),
    "gauss-newton": gnvpro.methods.GaussNewton(solver=gnvpro.solvers.Krylov(max_rank=5)),
    "lbfgs-vpro": gnvpro.methods.LBFGSvpro(),
    "adam-vpro": gnvpro.methods.AdamVPro(batch_size=32),
    "adam": gnvpro.methods.TorchOptimizer(torch.optim.Adam, batch_size=32),
    "nesterov": gnvpro.methods.TorchOptimizer(NESTEROV, batch_size=32),
}


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        layers = [nn.Linear(3, 9), nn.Tanh(), nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, 2)]
        return nn.Sequential(*layers).double()


def run(method: gnvpro.extend.Method, loss: str, memory: float, **more: Any) -> gnvpro.Result:
    method = replace(method, memory=memory)
    return gnvpro.train(network(), INPUTS, TARGETS[loss], loss=loss, method=method, work=120, iterations=7, **more)


def bits(result: gnvpro.Result) -> tuple[list[torch.Tensor], list[dict[str, Any]], gnvpro.Status]:
    records = [{k: v for k, v in r.to_dict().items() if not k.endswith("seconds")} for r in result.history]
    return [p.detach() for p in result.model.parameters()], records, result.status


def exact_steps(method: gnvpro.extend.Method) -> gnvpro.solvers.Dense | None:
    """The solver of the method's exact steps, if it has one."""
    solver = getattr(method, "solver", None)
    solver = solver.dense if isinstance(solver, gnvpro.solvers.Auto) else solver
    return solver if isinstance(solver, gnvpro.solvers.Dense) else None


FAST = [("krylov", "multinomial", "less"), ("dense", "least_squares", "least"), ("adam", "least_squares", "less")]
REFUSED = ("matrix of a part", "multinomial")
ALL = [case for case in itertools.product(METHODS, TARGETS, BUDGETS) if case[:2] != REFUSED]


@pytest.mark.parametrize(
    ("name", "loss", "budget"), [case if case in FAST else pytest.param(*case, marks=pytest.mark.slow) for case in ALL]
)
def test_resuming_gives_the_same_bits(name: str, loss: str, budget: str, tmp_path: Any) -> None:
    method, dense = METHODS[name], exact_steps(METHODS[name])
    memory = BUDGETS[budget][0 if dense else 1]
    problem = gnvpro.Problem(network(), INPUTS, TARGETS[loss], loss=loss, memory=memory)
    plan = dense.pass_plan(problem) if dense else problem.passes
    assert -(-INPUTS.shape[0] // plan.size) >= BUDGETS[budget][2]
    parameters, records, status = bits(run(method, loss, memory))
    last = len(records) - 1
    assert last >= 4
    for stop in sorted({0, 1, last // 2, last - 1}):

        def interrupt(record: gnvpro.extend.Record, stop: int = stop) -> None:
            if record.iteration == stop:
                raise KeyboardInterrupt

        path = tmp_path / f"{stop}"
        with pytest.raises(KeyboardInterrupt):
            run(method, loss, memory, checkpoint=path, listeners=interrupt)
        resumed = bits(run(method, loss, memory, checkpoint=path, resume=True))
        assert resumed[1] == records, f"interrupted after iteration {stop}"
        assert all(torch.equal(a, b) for a, b in zip(resumed[0], parameters, strict=True))
        assert resumed[2] is status


def test_the_memory_of_the_first_run_decides_where_none_is_given(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free memory differs from hour to hour; a resumed run must not choose other chunks."""

    def interrupt(record: gnvpro.extend.Record) -> None:
        if record.iteration == 3:
            raise KeyboardInterrupt

    def unlimited(**more: Any) -> gnvpro.Result:
        return gnvpro.train(network(), INPUTS, REAL, loss="least_squares", solver="dense", iterations=6, **more)

    monkeypatch.setattr("gnvpro.objectives.problem.default_memory", lambda: 6e5)
    expected = bits(unlimited())
    with pytest.raises(KeyboardInterrupt):
        unlimited(checkpoint=tmp_path / "run", listeners=interrupt)
    monkeypatch.setattr("gnvpro.objectives.problem.default_memory", lambda: 1e9)
    assert bits(unlimited())[1] != expected[1]  # the cuts do show in the bits
    resumed = bits(unlimited(checkpoint=tmp_path / "run", resume=True))
    assert resumed[1] == expected[1]
    assert all(torch.equal(a, b) for a, b in zip(resumed[0], expected[0], strict=True))


@pytest.mark.parametrize("why", ["settled", "patience"])
def test_interrupted_at_the_record_that_ends_it_a_run_ends_there(why: str, tmp_path: Any) -> None:
    def interrupted(record: gnvpro.extend.Record) -> None:
        if record.iteration == whole.history[-1].iteration:
            raise KeyboardInterrupt

    more: dict[str, Any] = {}
    if why == "patience":
        more = {"validation": (INPUTS[:20], TARGETS["multinomial"][:20].flip(0)), "patience": 2, "keep": "best"}
    arguments = {"loss": "multinomial", "theta_penalty": 1e-2, "head_penalty": 1e-2, "method": "lbfgs-vpro", **more}
    whole = gnvpro.train(network(), INPUTS, LABELS, **arguments)
    assert whole.status in ({gnvpro.Status.NO_BETTER} if why == "patience" else ENDED_BY_ITSELF)
    checkpoint = tmp_path / "run.ckpt"
    with pytest.raises(KeyboardInterrupt):
        gnvpro.train(network(), INPUTS, LABELS, **arguments, checkpoint=checkpoint, listeners=[interrupted])
    resumed = gnvpro.train(network(), INPUTS, LABELS, **arguments, checkpoint=checkpoint, resume=True)
    for one, other in zip(bits(whole), bits(resumed), strict=True):
        assert str(one) == str(other)
