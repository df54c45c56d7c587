"""Models in float32 and less are trained by a copy in float64, wherever that computes the same and is affordable."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gnvpro
from gnvpro.network.precision import WorkingModel
from gnvpro.policy import Policy, PrecisionPolicy

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
USUAL = PrecisionPolicy()
generator = torch.Generator().manual_seed(3)
X = 2 * torch.rand(200, 3, generator=generator) - 1
Y = torch.sin(2 * X.sum(1, keepdim=True))


def plain(dtype: torch.dtype = F32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1)).to(dtype)


def misfit_of(model: nn.Module) -> float:
    with torch.no_grad():
        return 0.5 * float((model(X).double() - Y.double()).square().mean())


def working(model: nn.Module, inputs: Tensor = X, samples: float = 200, memory: float = 1e9) -> WorkingModel:
    return WorkingModel.of(model, inputs[:2], samples, memory, USUAL)


@pytest.mark.parametrize("dtype", [F16, BF16, F32])
def test_passes_are_in_float64_and_the_model_stays_as_it_is(dtype):
    model = plain(dtype)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = working(model, X.to(dtype))
    assert found.is_copy
    assert "float64" in found.reason
    assert {p.dtype for p in found.module.parameters()} == {F64}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.dtype == dtype for value in model.state_dict().values())
    assert model.training
    assert all(module.training for module in model.modules())


def test_a_double_model_is_its_own_working_model():
    model = plain(F64)
    assert working(model, X.double()).module is model


class Around(nn.Module):
    """A layer, something of the test's own, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.head = nn.Linear(3, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(torch.tanh(self.body(x))))

    def between(self, z: Tensor) -> Tensor:
        return z


class ComputesInSingle(Around):
    """Cast to float32, which many normalisation layers do."""

    def between(self, z):
        return (z.float() / z.float().norm(dim=1, keepdim=True)).type_as(z)


class WantsSingle(Around):
    def between(self, z):
        if z.dtype != F32:
            raise TypeError("float32 only")
        return z


class ComputesSomethingElse(Around):
    def between(self, z):
        return z if z.dtype == F32 else 2 * z


class CannotBeCopied(Around):
    def __deepcopy__(self, memo):
        raise TypeError("one of its kind")


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (ComputesInSingle, "computes in float32"),
        (WantsSingle, "does not run (float32 only)"),
        (ComputesSomethingElse, "returns other outputs"),
        (CannotBeCopied, "does not run (one of its kind)"),
    ],
)
def test_a_model_that_a_copy_cannot_stand_for_runs_in_its_own_precision(kind, why):
    model = kind()
    found = working(model)
    assert found.module is model
    assert why in found.reason
    assert found.reason.startswith("passes in float32, as the model")
    result = gnvpro.train(model, X, Y, loss="least_squares", iterations=5, solver="dense")
    assert why in result.setup["precision"]
    assert result.history[-1].loss < result.history[0].loss


class WithTensors(Around):
    """Tensors that are neither parameters nor buffers, a dtype, and a complex buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.several = torch.full((8, 8), 0.1), [torch.eye(8)]
        self.dtype = F32
        self.register_buffer("phase", torch.ones(8, dtype=torch.complex64))

    def between(self, z):
        z = nn.functional.linear(z, self.scale + self.several[0])
        return (z.to(self.dtype) * self.phase).real


class OldWeightNorm(Around):
    """Weights computed in a hook before each pass, and kept as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        with pytest.warns(FutureWarning):
            self.body = torch.nn.utils.weight_norm(nn.Linear(3, 8))


class Shared(Around):
    """One layer under two names, and one parameter in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.again, self.second.weight = self.first, self.first.weight

    def between(self, z):
        return torch.tanh(self.again(torch.tanh(self.second(torch.tanh(self.first(z))))))


class Recurrent(Around):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(8, 8, batch_first=True)

    def between(self, z):
        return self.gru(torch.stack([z, 2 * z], 1))[0][:, -1]


class Positions(Around):
    """An encoding that forward makes in float32."""

    def between(self, z):
        return z + torch.sin(torch.arange(8, dtype=F32))


@pytest.mark.parametrize("kind", [WithTensors, OldWeightNorm, Shared, Recurrent, Positions])
def test_a_copy_in_float64_computes_what_the_model_computes(kind):
    model = kind()
    found = working(model)
    assert found.is_copy, found.reason
    assert torch.allclose(found.module(X.double()).float(), model(X), rtol=1e-4, atol=1e-6)
    assert [name for name, _ in found.module.named_parameters()] == [name for name, _ in model.named_parameters()]
    result = gnvpro.train(model, X, Y, loss="least_squares", iterations=8, solver="hybrid")
    assert misfit_of(model) == pytest.approx(result.history[-1].misfit, rel=1e-4)


def test_embeddings_take_integers():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Tanh(), nn.Linear(8, 1))
    tokens = torch.randint(10, (60, 2), generator=generator)
    targets = tokens.sum(1, keepdim=True).float()
    found = working(model, tokens)
    assert found.is_copy
    gnvpro.train(model, tokens, targets, loss="least_squares", iterations=30, solver="dense")
    with torch.no_grad():
        assert float((model(tokens) - targets).abs().max()) < 0.5


def test_expensive_passes_stay_in_the_precision_of_the_model():
    assert not working(plain(), samples=1e9).is_copy
    assert "operations" in working(plain(), samples=math.inf).reason
    assert not working(plain(), memory=1000.0).is_copy
    half = working(plain(BF16), X.to(BF16), samples=1e9)
    assert {p.dtype for p in half.module.parameters()} == {F32}
    image = torch.rand(2, 1, 12, 12)
    convolution = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(800, 1))
    products = nn.Sequential(nn.Flatten(), nn.Linear(144, 100), nn.Linear(100, 1))  # as many operations
    assert working(products, image, 3e4).is_copy
    assert not working(convolution, image, 3e4).is_copy


def test_the_model_is_shown_and_followed():
    model = plain()
    problem = gnvpro.Problem(model, X, Y, loss="least_squares")
    theta = problem.theta() + 1e-9
    point = problem.reduced.at(theta)
    problem.store(point.theta, point.W)
    assert torch.equal(problem.theta(), theta)  # not what float32 has left of it
    assert torch.equal(model[0].weight, theta[:36].reshape(12, 3).float())
    with torch.no_grad():
        model[0].weight.fill_(0.25)
    assert torch.equal(problem.theta()[:36], torch.full((36,), 0.25, dtype=F64))


METHODS: dict[str, dict[str, Any]] = {
    "dense": {"solver": "dense", "iterations": 40},
    "krylov": {"solver": "krylov", "iterations": 25},
    "hybrid": {"solver": "hybrid", "iterations": 80},
    "gauss-newton": {"method": "gauss-newton", "iterations": 40},
    "lbfgs-vpro": {"method": "lbfgs-vpro", "iterations": 80},
    "adam-vpro": {"method": "adam-vpro", "work": 40},
    "adam": {"method": "adam", "work": 40},
}


def error_of(model: nn.Module) -> float:
    """The root of the mean square, computed in float32."""
    with torch.no_grad():
        return float((copy.deepcopy(model).float()(X) - Y).square().mean().sqrt())


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_a_single_model_as_it_trains_its_double_twin(name):
    single, double = plain(), plain(F64)
    result = gnvpro.train(single, X, Y, loss="least_squares", **METHODS[name])
    gnvpro.train(double, X.double(), Y.double(), loss="least_squares", **METHODS[name])
    assert error_of(single) <= 2 * error_of(double) + 1e-6
    assert {p.dtype for p in single.parameters()} == {F32}
    assert result.model is single


def test_listeners_metrics_and_checkpoints_see_the_model_of_the_user(tmp_path):
    model, seen = plain(), []

    def look(record):
        seen.append(misfit_of(model) == pytest.approx(record.misfit, rel=1e-3, abs=1e-10))

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    path = tmp_path / "run"
    result = gnvpro.train(
        model, X, Y, loss="least_squares", iterations=6, solver="dense", listeners=look, checkpoint=path
    )
    assert len(seen) == 7
    assert all(seen)
    assert optimizer.param_groups[0]["params"][0] is model[0].weight
    longer, whole = plain(), plain()
    settings = {"loss": "least_squares", "iterations": 9, "solver": "dense"}
    resumed = gnvpro.train(longer, X, Y, checkpoint=path, resume=True, **settings)
    straight = gnvpro.train(whole, X, Y, **settings)
    assert resumed.history[-1].loss == straight.history[-1].loss
    assert all(torch.equal(a, b) for a, b in zip(longer.parameters(), whole.parameters(), strict=True))
    assert result.history[-1].iteration == 6


def test_an_interrupted_run_leaves_the_last_model():
    model, losses = plain(), []

    def stop(record):
        losses.append(record.misfit)
        if record.iteration == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gnvpro.train(model, X, Y, loss="least_squares", solver="dense", listeners=stop)
    assert misfit_of(model) == pytest.approx(losses[-1], rel=1e-3)


def test_inputs_are_those_that_the_model_can_see():
    """Digits that a float32 model cannot see in use must not be trained on."""
    model = plain()
    problem = gnvpro.Problem(model, X.double() * (1 + 1e-9), Y, loss="least_squares")
    same = gnvpro.Problem(model, X, Y, loss="least_squares")
    assert problem.reduced.at(problem.theta()).value == same.reduced.at(same.theta()).value


def test_a_head_that_overflows_where_it_is_stored_is_no_head():
    model = plain(F16)
    with torch.no_grad():
        model[0].weight.mul_(1e-3), model[0].bias.zero_()
    problem = gnvpro.Problem(model, X, 1e6 * Y, loss="least_squares", head_penalty=1e-16)
    assert math.isnan(problem.reduced.at(problem.theta()).value)


def test_the_policy_decides():
    policy = replace(Policy(), precision=PrecisionPolicy(double_flops=0.0))
    problem = gnvpro.Problem(plain(), X, Y, loss="least_squares", policy=policy)
    assert problem.network.dtype is F32
