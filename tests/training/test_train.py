"""The contract of gnvpro.train."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gnvpro
from cases import CASES, F64, Poisson, PseudoHuber, SkipNet, made, mlp
from gnvpro import Status
from gnvpro.methods.names import as_method

GENERATOR = torch.Generator().manual_seed(0)
X = 2 * torch.rand(60, 2, dtype=F64, generator=GENERATOR) - 1
REAL = torch.stack([torch.sin(3 * X[:, 0]) * X[:, 1], X[:, 0] ** 2], 1)
LABELS = (X[:, 0] ** 2 + X[:, 1] > 0.3).long() + (X[:, 1] > 0.5).long()
BINARY = (X.square().sum(1) < 0.5).long()
TRAIN = {
    "least_squares": (2, REAL),
    "logistic": (1, BINARY),
    "multinomial": (3, LABELS),
}
each_loss = pytest.mark.parametrize("loss", TRAIN)
each_method = pytest.mark.parametrize("method", ["gnvpro", "gauss-newton"])


def fresh(n_outputs, seed=1, build=mlp):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build(n_outputs).double()


def train(loss, model=None, **options):
    n_outputs, targets = TRAIN[loss]
    model = fresh(n_outputs) if model is None else model
    options.setdefault("work", 100)
    if options.get("method", "gnvpro") == "gnvpro":
        options.setdefault("solver", "krylov")
    return gnvpro.train(model, X.to(next(model.parameters()).dtype), targets, loss=loss, **options)


def torch_loss(loss, outputs):
    _, targets = TRAIN[loss]
    if loss == "least_squares":
        return 0.5 * (outputs - targets).square().sum(1).mean()
    if loss == "logistic":
        return F.binary_cross_entropy_with_logits(outputs[:, 0], targets.to(F64))
    return F.cross_entropy(outputs, targets)


def phi(loss, model, theta_penalty, head_penalty):
    """Phi of the given model, by torch alone."""
    head = model[-1]
    with torch.no_grad():
        on_head = sum(float(p.square().sum()) for p in head.parameters())
        on_theta = sum(float(p.square().sum()) for n, p in model.named_parameters() if not n.startswith("4."))
        return float(torch_loss(loss, model(X))) + 0.5 * theta_penalty * on_theta + 0.5 * head_penalty * on_head


# -- what training does to the model


@each_method
@each_loss
def test_training_reduces_phi_in_place_and_every_record_is_the_models_own(loss, method):
    model = fresh(TRAIN[loss][0])
    keys = list(model.state_dict())
    seen = []

    def check(record):
        # The model holds the last accepted theta and W: its own loss is the record's.
        assert record.loss == pytest.approx(phi(loss, model, 1e-4, 1e-3), rel=1e-11)
        assert record.misfit == pytest.approx(float(torch_loss(loss, model(X).detach())), rel=1e-11)
        seen.append(record)

    result = train(loss, model, method=method, theta_penalty=1e-4, head_penalty=1e-3, listeners=check)
    assert result.model is model
    assert list(model.state_dict()) == keys
    assert seen == list(result.history)
    assert len(seen) >= 4
    losses = result.history.column("loss")
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]
    assert all(p.requires_grad and p.grad is None and p.is_leaf for p in model.parameters())


def test_a_rejected_trial_leaves_loss_and_model_as_they_were():
    model = fresh(2)
    gnvpro.train(model, X, REAL, loss="least_squares", work=0)
    before, rejected = {k: v.clone() for k, v in model.state_dict().items()}, 0

    def check(record):
        nonlocal rejected
        now = {k: v.clone() for k, v in model.state_dict().items()}
        if not record.accepted:
            rejected += 1
            assert all(torch.equal(now[k], before[k]) for k in now)
        before.update(now)

    result = train("least_squares", model, work=600, listeners=check)
    assert rejected > 0
    for a, b in zip(result.history, result.history[1:], strict=False):
        if not b.accepted:
            assert (a.loss, a.misfit, a.gradient_norm) == (b.loss, b.misfit, b.gradient_norm)


def test_frozen_parameters_stay_bit_for_bit():
    model = fresh(2)
    model[0].weight.requires_grad_(False)
    model[2].bias.requires_grad_(False)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    train("least_squares", model)
    changed = [k for k, v in model.state_dict().items() if not torch.equal(v, before[k])]
    assert changed == ["0.bias", "2.weight", "4.weight", "4.bias"]


def test_a_model_of_frozen_features_has_its_head_eliminated():
    model = fresh(2)
    for p in model[:-1].parameters():
        p.requires_grad_(False)
    result = train("least_squares", model)
    assert result.status is Status.HEAD_ONLY
    assert len(result.history) == 1


def test_an_exception_from_the_callback_propagates_and_leaves_the_model_there():
    model = fresh(2).train()
    model[1].eval()
    modes = [m.training for m in model.modules()]
    records = []

    def stop(record):
        records.append(record)
        if len(records) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train("least_squares", model, theta_penalty=1e-4, head_penalty=1e-3, listeners=stop)
    assert records[-1].loss == pytest.approx(phi("least_squares", model, 1e-4, 1e-3), rel=1e-11)
    assert [m.training for m in model.modules()] == modes
    assert all(not m._forward_hooks for m in model.modules())


@each_method
@each_loss
def test_the_same_seed_gives_the_same_numbers_to_the_last_bit(loss, method):
    runs = []
    for _ in range(2):
        model = fresh(TRAIN[loss][0])
        history = train(loss, model, method=replace(as_method(method, None), seed=3)).history
        kept = [{k: v for k, v in r.to_dict().items() if "seconds" not in k} for r in history]
        runs.append((kept, [p.detach().clone() for p in model.parameters()]))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(a, b) for a, b in zip(runs[0][1], runs[1][1], strict=True))


def test_the_seed_is_that_of_the_method_and_given_once():
    runs = [
        train("least_squares", work=6, **way).model.state_dict()
        for way in (
            {"method": "adam-vpro", "seed": 3},
            {"method": gnvpro.methods.AdamVPro(seed=3)},
            {"method": "adam-vpro"},
        )
    ]
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])
    assert not all(torch.equal(runs[0][name], runs[2][name]) for name in runs[0])
    with pytest.raises(ValueError, match="give it in one place"):
        train("least_squares", work=6, method=gnvpro.methods.AdamVPro(seed=3), seed=4)
    with pytest.raises(ValueError, match="seed must be at least 0"):
        train("least_squares", work=6, seed=-1)


def test_training_leaves_the_global_random_state_alone():
    before = torch.random.get_rng_state()
    train("multinomial")
    assert torch.equal(before, torch.random.get_rng_state())


# -- work, iterations, status


@each_method
def test_no_work_eliminates_the_head_once_and_nothing_else(method):
    model = fresh(2)
    before = copy.deepcopy(model)
    result = train("least_squares", model, work=0, method=method, head_penalty=0.0)
    assert result.status is Status.WORK_SPENT
    assert len(result.history) == 1
    start = result.history[0]
    assert (start.iteration, start.accepted, start.radius, start.ratio, start.rank) == (0, True, None, None, None)
    assert all(torch.equal(a, b) for a, b in zip(model[:-1].parameters(), before[:-1].parameters(), strict=True))
    Z = torch.cat([before[:-1](X).detach(), torch.ones(60, 1, dtype=F64)], 1)
    W = torch.linalg.lstsq(Z, REAL).solution.T
    torch.testing.assert_close(model[-1].weight.detach(), W[:, :-1])
    torch.testing.assert_close(model[-1].bias.detach(), W[:, -1])


@each_method
@each_loss
def test_work_is_counted_from_first_principles(loss, method):
    # Start: forward and gradient. A new factorisation: two passes a dimension. Each trial one; accepted, its gradient.
    solver = gnvpro.solvers.Krylov(max_rank=7, rtol=1e-1)
    history = train(loss, work=150, method=method, solver=solver).history
    expected, fresh_model = 2.0, True
    assert history[0].work == expected
    for record in history[1:]:
        assert 1 <= record.rank <= 7
        expected += (2 * record.rank if fresh_model else 0) + 1 + (1 if record.accepted else 0)
        assert record.work == expected
        fresh_model = record.accepted
    assert len(history) > 4


@pytest.mark.parametrize("budget", [1, 2, 5, 6, 7, 10, 13.5, 20, 41, 100])
@each_method
def test_work_never_exceeds_its_budget_and_little_is_left_over(budget, method):
    result = train("multinomial", work=budget, method=method)
    assert result.work == result.history[-1].work <= budget
    if result.status is Status.WORK_SPENT:
        assert budget - result.work < 4


@pytest.mark.parametrize("cap", [0, 1, 3])
def test_iterations_are_capped(cap):
    result = train("least_squares", iterations=cap)
    assert result.status is Status.ITERATIONS_SPENT
    assert len(result.history) == cap + 1


def test_each_status_is_a_sentence():
    for status in Status:
        assert str(status) == status.value
        assert status.value[0].isupper()
        assert status.value.endswith(".")
        assert " " in status.value
    assert str(Status.WORK_SPENT) in repr(train("least_squares", work=10))


def test_a_zero_gradient_ends_training_as_converged():
    # Zero targets: the head is zero, and with no penalty on theta so is the gradient.
    model = fresh(2)
    before = [p.detach().clone() for p in model[:-1].parameters()]
    result = gnvpro.train(model, X, torch.zeros(60, 2), loss="least_squares", theta_penalty=0.0, head_penalty=1e-3)
    assert result.status is Status.CONVERGED
    assert result.history[0].gradient_norm == 0
    assert all(torch.equal(a, b.detach()) for a, b in zip(before, model[:-1].parameters(), strict=True))


def test_training_on_data_a_network_made_finds_them_again_and_says_why_it_stopped():
    # No residual: Gauss-Newton is Newton's method here, down to rounding.
    with torch.random.fork_rng():
        torch.manual_seed(0)
        teacher = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
        targets = teacher(X).detach()
        model = copy.deepcopy(teacher)
        with torch.no_grad():
            model[0].weight += 0.1 * torch.randn(3, 2, dtype=F64)
    result = gnvpro.train(model, X, targets, loss="least_squares", theta_penalty=0.0, head_penalty=0.0, work=3000)
    assert result.status in (Status.CONVERGED, Status.STEP_TOO_SMALL)
    assert result.history[-1].gradient_norm <= 1e-12
    torch.testing.assert_close(model(X), targets, rtol=0, atol=1e-10)


class Cliff(nn.Module):
    """Features that blow up at a small distance from their start."""

    def __init__(self, explosion):
        super().__init__()
        self.first, self.fc, self.explosion = nn.Linear(2, 4), nn.Linear(4, 2), explosion
        self.register_buffer("home", self.first.weight.detach().clone())

    def forward(self, x):
        far = (self.first.weight - self.home).norm() > 0.05
        return self.fc(torch.tanh(self.first(x)) * torch.where(far, x.new_tensor(self.explosion), 1.0))


@pytest.mark.parametrize("explosion", [math.nan, math.inf, 1e200])
@pytest.mark.parametrize("loss", [gnvpro.losses.HalfSquaredError(), PseudoHuber()], ids=["squared", "pseudo-huber"])
@each_method
def test_a_step_that_is_not_finite_is_rejected_and_training_goes_on(explosion, loss, method):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Cliff(explosion).double()
    result = gnvpro.train(model, X, REAL, loss=loss, work=200, method=method)
    assert not all(result.history.column("accepted"))
    assert any(result.history.column("accepted")[1:])
    assert math.isfinite(result.history[-1].loss)
    assert result.history[-1].loss < result.history[0].loss
    assert all(torch.isfinite(p).all() for p in model.parameters())


# -- what the switches mean


def test_a_penalty_on_theta_with_an_operator_is_that_of_the_operator():
    doubled = gnvpro.Tikhonov(1e-3, lambda m, p: 2.0 * gnvpro.Tikhonov(1.0).bind(m, p).operator)
    runs = [train("multinomial", theta_penalty=penalty).history.column("loss") for penalty in (doubled, 4e-3)]
    assert runs[0] == pytest.approx(runs[1], rel=1e-9)  # |2 theta|^2 = 4 |theta|^2


@pytest.mark.parametrize("penalised", ["theta_penalty", "head_penalty"])
def test_a_larger_penalty_leaves_what_it_is_on_smaller(penalised):
    norms = []
    for alpha in (1e-4, 1e-1):
        model = fresh(3)
        train("multinomial", model, **{penalised: alpha})
        part = model[-1] if penalised == "head_penalty" else model[:-1]
        norms.append(float(torch.cat([p.detach().reshape(-1) for p in part.parameters()]).norm()))
    assert norms[1] < 0.7 * norms[0]


def test_a_krylov_space_ends_at_its_rank_or_its_tolerance():
    assert set(train("multinomial", solver=gnvpro.solvers.Krylov(max_rank=2, rtol=0.0)).history.column("rank")[1:]) == {
        2
    }
    loose, tight = (
        train("multinomial", solver=gnvpro.solvers.Krylov(30, rtol)).history[1].rank for rtol in (0.5, 1e-3)
    )
    assert loose < tight


def test_a_head_without_bias_is_another_model_and_stays_without():
    model = fresh(2, build=lambda n: mlp(n, bias=False))
    result = train("least_squares", model)
    assert model[-1].bias is None
    assert result.history[-1].loss != pytest.approx(train("least_squares").history[-1].loss, rel=1e-3)


def test_progress_says_something_and_its_absence_nothing(capsys):
    result = train("least_squares", work=60, listeners="progress")
    said = capsys.readouterr().err
    assert "loss" in said
    assert str(result.status) in said
    train("least_squares", work=60)
    assert capsys.readouterr() == ("", "")


# -- losses, targets and networks


def test_integer_one_hot_and_soft_labels_that_say_the_same_train_the_same():
    hot = F.one_hot(LABELS, 3)
    losses = {
        gnvpro.train(fresh(3), X, targets, loss="multinomial", work=60).history[-1].loss
        for targets in (LABELS, LABELS.to(torch.int32), hot, hot.to(F64), hot.float())
    }
    assert len(losses) == 1
    softened = gnvpro.train(fresh(3), X, 0.9 * hot + 0.1 / 3, loss="multinomial", work=60).history[-1]
    assert softened.loss > 2 * losses.pop()
    assert softened.accuracy > 0.9


def test_a_name_and_the_object_are_the_same_loss():
    named = train("multinomial").history[-1].loss
    given = (
        gnvpro.train(fresh(3), X, LABELS, loss=gnvpro.losses.Multinomial(), work=100, solver="krylov").history[-1].loss
    )
    assert named == given


@pytest.mark.parametrize("loss", [Poisson(), PseudoHuber()], ids=["poisson", "pseudo-huber"])
def test_a_users_own_loss_trains(loss):
    targets = REAL.exp() if isinstance(loss, Poisson) else REAL
    model = fresh(2)
    result = gnvpro.train(model, X, targets, loss=loss, work=300)
    assert result.history[-1].loss < result.history[0].loss
    own = float(loss.value(model(X).detach(), targets).mean())
    assert result.history[-1].misfit == pytest.approx(own, rel=1e-10)
    assert result.history[-1].accuracy is None
    assert (model(X).exp() if isinstance(loss, Poisson) else model(X)).sub(targets).abs().mean() < 0.1


@pytest.mark.parametrize("name", CASES)
def test_every_case_trains_and_keeps_its_dtype(name):
    m = made(name)
    model = copy.deepcopy(m.model)
    case = m.case
    result = gnvpro.train(
        model,
        m.inputs,
        m.targets,
        loss=case.loss,
        theta_penalty=gnvpro.Tikhonov(case.theta_penalty, case.operator),
        head_penalty=case.head_penalty,
        work=60,
    )
    assert result.history[0].loss == pytest.approx(m.point.value, rel=1e-8 if case.dtype == F64 else 1e-4)
    assert result.history[-1].loss < result.history[0].loss
    assert {p.dtype for p in model.parameters()} == {case.dtype}
    assert float(m.mean_loss(model(m.inputs).detach().to(F64))) == pytest.approx(
        result.history[-1].misfit, rel=1e-9 if case.dtype == F64 else 1e-4
    )


def test_a_float32_network_gets_as_far_as_a_float64_one():
    double, single = fresh(2), fresh(2).float()
    a = train("least_squares", double, work=200, head_penalty=1e-6, theta_penalty=1e-6)
    b = train("least_squares", single, work=200, head_penalty=1e-6, theta_penalty=1e-6)
    assert b.history[-1].loss == pytest.approx(a.history[-1].loss, rel=0.5)
    assert single(X.float()).dtype == torch.float32


def test_the_head_may_be_named_and_is_found_the_same():
    found = train("multinomial").history[-1].loss
    named = train("multinomial", method=gnvpro.methods.GNvpro(solver="krylov", head="4")).history[-1].loss
    assert found == named


def test_a_model_that_registers_its_head_first_is_trained_the_right_way_round():
    model = fresh(2, build=SkipNet)
    before = copy.deepcopy(model.state_dict())
    result = gnvpro.train(model, X, REAL, loss="least_squares", work=100)
    assert result.history[-1].loss < 0.5 * result.history[0].loss
    assert all(not torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert 0.5 * float((model(X) - REAL).detach().square().sum(1).mean()) == pytest.approx(
        result.history[-1].misfit, rel=1e-10
    )


def test_training_works_where_gradients_are_switched_off():
    on = gnvpro.train(fresh(2, build=SkipNet), X, REAL, loss="least_squares", work=40).history[-1].loss
    with torch.no_grad():
        off = gnvpro.train(fresh(2, build=SkipNet), X, REAL, loss="least_squares", work=40).history[-1].loss
    assert on == off


# -- validation and accuracy


def test_validation_is_evaluated_with_the_accepted_model_and_costs_no_work():
    model = fresh(3)
    held_out, labels = X[:20] * 0.9, LABELS[:20]
    seen = []

    def check(record):
        outputs = model(held_out).detach()
        assert record.validation_loss == pytest.approx(float(F.cross_entropy(outputs, labels)), rel=1e-10)
        assert record.validation_accuracy == pytest.approx(float((outputs.argmax(1) == labels).to(F64).mean()))
        assert record.accuracy == pytest.approx(float((model(X).argmax(1) == LABELS).to(F64).mean()))
        seen.append(record)

    with_validation = train("multinomial", model, validation=(held_out, labels), listeners=check)
    without = train("multinomial")
    assert len(seen) > 2
    assert with_validation.history.column("loss") == without.history.column("loss")
    assert with_validation.work == without.work
    assert without.history[-1].validation_loss is None


def test_regression_has_no_accuracy():
    record = train("least_squares", validation=(X, REAL)).history[-1]
    assert (record.accuracy, record.validation_accuracy) == (None, None)
    assert record.validation_loss == pytest.approx(record.misfit, rel=1e-12)


def test_gradient_norm_is_autograds_and_seconds_add_up():
    model = fresh(3)
    result = train("multinomial", model, theta_penalty=1e-3, head_penalty=1e-3)
    body = [p for n, p in model.named_parameters() if not n.startswith("4.")]
    value = F.cross_entropy(model(X), LABELS) + 0.5e-3 * sum(p.square().sum() for p in body)
    norm = torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, body)]).norm()
    assert result.history[-1].gradient_norm == pytest.approx(float(norm), rel=1e-7)
    seconds = result.history.column("seconds")
    assert seconds == sorted(seconds)
    assert all(0 < r.inner_seconds < r.seconds for r in result.history)


@pytest.mark.parametrize("eliminator", [gnvpro.heads.Newton(), gnvpro.heads.NewtonKrylov()])
def test_least_squares_may_be_eliminated_by_newtons_method_too(eliminator):
    exact = train("least_squares", work=60)
    newton = train("least_squares", work=60, method=gnvpro.methods.GNvpro(solver="krylov", eliminator=eliminator))
    assert newton.history[0].loss == pytest.approx(exact.history[0].loss, rel=1e-9)
    assert newton.history[-1].loss < newton.history[0].loss
    auto = train("least_squares", work=60, method=gnvpro.methods.GNvpro(eliminator=eliminator))
    assert auto.history[1].solver == "hybrid"
    with pytest.raises(ValueError, match=r"solver='dense' cannot be used: .*LeastSquares"):
        train("least_squares", work=60, method=gnvpro.methods.GNvpro(eliminator=eliminator), solver="dense")
