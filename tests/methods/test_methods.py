"""Every method trains the same problem, counts work the same way and reaches what can be reached."""

import copy
import itertools
import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import Adam, RMSprop

import gnvpro
from checks import relative
from gnvpro.methods.cache import Cache
from gnvpro.methods.protocol import Budget, Start
from gnvpro.methods.stochastic import NESTEROV, seeded_permutation
from gnvpro.objectives.reduced import ReducedObjective
from gnvpro.problem.loss import HalfSquaredError, Multinomial, one_hot

KRYLOV = gnvpro.solvers.Krylov(max_rank=4)
METHODS = {
    "gnvpro": gnvpro.methods.GNvpro(solver=KRYLOV),
    "gauss-newton": gnvpro.methods.GaussNewton(solver=KRYLOV),
    "lbfgs-vpro": gnvpro.methods.LBFGSvpro(),
    "adam-vpro": gnvpro.methods.AdamVPro(),
    "adam": gnvpro.methods.TorchOptimizer(Adam),
    "nesterov": gnvpro.methods.TorchOptimizer(NESTEROV),
}


def teacher_problem(samples=40):
    """Targets made by a network of the same shape, so that the smallest loss is zero."""
    torch.manual_seed(3)
    inputs = 3 * torch.randn(samples, 2, dtype=torch.float64)
    teacher = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    torch.manual_seed(8)
    student = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    return student, inputs, teacher(inputs).detach()


def train(model, inputs, targets, **arguments):
    defaults = {
        "loss": "least_squares",
        "theta_penalty": 0.0,
        "head_penalty": 0.0,
        "method": gnvpro.methods.GNvpro(solver="krylov"),
    }
    return gnvpro.train(model, inputs, targets, **{**defaults, **arguments})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "work", "reduction"),
    [
        (gnvpro.methods.GNvpro(solver="krylov"), 2000, 1e-12),
        (gnvpro.methods.GaussNewton(), 2000, 1e-12),
        (gnvpro.methods.LBFGSvpro(), 1000, 1e-8),
        (gnvpro.methods.AdamVPro(batch_size=10), 800, 0.1),
        (gnvpro.methods.TorchOptimizer(Adam, lr=0.02, batch_size=10), 800, 0.1),
        (gnvpro.methods.TorchOptimizer(NESTEROV, lr=0.05, batch_size=10), 800, 0.1),
    ],
    ids=list(METHODS),
)
def test_each_method_fits_what_a_teacher_of_its_shape_made(method, work, reduction):
    """The smallest loss is zero; what is near it depends on how fast a method converges."""
    model, inputs, targets = teacher_problem()
    start = train(model, inputs, targets, work=0).history[0].loss
    result = train(model, inputs, targets, method=method, work=work)
    assert result.history[-1].loss < reduction * start
    assert 0.5 * (model(inputs) - targets).square().sum(1).mean().item() == pytest.approx(result.history[-1].misfit)


def test_linear_features_need_no_step_at_all():
    """Linear features that span the inputs' space span it for every theta: the first elimination is the global minimum."""
    torch.manual_seed(0)
    inputs = torch.randn(50, 3, dtype=torch.float64)
    targets = torch.randn(50, 2, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    result = train(model, inputs, targets, work=200)
    design = torch.cat([inputs, torch.ones(50, 1, dtype=torch.float64)], 1)
    residual = targets - design @ torch.linalg.lstsq(design, targets).solution
    smallest = 0.5 * residual.square().sum(1).mean().item()
    assert result.history[0].loss == pytest.approx(smallest, rel=1e-12)
    assert result.history[0].gradient_norm < 1e-12
    assert result.history[-1].loss == pytest.approx(smallest, rel=1e-12)
    full = train(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double(), inputs, targets, method="adam", work=20)
    assert full.history[0].loss == pytest.approx(smallest, rel=1e-12)  # it starts from the eliminated head


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("budget", [0, 1, 7, 31])
def test_the_budget_is_kept(method, budget):
    model, inputs, targets = teacher_problem()
    result = train(model, inputs, targets, method=METHODS[method], work=budget)
    assert result.work <= max(budget, 1)
    assert result.status is gnvpro.Status.WORK_SPENT


def test_trust_region_methods_count_two_passes_a_krylov_vector_and_one_a_trial_and_gradient():
    for kind in (gnvpro.methods.GNvpro, gnvpro.methods.GaussNewton):
        model, inputs, targets = teacher_problem()
        method = kind(solver=gnvpro.solvers.Krylov(max_rank=3, rtol=0.0))
        history = train(model, inputs, targets, method=method, work=150).history
        assert history[0].work == 2  # the forward pass of the start, and its gradient
        kept = False  # whether the next trial finds a factorisation
        for before, after in itertools.pairwise(history):
            cost = 1 + (0 if kept else 2 * after.rank) + (1 if after.accepted else 0)
            assert after.work - before.work == cost
            kept = not after.accepted


def test_stochastic_methods_count_two_passes_an_epoch_and_one_for_the_first_elimination():
    for factory in (Adam, NESTEROV):
        model, inputs, targets = teacher_problem()
        work = train(
            model, inputs, targets, method=gnvpro.methods.TorchOptimizer(factory, batch_size=7), work=9
        ).history.column("work")
        assert work == [1, 3, 5, 7, 9]


def test_lbfgs_counts_two_passes_an_evaluation(monkeypatch):
    model, inputs, targets = teacher_problem()
    evaluations = []
    start = ReducedObjective.start
    monkeypatch.setattr(ReducedObjective, "start", lambda *args: (evaluations.append(1), start(*args))[1])
    result = train(model, inputs, targets, method="lbfgs-vpro", work=40)
    assert result.work == 2 * len(evaluations)


def test_a_line_search_is_cut_short_by_the_budget_and_keeps_its_best_point():
    model, inputs, targets = teacher_problem()
    start = copy.deepcopy(model)
    whole = train(model, inputs, targets, method="lbfgs-vpro", work=400).history
    cut = next(i for i in range(1, len(whole)) if whole[i].work - whole[i - 1].work > 2)  # a search of several points
    result = train(start, inputs, targets, method="lbfgs-vpro", work=whole[cut].work - 2)
    assert result.work == whole[cut].work - 2
    assert result.status is gnvpro.Status.WORK_SPENT
    assert result.history[cut - 1].loss == whole[cut - 1].loss
    assert result.history[-1].loss <= result.history[cut - 1].loss


@pytest.mark.parametrize("factory", [Adam, NESTEROV, RMSprop], ids=["adam", "nesterov", "rmsprop"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
def test_stochastic_methods_agree_with_a_plain_torch_loop(factory, dtype, loss):
    """Compare with rounding only: derivatives add up in another order than autograd, and float32 models train in float64."""
    torch.manual_seed(0)
    inputs = torch.randn(30, 2, dtype=dtype)
    targets = torch.randn(30, 3, dtype=dtype) if loss == "least_squares" else torch.randint(0, 3, (30,))
    model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)
    settings = gnvpro.methods.TorchOptimizer(factory, batch_size=8, lr=0.01)
    gnvpro.train(model, inputs, targets, loss=loss, method=settings, work=0)
    plain = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)
    plain.load_state_dict(model.state_dict())
    plain.double()
    nesterov = partial(torch.optim.SGD, momentum=0.9, nesterov=True)
    optimizer = (nesterov if factory is NESTEROV else factory)(plain.parameters(), lr=0.01)
    problem = gnvpro.Problem(model, inputs, targets, loss=loss, theta_penalty=0.0, head_penalty=0.0)
    budget, cache = Budget(problem.meter, math.inf), Cache(problem.meter)
    state = settings.begin(problem, Start(problem.theta(), problem.W(), seed=5), budget, cache)
    pointwise = HalfSquaredError() if loss == "least_squares" else Multinomial()
    rows = (targets if loss == "least_squares" else one_hot(targets, 3)).double()
    for epoch in range(3):
        state, _ = settings.step(problem, state, budget, cache)
        for batch in seeded_permutation(30, 5, epoch).split(8):
            optimizer.zero_grad()
            values = pointwise.value(plain(inputs[batch].double()), rows[batch])
            weights = torch.full((len(batch),), 1 / 30, dtype=torch.float64)
            (values @ (weights / weights.sum())).backward()
            optimizer.step()
    problem.store(state.iterate.theta, state.iterate.W)
    for (key, value), other in zip(model.state_dict().items(), plain.state_dict().values(), strict=True):
        assert relative(value, other) <= 50 * torch.finfo(dtype).eps, key


def test_penalties_enter_the_stochastic_methods_as_they_enter_the_objective():
    """With one batch of all samples and plain gradient descent's first step, the move is the gradient of Phi."""
    model, inputs, targets = teacher_problem()
    arguments = {"theta_penalty": 0.3, "head_penalty": 0.2}
    train(model, inputs, targets, work=0, **arguments)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    reference = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    reference.load_state_dict(before)
    phi = 0.5 * (reference(inputs) - targets).square().sum(1).mean()
    for name, parameter in reference.named_parameters():
        phi = phi + 0.5 * (0.2 if name.startswith("2.") else 0.3) * parameter.square().sum()
    phi.backward()
    train(
        model,
        inputs,
        targets,
        method=gnvpro.methods.TorchOptimizer(NESTEROV, lr=1e-3, batch_size=40),
        work=3,
        **arguments,
    )
    for name, parameter in reference.named_parameters():
        moved = model.state_dict()[name] - before[name]
        # Nesterov's first step is (1 + momentum) times the gradient
        assert torch.allclose(moved, -1e-3 * 1.9 * parameter.grad, rtol=1e-9, atol=1e-12), name


def test_a_learning_rate_that_diverges_keeps_the_last_finite_model():
    model, inputs, targets = teacher_problem()
    result = train(model, inputs, 1e3 * targets, method=gnvpro.methods.TorchOptimizer(NESTEROV, lr=1e300), work=50)
    assert result.status is gnvpro.Status.NOT_FINITE
    assert torch.isfinite(model(inputs)).all()


def test_another_seed_gives_another_order_and_the_same_seed_the_same_numbers():
    losses = []
    for seed in (0, 0, 1):
        model, inputs, targets = teacher_problem()
        losses.append(
            train(
                model, inputs, targets, method=gnvpro.methods.TorchOptimizer(Adam, seed=seed), work=21
            ).history.column("loss")
        )
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]
