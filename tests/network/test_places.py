"""A model that shares, keeps twice or runs again what it has is differentiated in the right place, and stays itself."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import gnvpro
from gnvpro.network.find_head import find_head
from gnvpro.network.passes import PassPlan
from gnvpro.network.places import Places, intact
from gnvpro.network.separable import SeparableNetwork
from gnvpro.network.work import WorkMeter

G = torch.Generator().manual_seed(1)
X = torch.randn(40, 4, generator=G, dtype=torch.float64)
Y = torch.sin(X.sum(1, keepdim=True))
WAYS = {
    "auto": {},
    "dense": {"solver": "dense"},
    "krylov": {"solver": "krylov"},
    "lbfgs": {"method": "lbfgs-vpro"},
    "adam": {"method": gnvpro.methods.TorchOptimizer(torch.optim.Adam, lr=1e-3, batch_size=10)},
}


class Net(nn.Module):
    def __init__(self, body, n_features=4):
        super().__init__()
        self.body, self.head = body, nn.Linear(n_features, 1)

    def forward(self, x):
        return self.head(self.body(x))


class InDict(nn.Module):
    """Uses its parameters out of plain containers in which they are kept as well."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.zeros(4))
        self.kept = {"all": [self.weight, {"bias": self.bias}]}

    def forward(self, x):
        weight, more = self.kept["all"]
        return torch.tanh(x @ weight + more["bias"])


class Alias(nn.Module):
    """A shared parameter as an attribute outside every registry."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        vars(self)["plain"] = self.weight

    def forward(self, x):
        return torch.tanh(x @ self.plain)


class TiedAcross(nn.Module):
    """One weight in two layers, and a layer under two names."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.again = self.b

    def forward(self, x):
        return torch.tanh(self.again(torch.tanh(self.b(torch.tanh(self.a(x))))))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)


def twice():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(4, 1))


MODELS = {
    "a layer used twice": twice,
    "tied across modules": lambda: Net(TiedAcross()),
    "kept in a plain dictionary": lambda: Net(InDict()),
    "a plain attribute": lambda: Net(Alias()),
    "run again by a checkpoint": lambda: Net(Checkpointed()),
}


def made(name):
    torch.manual_seed(2)
    return MODELS[name]().double()


def what_it_is(model):
    """Everything about a model that a computation must not change, apart from numbers."""
    return [
        (
            module.training,
            [(key, id(p), p is None or (type(p), p.requires_grad)) for key, p in module._parameters.items()],
            [(key, id(b)) for key, b in module._buffers.items()],
            [list(getattr(module, hooks)) for hooks in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")],
        )
        for module in model.modules()
    ]


def linearized(network, theta):
    return network.linearize(theta, X, PassPlan(1000), WorkMeter(len(X)))


@pytest.mark.parametrize("name", MODELS)
def test_derivatives_at_another_theta_are_those_of_differences(name):
    network = SeparableNetwork.of(made(name), X)
    theta = network.theta() + 0.3 * torch.randn(network.n_theta, generator=G, dtype=torch.float64)
    d = torch.randn(network.n_theta, generator=G, dtype=torch.float64)
    at, h = linearized(network, theta), 1e-5
    plan = PassPlan(1000)
    difference = (network.features(theta + h * d, X, plan) - network.features(theta - h * d, X, plan)) / (2 * h)
    torch.testing.assert_close(at.jvp(d), difference, rtol=1e-7, atol=1e-8)
    c = torch.randn(at.features.shape, generator=G, dtype=torch.float64)
    assert float(at.vjp(c) @ d) == pytest.approx(float((c * difference).sum()), rel=1e-7)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_trains_and_the_model_stays_itself(name, way):
    model = made(name)
    before, values = what_it_is(model), copy.deepcopy(model.state_dict())
    result = gnvpro.train(model, X, Y, loss="least_squares", work=60, head_penalty=1e-3, **WAYS[way])
    assert what_it_is(model) == before
    assert all(not torch.equal(value, values[key]) for key, value in model.state_dict().items())
    assert result.history[-1].loss < result.history[0].loss


@pytest.mark.parametrize("name", MODELS)
def test_inspect_and_refusals_leave_the_model_as_it_is(name):
    model = made(name)
    before, values = what_it_is(model), copy.deepcopy(model.state_dict())
    gnvpro.inspect(model, X, Y, loss="least_squares")
    with pytest.raises(ValueError, match="leave the final activation"):
        gnvpro.train(nn.Sequential(model, nn.Softmax(1)), X, Y, loss="least_squares")
    with pytest.raises(ValueError, match="has 3 samples"):
        gnvpro.train(model, X, Y[:3], loss="least_squares")
    assert what_it_is(model) == before
    assert all(torch.equal(value, values[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_leaves_the_models_own_parameters(way):
    model = made("tied across modules")
    before, passes = what_it_is(model), []

    def interrupt(module, args, output):
        passes.append(module)
        if len(passes) == 12:
            raise KeyboardInterrupt

    handle = model.body.b.register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        gnvpro.train(model, X, Y, loss="least_squares", work=60, **WAYS[way])
    handle.remove()
    assert what_it_is(model) == before


def test_the_head_may_have_two_names_but_not_two_uses():
    model = made("tied across modules")
    model.classifier = model.head
    assert find_head(model, X[:2], None).head is model.head
    model.body.a.weight = model.body.b.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
    model.head = model.classifier = nn.Linear(4, 4, bias=False).double()
    model.body.a.weight = model.head.weight
    with pytest.raises(ValueError, match=r"'body\.a\.weight' is shared between the head 'head'"):
        find_head(model, X[:2], None)


def test_the_tensors_held_are_in_every_place_and_leave_it_on_an_interruption():
    model = made("kept in a plain dictionary")
    before, other = what_it_is(model), torch.zeros(4, 4, dtype=torch.float64)

    def interrupt():
        assert model.body.weight is other is model.body.kept["all"][0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Places.of(model).holding({"body.weight": other}):
        interrupt()
    assert what_it_is(model) == before
    assert model.body.kept["all"][0] is model.body.weight


def test_what_a_block_does_to_a_model_is_put_right():
    model = made("a layer used twice")
    before = what_it_is(model)

    def spoil():
        model[0]._parameters["weight"] = torch.zeros(4, 4)
        model[4].weight.requires_grad_(False)
        model.eval()
        model[1].register_forward_hook(lambda *call: None)
        raise RuntimeError

    with pytest.raises(RuntimeError), intact(model):
        spoil()
    assert what_it_is(model) == before
