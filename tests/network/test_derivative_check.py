"""Wrong derivatives end in an error that names the parameters; right ones never do, whatever the network."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gnvpro
from cases import CASES, made
from gnvpro.network.derivative_check import check_derivatives
from gnvpro.network.evaluation import evaluating
from gnvpro.network.separable import SeparableNetwork

G = torch.Generator().manual_seed(3)
X = torch.randn(30, 6, generator=G, dtype=torch.float64)
Y = torch.randn(30, 1, generator=G, dtype=torch.float64)


class Net(nn.Module):
    """Two layers with something between them, and a head."""

    def __init__(self, between, width=8):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.between = between

    def forward(self, x):
        return self.head(torch.tanh(self.second(self.between(self, torch.tanh(self.first(x))))))


class TooLong(torch.autograd.Function):
    """x, with a derivative of 1.1."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return 1.1 * g


class Closure(Net):
    """A module that hides a parameter from the registry."""

    def __init__(self):
        super().__init__(None)
        hidden = (self.second.weight,)
        self.between = lambda net, z: z @ hidden[0].T


class Adjoint(torch.autograd.Function):
    """A layer whose backward pass runs it again, as solvers with an adjoint do, and cannot be differentiated."""

    @staticmethod
    def forward(ctx, layer, z, *params):
        ctx.layer = layer
        ctx.save_for_backward(z, *params)
        with torch.no_grad():
            return torch.tanh(layer(z))

    @staticmethod
    def backward(ctx, g):
        z, *params = ctx.saved_tensors
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            y = torch.tanh(ctx.layer(z))
        grads = torch.autograd.grad(y, (z, *params), g, allow_unused=True)
        return None, *(each.detach() for each in grads)


def by_adjoint(net, z):
    return Adjoint.apply(net.second, z, *net.second.parameters())


def without_gradient(net, z):
    with torch.no_grad():
        return torch.tanh(net.second(z)) + z


def again(net, z):
    return torch.utils.checkpoint.checkpoint(net.second, z, use_reentrant=True)


def train(model, x=X, y=Y, **kw):
    return gnvpro.train(model, x, y, loss="least_squares", work=20, **kw)


def inspect(model):
    return gnvpro.inspect(model, X, Y, loss="least_squares")


def reduced(model):
    criterion = gnvpro.ReducedLoss(model, loss="least_squares")
    criterion(X, Y).backward()


WRONG = {
    "a custom backward": (
        lambda: Net(lambda net, z: TooLong.apply(z)),
        r"off by \d+%.*along 'first\.weight', 'first\.bias';",
    ),
    "a part without gradient": (lambda: Net(without_gradient), r"along 'first\.weight', 'first\.bias'.*torch\.no_grad"),
    "detached": (lambda: Net(lambda net, z: z + net.second(z).detach()), r"along 'first\.weight'.*detach"),
}


@pytest.mark.parametrize("use", [train, inspect, reduced])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", WRONG)
def test_wrong_derivatives_end_in_an_error_that_names_the_parameters(name, dtype, use):
    torch.manual_seed(0)
    build, message = WRONG[name]
    model = build().to(dtype)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"does not give the derivative of its forward pass.*" + message):
        use(model) if use is not reduced else reduced_in(model, dtype)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("use", [train, inspect])
def test_a_parameter_where_no_other_can_take_its_place_is_refused(use):
    model = Closure().double()
    before, identities = copy.deepcopy(model.state_dict()), [id(p) for p in model.parameters()]
    with pytest.raises(ValueError, match=r"^the model uses its parameter 'second\.weight' in a place.*closure"):
        use(model)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert [id(p) for p in model.parameters()] == identities


def test_parameters_that_are_not_used_are_no_reason_to_refuse():
    model = Net(lambda net, z: z).double()
    model.unused = nn.Linear(3, 3).double()
    train(model)


def reduced_in(model, dtype):
    criterion = gnvpro.ReducedLoss(model, loss="least_squares")
    criterion(X.to(dtype), Y.to(dtype)).backward()


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x).detach()))


@pytest.mark.parametrize("use", [train, inspect, reduced])
def test_a_model_of_which_nothing_would_be_trained_is_refused(use):
    with pytest.raises(
        ValueError, match=r"none of the model's trainable parameters.*moves its features.*requires_grad_"
    ):
        use(Detached().double())
    frozen = Detached().double()
    frozen.body.requires_grad_(False)
    assert train(frozen).status.name == "HEAD_ONLY"


@pytest.mark.parametrize("method", ["lbfgs-vpro", "adam-vpro"])
def test_an_adjoint_that_runs_the_model_again_trains_by_gradients(method):
    torch.manual_seed(0)
    model = Net(by_adjoint).double()
    before = copy.deepcopy(model.state_dict())
    problem = gnvpro.Problem(model, X, Y, loss="least_squares")
    theta = problem.theta() + 0.3 * torch.randn(len(problem.theta()), generator=G, dtype=torch.float64)
    d, h = torch.randn(len(theta), generator=G, dtype=torch.float64), 1e-5
    difference = (problem.reduced.at(theta + h * d).value - problem.reduced.at(theta - h * d).value) / (2 * h)
    assert float(problem.reduced.at(theta).gradient() @ d) == pytest.approx(difference, rel=1e-5)
    train(model, method=method)
    assert all(not torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_methods_that_need_products_refuse_a_backward_pass_that_has_no_derivative():
    with pytest.raises(ValueError, match=r"products with the Jacobian are wrong.*use method='lbfgs-vpro' or 'adam'"):
        train(Net(by_adjoint).double())


def test_a_reentrant_checkpoint_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"cannot differentiate.*use_reentrant=False$"):
        train(Net(again).double())
    reduced(Net(again).double())


# -- no false alarms


def scaled(model, factor):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return model


class Routed(nn.Module):
    """Each sample goes the way of its largest score."""

    def __init__(self):
        super().__init__()
        self.score, self.ways = nn.Linear(6, 3), nn.Parameter(torch.randn(3, 6, 8))
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        weight, way = self.score(x).softmax(1).max(1)
        return self.head(torch.tanh(weight[:, None] * torch.einsum("ni,nio->no", x, self.ways[way])))


class Half(nn.Module):
    """A part in half precision inside of a float32 model."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 8)), nn.Linear(8, 1)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = self.body(x)
        return self.head(z.to(x.dtype))


def relu_net(depth, width=32):
    layers = [layer for i in range(depth) for layer in (nn.Linear(width if i else 6, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 1))


def convolutions():
    blocks = [nn.Sequential(nn.Conv2d(8 if i else 1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU()) for i in range(4)]
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), *blocks, nn.Flatten(), nn.Linear(48, 1))


def dead():
    model = relu_net(2)
    with torch.no_grad():
        model[0].bias.fill_(-1e3)
    return model


RIGHT = {
    "ReLU": lambda: relu_net(3),
    "deep ReLU": lambda: relu_net(20),
    "convolutions": convolutions,
    "saturated": lambda: scaled(Net(lambda net, z: z), 1e3),
    "tiny weights": lambda: scaled(Net(lambda net, z: z), 1e-3),
    "zero weights": lambda: scaled(Net(lambda net, z: z), 0.0),
    "dead": dead,
    "sine of high frequency": lambda: Net(lambda net, z: torch.sin(30 * z)),
    "a largest entry": lambda: Net(lambda net, z: z * z.amax(1, keepdim=True)),
    "routed": Routed,
    "half precision inside": Half,
    "layer norm of features that are almost the same": lambda: Net(lambda net, z: F.layer_norm(1 + 1e-3 * z, (8,))),
    "roots": lambda: Net(lambda net, z: z.abs().sqrt()),
    "logarithms of parameters": lambda: Net(lambda net, z: z * (net.second.bias.abs() + 1e-6).log()),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", RIGHT)
def test_right_derivatives_raise_no_alarm(name, dtype):
    for seed in range(5):
        torch.manual_seed(seed)
        model = RIGHT[name]().to(dtype)
        SeparableNetwork.of(model, X.to(dtype))


@pytest.mark.parametrize("name", CASES)
def test_cases_of_other_tests_raise_no_alarm_and_need_no_second_look(name):
    m = made(name)
    if m.network.n_theta:
        with evaluating(m.model):
            assert check_derivatives(m.network, m.inputs[:2]).sure


class Counting(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.runs = model, []

    def forward(self, x):
        self.runs.append(len(x))
        return self.model(x)


def test_a_model_runs_three_times_on_a_few_samples_before_its_first_pass():
    model = Counting(Net(lambda net, z: z).double())
    train(model, solver="krylov")
    assert model.runs[:4] == [2, 2, 1, len(X)]
