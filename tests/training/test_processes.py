"""Two processes are one: with every method, solver and loss they take the steps of one process that has all samples."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import gnvpro
from cases import Poisson
from gnvpro.methods.stochastic import NESTEROV
from gnvpro.networks import MLP, NeuralODE
from gnvpro.policy import BatchPolicy, Policy, SolverPolicy
from group import Keep, run_in_group

F64 = torch.float64
N = 90


@dataclass(frozen=True)
class Case:
    loss: Any = "least_squares"
    settings: dict[str, Any] = field(default_factory=dict)
    outputs: int = 2
    cut: int = 37  # samples of the first process
    weighted: bool = False
    streamed: bool = False
    model: Callable[[int], nn.Module] = lambda outputs: MLP(3, [6, 5], n_outputs=outputs, dtype=F64)
    iterations: int = 3
    rtol: float = 1e-12


def deep(outputs: int) -> nn.Module:
    return nn.Sequential(NeuralODE(3, 4, depth=2, dtype=F64), nn.Linear(4, outputs, dtype=F64))


def single(outputs: int) -> nn.Module:
    return MLP(3, [6, 5], n_outputs=outputs, dtype=torch.float32)


METHODS = {
    "krylov": {"solver": "krylov"},
    "hybrid": {"solver": gnvpro.solvers.Hybrid(max_rank=2)},
    "dense": {"solver": "dense"},
    "auto": {},
    "lbfgs-vpro": {"method": "lbfgs-vpro"},
    "gauss-newton": {"method": "gauss-newton"},
    "adam": {"method": gnvpro.methods.TorchOptimizer(torch.optim.Adam, lr=1e-2, batch_size=16)},
    "nesterov": {"method": gnvpro.methods.TorchOptimizer(NESTEROV, lr=1e-2, batch_size=16)},
    "adam-vpro": {"method": gnvpro.methods.AdamVPro(lr=1e-2, batch_size=16)},
}
SOFT: dict[str, Any] = {"theta_penalty": 1e-3, "head_penalty": 1e-3}
SOFTER: dict[str, Any] = {
    "theta_penalty": 1e-2,
    "head_penalty": 1e-2,
}  # with SOFT rounding errors grow to 1.5e-12 there, on some processors
# DISTINCT orders directions without gradient: rounding errors grow by 1 / DISTINCT
DIGITS = {"adam-vpro": 1e-10}
CASES = {
    **{
        f"{name}, least squares": Case(settings={**SOFT, **method}, rtol=DIGITS.get(name, 1e-12))
        for name, method in METHODS.items()
    },
    **{
        f"{name}, multinomial": Case("multinomial", {**SOFTER, **method}, 3, rtol=DIGITS.get(name, 1e-12))
        for name, method in METHODS.items()
    },
    "krylov, logistic": Case("logistic", {**SOFT, "solver": "krylov"}, 1),
    "dense, own loss": Case(Poisson(), {**SOFT, "solver": "dense"}, 1),
    # without a penalty to speak of, a step multiplies rounding errors by the condition of the features
    "singular values": Case(settings={"solver": "krylov"}, iterations=1, rtol=1e-10),
    "no penalty": Case(settings={"solver": "krylov", "head_penalty": 0.0}, iterations=1, rtol=1e-10),
    # rounding errors of 57 steps on batches
    "auto on batches": Case(
        settings={**SOFT, "policy": Policy(batches=BatchPolicy(begin_from=50), solver=SolverPolicy(cheap_first=0.0))},
        model=lambda outputs: MLP(3, [9, 8], n_outputs=outputs, dtype=F64),
        rtol=1e-8,
    ),
    "residual term": Case(settings={**SOFT, "solver": gnvpro.solvers.Dense(residual_term=True)}),
    "more outputs than samples": Case(
        settings={**SOFT, "solver": gnvpro.solvers.Dense(residual_term=True)}, outputs=95, iterations=1, rtol=1e-11
    ),
    # it ends at a gradient of 1e-10, which a penalty of 1e-3 makes an uncertainty of 1e-7 in W
    "newton-krylov": Case(
        "multinomial", {**SOFT, "method": gnvpro.methods.GNvpro(eliminator=gnvpro.heads.NewtonKrylov())}, 3, rtol=1e-7
    ),
    "newton-cg": Case(
        "multinomial",
        {
            **SOFT,
            "method": gnvpro.methods.GNvpro(
                solver="krylov", eliminator=gnvpro.heads.NewtonCG(rtol=1e-12, inverse_rtol=1e-12)
            ),
        },
        3,
        rtol=1e-8,
    ),
    "weights": Case(settings={**SOFT, "solver": "krylov"}, weighted=True),
    "weights, adam": Case("multinomial", {**SOFT, **METHODS["adam"]}, 3, weighted=True),
    "batches": Case(
        "multinomial",
        {**SOFTER, "method": gnvpro.methods.GNvpro(batches=gnvpro.methods.Batches(40, iterations=1))},
        3,
        iterations=3,
    ),
    "streamed, krylov": Case(settings={**SOFT, **METHODS["krylov"]}, streamed=True),
    "streamed, dense": Case("multinomial", {**SOFTER, **METHODS["dense"]}, 3, streamed=True),
    "streamed, adam": Case("multinomial", {**SOFT, **METHODS["adam"]}, 3, streamed=True),
    "streamed, batches of two": Case(  # some of which have no sample of one of the processes
        "multinomial",
        {**SOFT, "method": gnvpro.methods.TorchOptimizer(torch.optim.Adam, lr=1e-2, batch_size=2)},
        3,
        streamed=True,
    ),
    "nothing here": Case("multinomial", {**SOFT, "solver": "dense"}, 3, cut=0),
    "nothing there": Case(settings={**SOFT, **METHODS["adam-vpro"]}, cut=N),
    "levels": Case(settings={**SOFT, "method": gnvpro.methods.GNvpro(levels=2), "work": 14}, model=deep, rtol=1e-10),
    "float32": Case(settings={**SOFT, "solver": "krylov"}, model=single, iterations=1, rtol=1e-4),
}


def samples(case: Case) -> tuple[Tensor, Tensor, Tensor | None]:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(N, 3, generator=draw, dtype=F64)
    if case.loss == "multinomial":
        y = (x[:, 0] > 0).long() + (x[:, 1] + 0.5 * torch.randn(N, generator=draw, dtype=F64) > 0.3).long()
    elif case.loss == "logistic":
        y = (x[:, 0] + torch.randn(N, generator=draw, dtype=F64) > 0).long()
    else:
        waves = torch.sin(x.sum(1, keepdim=True) * torch.linspace(0.5, 2, case.outputs, dtype=F64))
        y = waves.abs() + 0.3 * torch.rand(N, case.outputs, generator=draw, dtype=F64)
    weights = torch.rand(N, generator=draw, dtype=F64).round(decimals=1) if case.weighted else None
    return x, y, weights


def trained(case: Case, part: slice, seed: int, group: Any) -> tuple[list[float], Tensor, list[Any]]:
    x, y, weights = samples(case)
    own = (x[part].to(torch.float32) if case.rtol == 1e-4 else x[part], y[part])
    torch.manual_seed(seed)
    result = gnvpro.train(
        case.model(case.outputs),
        *([torch.utils.data.TensorDataset(*own)] if case.streamed else own),
        loss=case.loss,
        **{"iterations": case.iterations, **case.settings},
        sample_weight=None if weights is None else weights[part],
        validation=own,
        process_group=group,
    )
    W = torch.cat([p.detach().reshape(-1) for p in result.model.parameters()])
    history = [tuple(record.to_dict().items()) for record in result.history]
    return result.history.column("loss"), W, history


def in_two(rank: int, keep: Keep) -> None:
    """Every case in two processes; the first process also trains alone, on all samples."""
    for name, case in CASES.items():
        part = slice(0, case.cut) if rank == 0 else slice(case.cut, N)
        # processes start with different models; rank 0's counts
        keep(name, trained(case, part, seed=rank, group=dist.group.WORLD))
        if rank == 0:
            keep(f"{name}, alone", trained(case, slice(0, N), seed=0, group=None))
    for name in ("krylov", "dense"):
        keep(f"bytes, {name}", [bytes_sent(name, samples) for samples in (60, 600)])


def bytes_sent(solver: str, samples: int) -> list[int]:
    """Bytes that this process hands to the others between two records."""
    sent, at_records = [0], []

    def counting(function: Callable[..., Any], which: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            sent[0] += args[which].numel() * args[which].element_size()
            return function(*args, **kwargs)

        return call

    x = torch.randn(samples, 3, generator=torch.Generator().manual_seed(0), dtype=F64)
    torch.manual_seed(0)
    model = MLP(3, [6, 5], n_outputs=2, dtype=F64)
    chosen = gnvpro.solvers.Krylov(max_rank=3, rtol=0.0) if solver == "krylov" else gnvpro.solvers.Dense(geodesic=False)
    with ExitStack() as stack:
        for name, which in {"all_reduce": 0, "broadcast": 0, "send": 0, "recv": 0, "all_gather": 1}.items():
            stack.enter_context(patch.object(dist, name, counting(getattr(dist, name), which)))
        gnvpro.train(
            model,
            x,
            torch.sin(x[:, :2]),
            loss="least_squares",
            solver=chosen,
            iterations=3,
            **SOFT,
            listeners=lambda record: at_records.append(sent[0]),
            process_group=dist.group.WORLD,
        )
    return [after - before for before, after in itertools.pairwise(at_records)]


@cache
def both() -> list[dict[str, Any]]:
    made = run_in_group(in_two)
    for each in made:
        assert "error" not in each, each["error"]
    return made


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_processes_take_the_steps_of_one(name: str) -> None:
    first, _ = both()
    (losses, model, history), (alone, expected, alone_history) = first[name], first[f"{name}, alone"]
    assert len(losses) == len(alone) > CASES[name].iterations
    assert difference(torch.tensor(losses, dtype=F64), torch.tensor(alone, dtype=F64)) <= CASES[name].rtol
    assert difference(model, expected) <= CASES[name].rtol
    assert losses[-1] != losses[0]
    for record, other in zip(map(dict, history), map(dict, alone_history), strict=True):
        for key in ("work", "accepted", "solver", "rank", "iteration"):
            assert record[key] == other[key], key
        assert record["validation_loss"] == pytest.approx(other["validation_loss"], rel=max(1e-9, CASES[name].rtol))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_all_processes_hold_the_same_bits(name: str) -> None:
    first, second = both()
    assert torch.equal(first[name][1], second[name][1])
    assert first[name][2] == second[name][2]


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["krylov", "dense"])
def test_what_processes_say_to_each_other_does_not_grow_with_the_samples(solver: str) -> None:
    few, many = both()[0][f"bytes, {solver}"]
    assert len(few) == 3
    assert few == many
    assert min(few) > 0
