"""Several processes share the points of equations, and take the steps of one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from gnvpro import pde
from gnvpro.networks import MLP
from group import Keep, run_in_group

F64 = torch.float64
BOX = pde.points.Box([0, 0], [1, 1])


def field() -> pde.Field:
    return pde.Field(MLP(2, [6, 5], dtype=F64))


def poisson(seed: int = 0) -> tuple[pde.Field, list[pde.Equation]]:
    u = field()
    inside = pde.Equation(-pde.laplacian(u), BOX.inside(41, seed), lambda x: torch.sin(3 * x).prod(1))
    return u, [inside, pde.Equation(u, BOX.boundary(20, seed), 0.0)]


def front() -> tuple[pde.Field, list[pde.Equation]]:
    u = field()
    inside = pde.Equation(pde.d(u, 0) + u * pde.d(u, 1) - 0.1 * pde.d(u, 1, 1), BOX.inside(41), 0.0)
    return u, [inside, pde.Equation(u, BOX.face(0, "low", 12), lambda x: torch.sin(3 * x[:, 1]))]


def unknown() -> tuple[pde.Field, list[pde.Equation]]:
    """With a constant to find, sites of other points, and one integral: a pass that is too small to share."""
    u, kappa = field(), pde.Constant(1.0, "kappa")
    left = BOX.face(1, "low", 9).points
    nodes = torch.linspace(0, 1, 3, dtype=F64)[:, None].repeat(1, 2)
    whole = pde.integral(pde.d(u, 0), nodes, torch.full((3,), 1 / 3, dtype=F64))
    return u, [
        pde.Equation(-kappa * pde.laplacian(u), BOX.inside(30), 1.0),
        pde.Equation(u.at(left) - u.at(left + torch.tensor([0.0, 1.0], dtype=F64)), None, 0.0),
        pde.Equation(whole, None, 0.5),
        pde.Equation(u, BOX.inside(8, 1).points, torch.linspace(0, 0.1, 8, dtype=F64)),
    ]


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "linear": (poisson, {}),
    "together": (front, {"head": "together"}),
    "eliminated": (front, {"head": "eliminated", "iterations": 4}),  # in 6, rounding errors grow to 5e-12
    "unknown constant": (unknown, {}),
}


def solved(name: str, seed: int, group: Any, **settings: Any) -> tuple[Tensor, Tensor, list[Any]]:
    make, given = CASES[name]
    torch.manual_seed(seed)
    u, equations = make()
    result = pde.solve(
        u,
        equations,
        **{"seconds": None, "iterations": 6, "head_penalty": 1e-6, **given, **settings},
        process_group=group,
    )
    constants = [torch.tensor([c.value]) for e in equations for c in e.constants]
    parameters = torch.cat([*(p.detach().reshape(-1) for p in u.parameters()), *constants])
    history = [tuple(record.to_dict().items()) for record in result.history]
    return parameters, torch.tensor([*result.history.column("loss"), *map(float, result.residuals)], dtype=F64), history


def in_two(rank: int, keep: Keep, folder: str) -> None:
    group = dist.group.WORLD
    for name in CASES:
        keep(name, solved(name, rank, group))  # processes start with different networks; rank 0's counts
        if rank == 0:
            keep(f"{name}, alone", solved(name, 0, None))
    # more than ten iterations: residuals are looked at, points are added
    keep("long", solved("linear", rank, group, iterations=23, head_penalty=None))
    file = f"{folder}/run.pt"
    solved("linear", rank, group, iterations=11, head_penalty=None, checkpoint=file)
    keep("resumed", solved("linear", rank, group, iterations=23, head_penalty=None, checkpoint=file, resume=True))
    u, equations = poisson(seed=rank)
    try:
        pde.solve(u, equations, iterations=1, process_group=group)
    except ValueError as error:
        keep("other points", str(error))


@cache
def both(folder: str) -> list[dict[str, Any]]:
    made = run_in_group(in_two, folder)
    for each in made:
        assert "error" not in each, each["error"]
    return made


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return both(str(tmp_path_factory.mktemp("shared")))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_processes_take_the_steps_of_one(name: str, ranks: list[dict[str, Any]]) -> None:
    (parameters, numbers, history), (expected, alone, alone_history) = ranks[0][name], ranks[0][f"{name}, alone"]
    torch.testing.assert_close(numbers, alone, rtol=1e-12, atol=0)
    assert float((parameters - expected).norm()) <= 1e-12 * float(expected.norm())
    assert [dict(r)["accepted"] for r in history] == [dict(r)["accepted"] for r in alone_history]
    assert any(dict(r)["accepted"] for r in history[1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, "long"])
def test_all_processes_hold_the_same_bits(name: str, ranks: list[dict[str, Any]]) -> None:
    first, second = (each[name] for each in ranks)
    assert torch.equal(first[0], second[0])
    assert first[2] == second[2]


@pytest.mark.slow
def test_a_run_goes_on_from_the_checkpoint_of_the_first_process(ranks: list[dict[str, Any]]) -> None:
    for each in ranks:
        assert torch.equal(each["resumed"][0], each["long"][0])
        assert torch.equal(each["resumed"][1], each["long"][1])


@pytest.mark.slow
def test_processes_with_other_points_are_told_so(ranks: list[dict[str, Any]]) -> None:
    for each in ranks:
        assert "rank 1 of the process group differs from rank 0 in points 0.0" in each["other points"]
        assert "same equations and points" in each["other points"]
