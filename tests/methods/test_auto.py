"""`auto`: which steps it takes, by what it sees of them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import gnvpro
from checks import F64
from clocks import run_wildly
from gnvpro.methods.auto import AutoState
from gnvpro.methods.cache import Cache
from gnvpro.methods.costs import Account, Costs, prices_of, sizes_of, thrifty
from gnvpro.methods.loop import Loop, LoopState, state_at
from gnvpro.methods.models import DenseMemory, SpaceMemory
from gnvpro.methods.protocol import Budget, Start
from gnvpro.methods.race import CheapSteps, LateModels, Race, RaceState
from gnvpro.minimize.trust_region import StepReport
from gnvpro.network.work import WorkMeter
from gnvpro.networks import NeuralODE
from gnvpro.policy import BatchPolicy, CostPolicy, Policy, SolverPolicy, StoppingPolicy

INPUTS = torch.rand(150, 3, generator=torch.Generator().manual_seed(5), dtype=F64) * 4 - 2
LABELS = (INPUTS[:, 0] * INPUTS[:, 1] > INPUTS[:, 2].sin()).long() + (INPUTS.square().sum(1) > 4).long()
REAL = torch.sin(INPUTS.sum(1, keepdim=True)) * INPUTS[:, :2]


def trained(loss: str = "multinomial", solver: gnvpro.solvers.Auto | None = None, **more: Any) -> gnvpro.Result:
    torch.manual_seed(3)
    classify = loss == "multinomial"
    model = nn.Sequential(NeuralODE(3, 6, depth=2, final_time=1.0), nn.Linear(6, 3 if classify else 2)).double()
    settings = {"loss": loss, "head_penalty": 1e-4, "theta_penalty": 1e-4, "policy": RACED, **more}
    method = settings.pop("method", gnvpro.methods.GNvpro(solver=solver or gnvpro.solvers.Auto()))
    return gnvpro.train(model, INPUTS, LABELS if classify else REAL, method=method, **settings)


def kinds(records: Any) -> list[str]:
    """The solvers that made the steps, one after the other."""
    return [kind for kind, _ in itertools.groupby(record.solver for record in records if record.solver)]


BY_WORK = gnvpro.solvers.Auto(cost="work")
RACED = Policy(solver=SolverPolicy(cheap_first=0.0))  # cheap steps are tried, though the matrices are small here


# -- what is taken


def test_a_small_matrix_is_made_at_every_step() -> None:
    assert kinds(trained(work=60, policy=None).history) == ["dense"]
    assert kinds(trained("least_squares", iterations=5, policy=None).history) == ["dense"]


def test_by_work_nothing_but_exact_steps_where_they_cost_little_more_than_cheap_ones() -> None:
    """Two rows, a trial and a probe: four passes, two quasi-Newton steps."""
    assert kinds(trained("least_squares", BY_WORK, work=200, policy=None).history) == ["dense"]


@pytest.mark.parametrize(
    ("loss", "cost", "first"),
    [
        ("least_squares", "work", "hybrid"),
        ("multinomial", "work", "hybrid"),
        ("least_squares", "operations", "hybrid"),
        ("multinomial", "operations", "krylov"),
        ("least_squares", "seconds", "hybrid"),
    ],
)
def test_begins_with_cheap_steps_and_takes_exact_ones(loss: str, cost: str, first: str) -> None:
    taken = kinds(trained(loss, gnvpro.solvers.Auto(cost=cost), work=1000, iterations=40).history)
    assert taken[0] == first
    assert "dense" in taken


def test_gives_its_settings_to_its_steps() -> None:
    policy = Policy(solver=SolverPolicy(cheap_first=0.0, least_window=2))
    solver = gnvpro.solvers.Auto(max_rank=2, rtol=0.0, dense=gnvpro.solvers.Dense(step_control="damping"))
    history = trained(solver=solver, iterations=30, policy=policy).history[1:]
    assert {r.rank for r in history if r.solver == "krylov"} == {2}
    exact = [r for r in history if r.solver == "dense"]
    assert exact
    assert all(r.damping is not None and r.radius is None for r in exact)


def test_a_standstill_is_no_end_before_exact_steps_were_tried() -> None:
    """Whatever came last: these rules call any two records settled."""
    at_once = StoppingPolicy(least_work=1.0, least_iterations=1, fall=1e9)
    settled = trained("least_squares", policy=replace(RACED, stopping=at_once))
    assert settled.status is gnvpro.Status.SETTLED
    assert kinds(settled.history) == ["hybrid", "dense"]
    assert settled.history.column("solver").count("dense") == 6
    alone = trained("least_squares", gnvpro.solvers.Hybrid(), policy=Policy(stopping=at_once))  # type: ignore[arg-type]
    assert len(alone.history) == 2


def test_exact_steps_follow_where_cheap_ones_cannot_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Loop.trial

    def stuck(loop: Any, state: LoopState) -> Any:
        return (state, gnvpro.Status.STEP_TOO_SMALL) if isinstance(loop.models, LateModels) else trial(loop, state)

    monkeypatch.setattr(Loop, "trial", stuck)
    assert kinds(trained("least_squares", work=40).history) == ["dense"]


@pytest.mark.parametrize("work", [2, 3, 4, 5, 9, 23, 50])
@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
def test_stays_within_the_budget(loss: str, work: float) -> None:
    assert trained(loss, work=work).work <= work


def test_later_batches_begin_with_exact_steps_and_levels_with_cheap_ones() -> None:
    method = gnvpro.methods.GNvpro(batches=gnvpro.methods.Batches(len(INPUTS) // 2, iterations=3))
    history = trained("least_squares", work=100, method=method).history
    for batch, expected in (((0, 0), "hybrid"), ((0, 1), "dense"), ((1, 0), "dense")):
        assert next(r.solver for r in history if (r.sweep, r.batch) == batch and r.solver) == expected
    history = trained("least_squares", work=[60, 60], method=gnvpro.methods.GNvpro(levels=2)).history
    for level in (0, 1):
        assert next(r.solver for r in history if r.level == level and r.solver) == "hybrid"


def test_the_hybrid_where_exact_steps_cannot_be_had() -> None:
    method = gnvpro.methods.GNvpro(solver=gnvpro.solvers.Auto(max_rank=10), memory=1e5)
    assert kinds(trained(work=60, method=method).history) == ["hybrid"]
    never = Policy(solver=SolverPolicy(exact_below=1e-6))
    assert kinds(trained(solver=gnvpro.solvers.Auto(max_rank=10), work=60, policy=never).history) == ["hybrid"]


@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
def test_a_clock_that_runs_wildly_changes_no_bit(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained(loss, iterations=25)
    run_wildly(monkeypatch)
    again = trained(loss, iterations=25)
    assert again.history.column("loss") == first.history.column("loss")
    assert len(set(first.history.column("solver"))) > 2  # none at the start, and two kinds
    for p, q in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("policy", [None, RACED, Policy(batches=BatchPolicy(begin_from=100, steps=60))])
@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
@pytest.mark.parametrize("cost", ["operations", "work"])
def test_a_limit_that_is_not_reached_changes_no_bit(cost: str, loss: str, policy: Policy | None) -> None:
    runs = [
        trained(loss, gnvpro.solvers.Auto(cost=cost), iterations=25, policy=policy, **limits)
        for limits in ({}, {"work": 1e9}, {"work": 1e7, "seconds": 1e9} if policy in (None, RACED) else {"work": 1e7})
    ]
    for run in runs[1:]:
        assert run.history.column("loss") == runs[0].history.column("loss")
        assert run.history.column("solver") == runs[0].history.column("solver")


Raced = tuple[gnvpro.Problem, Budget, Cache, AutoState, RaceState]


def raced_to_exact_steps(loss: str) -> Raced:
    """A race that has just entered its first exact steps."""
    torch.manual_seed(3)
    classify = loss == "multinomial"
    model = nn.Sequential(NeuralODE(3, 6, depth=2, final_time=1.0), nn.Linear(6, 3 if classify else 2)).double()
    problem = gnvpro.Problem(model, INPUTS, LABELS if classify else REAL, loss=loss, policy=RACED)
    budget, cache = Budget(WorkMeter(len(INPUTS)), math.inf), Cache(problem.meter)
    state = gnvpro.solvers.Auto().begin(problem, Start(problem.theta()), budget, cache)
    while True:
        race = state.inner
        assert isinstance(race, RaceState)
        if race.kind == "exact":
            return problem, budget, cache, state, race
        state, report = gnvpro.solvers.Auto().step(problem, state, budget, cache)
        assert isinstance(report, StepReport)


def test_exact_steps_begin_with_the_radius_of_krylov_steps() -> None:
    """With separate safe radii they took six steps to make it a thousand times as long (peaks)."""
    problem, budget, cache, state, race = raced_to_exact_steps("multinomial")
    assert race.cheap_bound is not None
    assert race.current.bound == race.cheap_bound
    _, report = gnvpro.solvers.Auto().step(problem, state, budget, cache)
    assert isinstance(report, StepReport)
    assert report.radius == race.cheap_bound


def test_the_first_damping_of_exact_steps_falls_with_the_root_of_the_objective() -> None:
    problem, budget, cache, _, state = raced_to_exact_steps("least_squares")
    race = gnvpro.solvers.Auto()._race(problem, budget, cache)
    fallen = replace(state, first_value=1e4 * state.iterate.value)
    memory = race._entered(fallen, "exact", race._point(state)).current.memory
    assert isinstance(memory, DenseMemory)
    assert memory.first_damping == pytest.approx(1e-2)


@pytest.mark.parametrize(
    ("rows", "kind", "sentence"),
    [
        ({}, "exact", r"^an exact step costs [\d.]+ cheap ones < solver.cheap_first = 6: all steps are exact$"),
        ({"cheap_first": 0.5}, "cheap", r"^an exact step costs [\d.]+ cheap ones >= solver.cheap_first = 0.5: cheap"),
        ({"exact_below": 1e-9}, "hybrid", r"^an exact step of [\d.e-]+ s > solver.exact_below = 1e-09: hybrid steps$"),
    ],
)
def test_a_choice_says_which_rule_made_it(rows: dict[str, float], kind: str, sentence: str) -> None:
    problem = small_problem(50, 4, policy=Policy(solver=SolverPolicy(**rows), batches=BatchPolicy(begin_from=1000)))
    choice = gnvpro.solvers.Auto().choose(problem)
    assert choice.kind == kind
    assert choice.why[0] == "50 samples < batches.begin_from = 1,000: all samples at every step"
    assert re.search(sentence, choice.why[-1])
    many = small_problem(50, 4, policy=Policy(solver=SolverPolicy(cheap_first=0.0), batches=BatchPolicy(begin_from=50)))
    choice = gnvpro.solvers.Auto().choose(many)
    assert choice.kind == "batches"
    assert choice.why[0] == "50 samples >= batches.begin_from = 50: starts on random batches"


# -- how it decides


@dataclass
class Clock:
    now: float = 0.0


@dataclass
class FakeCosts:
    """A clock that the steps themselves move."""

    time: Clock
    of_exact_step: float
    dense: Any
    cheap_first: bool = True

    def clock(self) -> float:
        return 0.0

    def spent(self, account: Account, budget: Budget, seconds: float) -> float:
        return self.time.now

    def exact_step(self, account: Account) -> float:
        return self.of_exact_step

    def exact_seconds(self, account: Account) -> float:
        return 0.0

    def calibrated(self, account: Account, of_cheap_step: float) -> Account:
        return account


@dataclass
class FakeLoop:
    """Steps of one kind: what each costs, and how much of Phi it takes off, as a function of Phi."""

    time: Clock
    cost: float
    gain: Callable[[float], float]

    @property
    def models(self) -> Any:
        return SimpleNamespace(own=lambda bound: bound)

    def trial(self, current: LoopState) -> tuple[LoopState, StepReport]:
        self.time.now += self.cost
        value = current.iterate.value * math.exp(-self.gain(current.iterate.value))
        return replace(current, iterate=replace(current.iterate, value=value)), StepReport(True)

    def measured(self, current: LoopState) -> LoopState:
        return current

    def at(self, current: LoopState) -> Any:
        return SimpleNamespace(point=point_of_value(current.iterate.value))

    def first(self, point: Any, bound: Any, memory: Any) -> LoopState:
        return state_at(point, bound, memory)


def point_of_value(value: float) -> Any:
    nowhere = torch.zeros(0)
    return SimpleNamespace(
        value=value,
        theta=nowhere,
        x=nowhere,
        start=None,
        known_gradient=None,
        reached=lambda: (nowhere, nowhere, value, value, None),
    )


Gain = Callable[[float], float]
KINDS: dict[str, tuple[Gain, Gain]] = {  # log of the reduction by a cheap step (cost 2) and by an exact one (cost 20)
    "exact from the start": (lambda phi: 0.02, lambda phi: 0.8),
    "cheap to the end": (lambda phi: 0.08, lambda phi: 0.2),
    "cheap first, then exact": (lambda phi: 0.15 if phi > 1e-3 else 0.003, lambda phi: 0.4),
    "both slow down": (lambda phi: 0.2 * phi**0.3, lambda phi: 0.8 * phi**0.2),
}


@pytest.mark.parametrize("what", KINDS)
def test_takes_not_much_longer_than_the_better_kind(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnvpro.methods.race.head_size", lambda problem: ())
    cheap_gain, exact_gain = KINDS[what]

    def cost_to(goal: float, cost: float, gain: Gain) -> float:
        phi, spent = 1.0, 0.0
        while phi > goal and spent < 1e5:
            phi, spent = phi * math.exp(-gain(phi)), spent + cost
        return spent

    clock = Clock()
    loops = {"cheap": FakeLoop(clock, 2.0, cheap_gain), "exact": FakeLoop(clock, 20.0, exact_gain)}
    costs: Any = FakeCosts(clock, 20.0, SimpleNamespace(step_passes=lambda *sizes: 10))
    problem: Any = SimpleNamespace(policy=Policy())
    meter = WorkMeter(1)
    race = Race(CheapSteps(20, 0.0, two_passes=True), costs, problem, Budget(meter, math.inf), Cache(meter))
    monkeypatch.setattr(race, "_loop", lambda state: loops[state.kind])
    state = race.begin(point_of_value(1.0), None)
    for goal in [10.0 ** (-k / 2) for k in range(2, 13)]:
        while state.iterate.value > goal:
            state, report = race.step(state)
            assert isinstance(report, StepReport)
        best = min(cost_to(goal, 2.0, cheap_gain), cost_to(goal, 20.0, exact_gain))
        assert clock.now <= 1.3 * best + 60, f"Phi = {goal:.1e}: {clock.now:g} against {best:g}"


def small_problem(n: int, width: int = 30, **settings: Any) -> gnvpro.Problem:
    model = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 1)).double()
    return gnvpro.Problem(
        model, torch.rand(n, 3, dtype=F64), torch.rand(n, 1, dtype=F64), loss="least_squares", **settings
    )


def test_several_processes_do_not_look_at_their_clocks(monkeypatch) -> None:
    """Processes have separate clocks; with different decisions they would wait for each other for ever."""
    problem = small_problem(9)
    assert Costs("seconds", gnvpro.solvers.Dense(), problem).kind == "seconds"
    monkeypatch.setattr(problem.processes, "alone", False)
    assert Costs("seconds", gnvpro.solvers.Dense(), problem).kind == "operations"


def test_costs_are_sums_of_passes_matrices_and_steps() -> None:
    problem = small_problem(50)
    budget, account = Budget(problem.meter, math.inf), Account(problem.meter.work, matrices=3, steps=2)
    costs = Costs("operations", gnvpro.solvers.Dense(), problem)
    each = costs.predicted
    problem.meter.count(50, 7)
    assert costs.spent(account, budget) == pytest.approx(7 * each.of_pass + 3 * each.of_matrix + 2 * each.of_step)
    assert costs.exact_step(account) == pytest.approx(3 * each.of_pass + each.of_matrix + each.of_step)
    by_work = Costs("work", gnvpro.solvers.Dense(), problem)
    assert by_work.spent(account, budget) == 7
    assert by_work.exact_step(account) == 3
    assert by_work.predicted.of_cheap_step == 2


@pytest.mark.parametrize(("square", "n"), [(1e-6, 5000), (1e-15, 5000), (1e-6, 300)])
def test_the_matrix_is_of_a_part_if_squaring_takes_most_of_a_step(square: float, n: int) -> None:
    policy = Policy(cost=CostPolicy(square=square, number=0.0, step=0.0))
    problem, dense = small_problem(n, policy=policy), gnvpro.solvers.Dense()
    sizes = sizes_of(problem)
    part = thrifty(dense, problem, sizes)
    if square == 1e-6 and n == 5000:
        assert part.samples == 3 * 120  # rows of one target for 120 directions
        whole, less = (prices_of(each, problem, sizes).of_exact_step for each in (dense, part))
        assert less < 0.5 * whole
    else:
        assert part == dense
    assert Costs("operations", dense, problem).dense == part
    assert Costs("work", dense, problem).dense == dense


def test_a_run_with_matrices_of_a_part_is_resumed(tmp_path) -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(3700, 3, dtype=torch.float64, generator=generator)
    policy = Policy(solver=SolverPolicy(cheap_first=math.inf), cost=CostPolicy(square=1e-6))

    def run(**more: Any) -> gnvpro.Result:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 1)).double()
        y = torch.sin(4 * X.prod(1, keepdim=True))
        return gnvpro.train(model, X, y, loss="least_squares", policy=policy, **more)

    whole = run(iterations=6)
    assert whole.history[-1].work % 1 != 0  # of a part
    run(iterations=3, checkpoint=tmp_path / "run")
    resumed = run(iterations=6, checkpoint=tmp_path / "run", resume=True)
    assert resumed.history.column("loss") == whole.history.column("loss")


@pytest.mark.parametrize(("exact_in_steps", "rank"), [(19.0, 1), (21.0, 20)])
def test_no_krylov_space_where_an_exact_step_costs_less(exact_in_steps: float, rank: int) -> None:
    """A space of 20 dimensions takes about as long as 20 quasi-Newton steps."""
    problem = gnvpro.Problem(
        nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 2)).double(), INPUTS, REAL, loss="least_squares"
    )
    budget = Budget(problem.meter, math.inf)
    late = CheapSteps(20, 0.0, two_passes=True).models(exact_in_steps, 60)
    assert isinstance(late, LateModels)
    point = problem.reduced.at(problem.theta())
    assert late.build(late.planned(SpaceMemory(), point, budget), point).rank == rank
    assert [late.may_build(due, budget) for due in range(1, 61)] == 59 * [False] + [rank == 20]
