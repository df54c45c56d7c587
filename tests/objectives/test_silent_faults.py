"""Faults that were once silent: each model or data set here trains correctly, or raises a clear error."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gnvpro

torch.manual_seed(0)
X = torch.randn(60, 4, dtype=torch.float64)
Y = torch.sin(X[:, :2] * X[:, 1:3])
METHODS = ("gnvpro", "gauss-newton", "lbfgs-vpro", "adam")


class Around(nn.Module):
    """Two layers around an operation of a test's own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(4, 8, dtype=torch.float64), nn.Linear(8, 2, dtype=torch.float64)

    def forward(self, x):
        return self.head(self.between(torch.tanh(self.body(x))))

    def between(self, z):
        return z


def misfit_of(model, inputs=X, targets=Y):
    with torch.no_grad():
        return 0.5 * float((model(inputs.clone()).double() - targets.double()).square().sum(1).mean())


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same_state(model, before):
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


# -- models


class ComplexNet(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.a = nn.Parameter(torch.randn(4, 5, dtype=torch.complex128))
        self.head = nn.Linear(5, 2, dtype=torch.float64)

    def forward(self, x):
        return self.head((x.to(torch.complex128) @ self.a).abs())


@pytest.mark.parametrize("way", [*({"method": m} for m in METHODS), {"solver": "dense"}, {"solver": "krylov"}], ids=str)
def test_complex_parameters_train_as_pairs_of_real_ones(way):
    model = ComplexNet()
    before, own = state(model), model.a
    result = gnvpro.train(model, X, Y, loss="least_squares", work=30, **way)
    assert model.a is own
    assert model.a.dtype == torch.complex128
    moved = model.a.detach() - before["a"]
    assert moved.real.abs().min() > 0
    assert moved.imag.abs().min() > 0
    assert result.history[-1].loss < result.history[0].loss
    assert result.history[-1].misfit == pytest.approx(misfit_of(model, X), rel=1e-9)


def test_derivatives_in_complex_parameters_are_those_of_differences():
    problem = gnvpro.Problem(ComplexNet(), X, Y, loss="least_squares")
    theta, generator = problem.theta(), torch.Generator().manual_seed(0)
    d, h = torch.randn(len(theta), generator=generator, dtype=torch.float64), 1e-6
    point, jacobian = problem.reduced.at(theta), problem.reduced.at(theta).jacobian()
    plus, minus = problem.reduced.at(theta + h * d), problem.reduced.at(theta - h * d)
    assert float(point.gradient() @ d) == pytest.approx((plus.value - minus.value) / (2 * h), rel=1e-6)
    features = (plus.linearization.features - minus.linearization.features) / (2 * h)
    assert torch.allclose(point.linearization.jvp(d), features, atol=1e-7)
    assert jacobian.mv(d).shape == Y.shape


def test_a_complex_head_is_refused():
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2, dtype=torch.complex128)

        def forward(self, x):
            return self.head(x.to(torch.complex128))

    with pytest.raises(TypeError, match=r"head 'head' has a weight of torch.complex128.*view_as_real"):
        gnvpro.train(Complex(), X, Y, loss="least_squares")


def test_frozen_complex_parameters_are_constants():
    model = ComplexNet()
    model.a.requires_grad_(False)
    before = model.a.clone()
    assert gnvpro.train(model, X, Y, loss="least_squares").status.name == "HEAD_ONLY"
    assert torch.equal(model.a, before)


class Dropping(Around):
    def between(self, z):
        return F.dropout(z, 0.01)


class Noisy(Around):
    def between(self, z):
        return z + 1e-9 * torch.randn_like(z)


class Counting(Around):
    calls = 0

    def between(self, z):
        self.calls += 1
        return z * (1 + 0.1 * self.calls)


class Averaging(Around):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8, dtype=torch.float64))

    def between(self, z):
        self.mean.mul_(0.9).add_(0.1 * z.detach().mean(0))
        return z - self.mean


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("build", "why"),
    [(Dropping, "draws random numbers"), (Noisy, "draws random numbers"), (Counting, "state"), (Averaging, "state")],
)
def test_random_and_stateful_forward_passes_are_refused_and_leave_no_trace(build, why, method):
    model = build()
    before, generator = state(model), torch.get_rng_state()
    with pytest.raises(ValueError, match=f"^the model's forward pass .*{why}.*nn.Dropout"):
        gnvpro.train(model, X, Y, loss="least_squares", method=method)
    assert_same_state(model, before)
    assert torch.equal(torch.get_rng_state(), generator)
    assert getattr(model, "calls", 0) == 0


class Remembering(Around):
    """Buffers, one assigned and one written in place, and an attribute, none of which the output depends on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("assigned", torch.zeros(8, dtype=torch.float64))
        self.register_buffer("written", torch.zeros((), dtype=torch.float64))
        self.last = None

    def between(self, z):
        self.assigned = 0.9 * self.assigned + 0.1 * z.mean(0)
        self.written += 1
        self.last = z
        return z


@pytest.mark.parametrize(
    "kw", [{}, {"solver": "krylov"}, {"solver": "hybrid"}, *({"method": m} for m in METHODS[1:])], ids=str
)
def test_buffers_and_attributes_that_forward_sets_are_left_as_they_were(kw):
    model = Remembering()
    buffers = (model.assigned, model.written)
    result = gnvpro.train(model, X, Y, loss="least_squares", work=60, **kw)
    assert (model.assigned, model.written) == buffers
    assert not model.assigned.any()
    assert not model.written
    assert not model.assigned.requires_grad
    assert model.last is None
    assert result.history[-1].loss < result.history[0].loss
    copy.deepcopy(model)


class Halving(Around):
    def forward(self, x):
        return super().forward(x.mul_(0.5))


class InPlace(Around):
    def forward(self, x):
        return super().forward(F.relu_(x))


@pytest.mark.parametrize("kw", [{}, {"solver": "krylov"}, *({"method": m} for m in METHODS[1:])], ids=str)
@pytest.mark.parametrize(
    "build",
    [
        Halving,
        InPlace,
        lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 8), nn.Softmax(1), nn.Linear(8, 2)).double(),
    ],
)
def test_inputs_are_never_written_to_and_the_record_is_true(build, kw):
    positive_first = X.clone()
    positive_first[:2] = positive_first[:2].abs()  # a ReLU changes nothing in the few samples that are tried first
    inputs = positive_first.clone()
    model = build()
    result = gnvpro.train(model, inputs, Y, loss="least_squares", work=60, validation=(inputs, Y), **kw)
    assert torch.equal(inputs, positive_first)
    assert result.history[-1].misfit == pytest.approx(misfit_of(model, inputs), rel=1e-9)
    assert result.history[-1].validation_loss == pytest.approx(misfit_of(model, inputs), rel=1e-9)


def test_a_forward_pass_that_writes_to_a_parameter_is_refused():
    model = nn.Sequential(nn.Embedding(10, 8, max_norm=0.1), nn.Flatten(), nn.Linear(24, 2)).double()
    before = state(model)
    with pytest.raises(ValueError, match=r"writes to its parameter '0.weight' \(max_norm"):
        gnvpro.train(model, torch.randint(0, 10, (60, 3)), Y, loss="least_squares")
    assert_same_state(model, before)


class AcrossSamples(Around):
    def between(self, z):
        return z - z.mean(0)


@pytest.mark.parametrize(
    "build",
    [
        AcrossSamples,
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 2)).double(),
    ],
)
def test_features_that_depend_on_other_samples_are_refused(build):
    with pytest.raises(ValueError, match=r"depend on the other samples.*batch_first=True.*BatchNorm"):
        gnvpro.train(build(), X, Y, loss="least_squares")


@pytest.mark.parametrize("method", METHODS)
def test_frozen_features_leave_only_the_head_to_be_trained(method):
    model = Around()
    model.body.requires_grad_(False)
    assert gnvpro.train(model, X, Y, loss="least_squares", method=method).status.name == "HEAD_ONLY"


# -- the record is of the stored model


def small(dtype):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).to(dtype)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n_features", [8, 40])
def test_the_record_is_of_the_stored_model_without_a_penalty_on_the_head(n_features, seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, n_features), nn.Tanh(), nn.Linear(n_features, 2))
    inputs, targets = X.float(), Y.float()
    method = gnvpro.methods.GNvpro(batches=gnvpro.methods.Batches(2))
    result = gnvpro.train(model, inputs, targets, loss="least_squares", head_penalty=0.0, work=20, method=method)
    assert result.history[-1].misfit == pytest.approx(misfit_of(model, inputs, targets), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", METHODS[:3])
def test_the_record_is_of_the_stored_head_in_every_dtype(dtype, method):
    """Features of the stored theta times the stored head; a smaller difference leaves no record."""
    model = small(dtype)
    inputs, targets = X.to(dtype), Y.to(dtype)
    result = gnvpro.train(model, inputs, targets, loss="least_squares", work=30, method=method)
    problem = gnvpro.Problem(model, inputs, targets, loss="least_squares")
    stored = problem.full.at(problem.full.join(problem.theta(), problem.W())).misfit
    accepted = [record for record in result.history if record.accepted]
    assert accepted[-1].misfit == pytest.approx(stored, rel=1e-12 if accepted[-1].note else 1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_a_head_that_its_dtype_cannot_hold_is_refused_and_the_model_stays(method):
    model = small(torch.float32)
    before = state(model)
    with pytest.raises(ValueError, match=r"head is too large for torch.float32.*scale the targets"):
        gnvpro.train(model, X.float(), 3e38 * Y.float(), loss="least_squares", method=method)
    assert_same_state(model, before)


@pytest.mark.parametrize("method", METHODS)
def test_targets_that_overflow_are_blamed_themselves(method):
    model = small(torch.float64)
    before = state(model)
    with pytest.raises(ValueError, match=r"^targets reach 1.0e\+300.*scale them"):
        gnvpro.train(model, X, 1e300 * Y / Y.abs().max(), loss="least_squares", method=method)
    assert_same_state(model, before)


@pytest.mark.parametrize("kw", [{}, {"solver": "krylov"}, *({"method": m} for m in METHODS[1:])], ids=str)
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_inputs_of_any_size_give_a_finite_model_or_a_sentence(activation, kw):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 2)).double()
    try:
        gnvpro.train(model, 1e300 * X, Y, loss="least_squares", work=40, **kw)
        refused = ""
    except ValueError as error:
        refused = str(error)
    assert ("scale the inputs" in refused) == (activation is nn.ReLU), refused
    assert all(torch.isfinite(p).all() for p in model.parameters())
