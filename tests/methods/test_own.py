"""Users' solvers, methods, eliminators and listeners are accepted wherever the library's are."""

from __future__ import annotations

import ast
import dataclasses
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import gnvpro
from gnvpro.extend import Budget, Cache, MethodState, Start, StepReport, iterate_at
from gnvpro.problem.loss import Loss
from gnvpro.problem.misfit import Misfit

F64 = torch.float64
INPUTS = torch.rand(120, 2, dtype=F64, generator=torch.Generator().manual_seed(0)) * 2 - 1
REAL = torch.stack([torch.sin(3 * INPUTS[:, 0]), INPUTS.prod(1)], 1)
LABELS = (INPUTS.prod(1) > 0).long()


def example() -> dict[str, Any]:
    """The imports, classes and functions of the example of a solver."""
    path = Path(__file__).parents[2] / "examples" / "own_solver.py"
    tree = ast.parse(path.read_text())
    tree.body = [
        node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef)
    ]
    module = type(sys)("own_solver")  # dataclasses look for the module of a class
    sys.modules["own_solver"] = module
    exec(compile(tree, path.name, "exec", dont_inherit=True), vars(module))
    return vars(module)


EXAMPLE = example()
SteihaugCG, cg_path = EXAMPLE["SteihaugCG"], EXAMPLE["cg_path"]


@dataclass(frozen=True, kw_only=True)
class DescentState(MethodState):
    """The length of the next step, and how the head was found."""

    length: float
    start: gnvpro.extend.WarmStart | None


@dataclass(frozen=True, kw_only=True)
class Descent(gnvpro.extend.Method):
    """A method of one's own."""

    length: float = 1.0
    batches: gnvpro.methods.Batches | None = None
    name: ClassVar[str] = "descent"

    def parts(self) -> gnvpro.methods.Batches | None:
        return self.batches

    def begin(self, problem: gnvpro.Problem, start: Start, budget: Budget, cache: Cache) -> DescentState:
        return self.state_at(problem.reduced.start(start.theta, start.warm), self.length, cache)

    def step(
        self, problem: gnvpro.Problem, state: DescentState, budget: Budget, cache: Cache
    ) -> tuple[DescentState, StepReport]:
        """Gradient steps on the reduced objective, halved until they go down."""
        x = state.iterate.theta
        start = problem.reduced.start
        gradient = cache.recall("gradient", lambda: start(x, state.start).gradient(), state.iterate)
        trial = start(x - state.length * gradient, gnvpro.extend.WarmStart(state.iterate.W))
        if trial.value < state.iterate.value:
            return self.state_at(trial, 2.0 * state.length, cache), StepReport(True, solver="descent")
        return dataclasses.replace(state, length=0.25 * state.length), StepReport(False, solver="descent")

    def state_at(self, point: gnvpro.extend.ReducedPoint, length: float, cache: Cache) -> DescentState:
        iterate, gradient = iterate_at(point), point.gradient()
        cache.keep("gradient", gradient, iterate)
        return DescentState(iterate=iterate, gradient_norm=float(gradient.norm()), length=length, start=point.start)


@dataclass(frozen=True)
class Shaken:
    """An eliminator of one's own: Newton from another start, which may not change the answer."""

    inner: gnvpro.heads.Newton = gnvpro.heads.Newton()  # noqa: RUF009 - it is frozen
    supports_exact_steps: ClassVar[bool] = True
    inverse_acts_on_rows: ClassVar[bool] = False
    calls: ClassVar[list[int]] = []

    def why_not(self, loss: Loss) -> str | None:
        return (
            "it is for classes; use gnvpro.heads.LeastSquares()"
            if isinstance(loss, gnvpro.losses.HalfSquaredError)
            else None
        )

    def fit(
        self, Z: Tensor, misfit: Misfit, head_penalty: float, start: gnvpro.extend.WarmStart | None
    ) -> gnvpro.extend.HeadFit:
        self.calls.append(len(Z))
        return self.inner.fit(Z, misfit, head_penalty, start)


OWN: dict[str, tuple[gnvpro.extend.Method, str, str]] = {
    "solver": (gnvpro.methods.GNvpro(solver=SteihaugCG(max_steps=6)), "least_squares", "steihaug-cg"),
    "solver, classes": (gnvpro.methods.GNvpro(solver=SteihaugCG(max_steps=6)), "multinomial", "steihaug-cg"),
    "solver in batches": (
        gnvpro.methods.GNvpro(solver=SteihaugCG(max_steps=6), batches=gnvpro.methods.Batches(60, iterations=2)),
        "least_squares",
        "steihaug-cg",
    ),
    "method": (Descent(length=0.5), "least_squares", "descent"),
    "method in batches": (Descent(batches=gnvpro.methods.Batches(40)), "multinomial", "descent"),
    "eliminator": (gnvpro.methods.GNvpro(solver="krylov", eliminator=Shaken()), "multinomial", "krylov"),
    "eliminator, exact steps": (gnvpro.methods.GNvpro(solver="dense", eliminator=Shaken()), "multinomial", "dense"),
}


def run(method: gnvpro.extend.Method, loss: str, **more: Any) -> gnvpro.Result:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    targets = LABELS if loss == "multinomial" else REAL
    return gnvpro.train(model, INPUTS, targets, loss=loss, method=method, work=60, **more)


def numbers(result: gnvpro.Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in r.to_dict().items() if not k.endswith("seconds")} for r in result.history]


@pytest.mark.parametrize("name", OWN)
def test_what_is_ones_own_trains_shows_in_the_history_and_resumes_to_the_same_bits(name: str, tmp_path: Path) -> None:
    method, loss, shown = OWN[name]
    expected = run(method, loss)
    losses = [r.loss for r in expected.history if r.note is None and r.batch in (None, 0)]
    assert losses[-1] < losses[0]
    assert expected.work <= 60 + 1e-9
    assert {r.solver for r in expected.history if r.iteration > 0 and r.note is None} == {shown}
    last = len(expected.history) - 1
    assert last >= 3
    for stop in sorted({1, last // 2, last - 1}):

        def interrupt(record: gnvpro.extend.Record, stop: int = stop) -> None:
            if record.iteration == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(method, loss, checkpoint=tmp_path / f"{stop}", listeners=interrupt)
        resumed = run(method, loss, checkpoint=tmp_path / f"{stop}", resume=True)
        assert numbers(resumed) == numbers(expected)
        assert all(
            torch.equal(a, b) for a, b in zip(resumed.model.parameters(), expected.model.parameters(), strict=True)
        )


def test_a_model_is_built_again_with_the_passes_that_were_left_when_it_was_built(tmp_path: Path) -> None:
    """The budget is nearly spent, so that its rest decides on the model, and the trial after it is rejected."""
    method = gnvpro.methods.GNvpro(solver=Greedy())
    expected = run(method, "least_squares")
    rejected = [r.iteration for r in expected.history if not r.accepted]
    assert rejected
    for stop in rejected:

        def interrupt(record: gnvpro.extend.Record, stop: int = stop) -> None:
            if record.iteration == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(method, "least_squares", checkpoint=tmp_path / f"{stop}", listeners=interrupt)
        assert numbers(run(method, "least_squares", checkpoint=tmp_path / f"{stop}", resume=True)) == numbers(expected)


@dataclass(frozen=True)
class Greedy(gnvpro.extend.ModelSolver):
    """Its models depend on the passes that are left, and promise too much, so that trials are rejected."""

    name: ClassVar[str] = "greedy"

    def model(self, point: Any, passes_left: float) -> Any:
        gradient = point.gradient()
        return cg_path(gradient, lambda v: 1e-3 * v / max(passes_left, 1.0), 1, 0.0)


def test_an_own_eliminator_says_which_losses_it_is_for_and_is_used() -> None:
    Shaken.calls.clear()
    run(gnvpro.methods.GNvpro(solver="krylov", eliminator=Shaken()), "multinomial")
    assert set(Shaken.calls) == {120}
    with pytest.raises(
        ValueError, match=r"^eliminator=Shaken\(.* cannot be used: it is for classes; use gnvpro\.heads\.Least"
    ):
        run(gnvpro.methods.GNvpro(eliminator=Shaken()), "least_squares")


def test_an_own_solver_may_refuse_a_problem_before_any_work() -> None:
    class Picky(SteihaugCG):
        def why_not(self, problem: gnvpro.Problem) -> str | None:
            return "it wants a thousand samples" if problem.inputs.shape[0] < 1000 else None

    with pytest.raises(ValueError, match="solver='steihaug-cg' cannot be used: it wants a thousand samples"):
        run(gnvpro.methods.GNvpro(solver=Picky()), "least_squares")


def test_the_documented_path_of_conjugate_gradients_is_steihaugs() -> None:
    """Inside it is the solution; outside a step of the radius's length that promises what its quadratic does."""
    torch.manual_seed(0)
    root = torch.randn(6, 6, dtype=F64)
    A, g = root @ root.T + torch.eye(6, dtype=F64), torch.randn(6, dtype=F64)
    path = cg_path(g, lambda v: A @ v, 6, 0.0)
    whole = path.solve_within(math.inf)
    torch.testing.assert_close(whole.d_x, -torch.linalg.solve(A, g))
    for fraction in (0.9, 0.3, 1e-3):
        step = path.solve_within(fraction * whole.norm)
        assert step.norm == pytest.approx(fraction * whole.norm)
        assert step.predicted_reduction == pytest.approx(-float(g @ step.d_x + 0.5 * step.d_x @ A @ step.d_x))
    torch.testing.assert_close(path.solve_within(1e-3 * whole.norm).d_x, -1e-3 * whole.norm * g / g.norm())


class Counts:
    """A listener of one's own."""

    def begin(self, history: gnvpro.extend.History, budget: float) -> None:
        self.before, self.heard = len(history), 0

    def record(self, record: gnvpro.extend.Record) -> None:
        self.heard += 1

    def end(self, status: gnvpro.Status) -> None:
        self.status = status


def test_an_own_listener_hears_a_run_and_its_resumption(tmp_path: Path) -> None:
    def interrupt(record: gnvpro.extend.Record) -> None:
        if record.iteration == 2:
            raise KeyboardInterrupt

    method, first, second = gnvpro.methods.GNvpro(solver=SteihaugCG()), Counts(), Counts()
    with pytest.raises(KeyboardInterrupt):
        run(method, "least_squares", checkpoint=tmp_path / "run", listeners=[first, interrupt])
    result = run(method, "least_squares", checkpoint=tmp_path / "run", resume=True, listeners=second)
    assert (first.heard, first.status) == (3, gnvpro.Status.RUNNING)
    assert (second.before, second.heard) == (3, len(result.history) - 3)
    assert second.status is result.status
