"""Heads of every kind: convolutions of one, two and three dimensions, linear maps of other classes, reshaped outputs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gnvpro
from gnvpro.network.find_head import find_head

G = torch.Generator().manual_seed(0)
N = 24


def random(*shape):
    return torch.randn(N, *shape, generator=G, dtype=torch.float64)


class Then(nn.Module):
    """A network, and a function of its output."""

    def __init__(self, net, then):
        super().__init__()
        self.net, self.then = net, then

    def forward(self, x):
        return self.then(self.net(x))


class Layer(nn.Module):
    """A linear map and an activation, as packages of sine networks write them."""

    def __init__(self, n_in, n_out, activation):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(n_out, n_in)), nn.Parameter(torch.zeros(n_out))
        self.activation = activation

    def forward(self, x):
        return self.activation(F.linear(x, self.weight, self.bias))


class Merging(nn.Module):
    """Its head sees the positions of all samples as one long axis."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)).flatten(0, 1)).view(len(x), -1, 2)


def body(n_out=2):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, n_out))


def convolutions(conv, n_out=2):
    return nn.Sequential(conv(3, 5, 3, padding=1), nn.Tanh(), conv(5, n_out, 1))


HEADS = {
    "nn.Conv1d": (lambda: convolutions(nn.Conv1d), random(3, 7), random(2, 7)),
    "nn.Conv2d": (lambda: convolutions(nn.Conv2d), random(3, 4, 5), random(2, 4, 5)),
    "nn.Conv3d": (lambda: convolutions(nn.Conv3d), random(3, 2, 3, 4), random(2, 2, 3, 4)),
    "a layer of one's own": (
        lambda: nn.Sequential(Layer(4, 6, torch.sin), Layer(6, 2, nn.Identity())),
        random(4),
        random(2),
    ),
    "identity": (lambda: nn.Sequential(*body(), nn.Identity()), random(4), random(2)),
    "dropout in evaluation": (lambda: nn.Sequential(*body(), nn.Dropout(0.5)).eval(), random(4), random(2)),
    "squeeze": (lambda: Then(body(1), lambda y: y.squeeze(-1)), random(4), random()),
    "squeeze of positions": (lambda: Then(body(1), lambda y: y.squeeze(-1)), random(5, 4), random(5)),
    "reshape": (lambda: Then(body(6), lambda y: y.reshape(-1, 3, 2)), random(4), random(3, 2)),
    "flatten": (lambda: nn.Sequential(body(2), nn.Flatten()), random(5, 4), random(10)),
    "flattened images": (lambda: nn.Sequential(convolutions(nn.Conv2d), nn.Flatten()), random(3, 4, 5), random(40)),
    "merged positions": (Merging, random(5, 4), random(5, 2)),
}


@pytest.mark.parametrize("way", [{}, {"solver": "krylov"}, {"method": "lbfgs-vpro"}, {"method": "adam-vpro"}], ids=str)
@pytest.mark.parametrize("name", HEADS)
def test_it_trains_and_the_record_is_of_the_models_outputs(name, way):
    torch.manual_seed(0)
    build, inputs, targets = HEADS[name]
    model = build().double()
    before = copy.deepcopy(model.state_dict())
    result = gnvpro.train(
        model, inputs, targets, loss="least_squares", work=40, head_penalty=1e-3, validation=(inputs, targets), **way
    )
    assert all(not torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with torch.no_grad():
        outputs = model.eval()(inputs)
    assert outputs.shape == targets.shape
    rows = targets.numel() if name.startswith("squeeze") else targets.numel() / {"reshape": 6}.get(name, 2)
    misfit = 0.5 * float((outputs - targets).square().sum()) / rows
    assert result.history[-1].misfit == pytest.approx(misfit, rel=1e-9)
    assert result.history[-1].validation_loss == pytest.approx(misfit, rel=1e-9)
    assert result.history[-1].loss < result.history[0].loss


@pytest.mark.parametrize("name", HEADS)
def test_the_reduced_loss_of_a_batch_is_that_of_the_problem(name):
    torch.manual_seed(0)
    build, inputs, targets = HEADS[name]
    model = build().double()
    problem = gnvpro.Problem(model, inputs, targets, loss="least_squares", head_penalty=1e-3)
    point = problem.reduced.at(problem.theta())
    criterion = gnvpro.ReducedLoss(model, loss="least_squares", head_penalty=1e-3)
    assert criterion.refit((inputs, targets)) == pytest.approx(
        point.misfit + 5e-4 * float(point.W.square().sum()), rel=1e-9
    )
    criterion(inputs, targets).backward()
    assert all(p.grad is not None and p.grad.any() for p in criterion.parameters())


@pytest.mark.parametrize(
    "labels", [random(5).gt(0).long(), random(5, 2).softmax(-1), random(5, 2).softmax(-1).flatten(1)]
)
def test_labels_of_positions_whose_outputs_are_flattened(labels):
    torch.manual_seed(0)
    model, inputs = nn.Sequential(body(2), nn.Flatten()).double(), random(5, 4)
    result = gnvpro.train(model, inputs, labels, loss="multinomial", work=10)
    target = labels if labels.ndim == 2 and labels.shape[1] == 5 else labels.view(N, 5, 2).transpose(1, 2)
    outputs = model(inputs).detach().view(N, 5, 2).transpose(1, 2)
    assert result.history[-1].misfit == pytest.approx(float(F.cross_entropy(outputs, target)), rel=1e-9)


REFUSED = {
    "transpose": (
        lambda: Then(body(), lambda y: y.transpose(1, 2)),
        random(5, 4),
        "changes the order.*drop the transpose",
    ),
    "sine at the end": (
        lambda: nn.Sequential(Layer(4, 6, torch.sin), Layer(6, 2, torch.sin)),
        random(4),
        "end the model in",
    ),
    "embedding": (lambda: nn.Sequential(nn.Embedding(4, 6)), torch.randint(0, 4, (N, 3)), "end the model in"),
    "nn.Conv1d, wide": (lambda: nn.Conv1d(3, 2, 3), random(3, 7), r"append nn.Conv1d\(2, 2, 1\)"),
    "nn.Conv3d, wide": (lambda: nn.Conv3d(3, 2, 2), random(3, 4, 4, 4), r"append nn.Conv3d\(2, 2, 1\)"),
    "nn.Conv1d, with a stride": (lambda: nn.Conv1d(3, 2, 1, stride=2), random(3, 7), r"append nn.Conv1d\(2, 2, 1\)"),
    "layer norm": (lambda: nn.Sequential(body(), nn.LayerNorm(2)), random(4), "LayerNorm.*end the model in"),
    "samples merged": (lambda: Then(body(), lambda y: y.flatten(0, 1)), random(5, 4), "one output per sample"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_head_is_refused(name):
    build, inputs, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        find_head(build().double(), inputs[:2], None)
