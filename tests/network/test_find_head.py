"""The head is found by running the model; one that cannot be eliminated raises an error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from cases import SkipNet, mlp, pixel_net
from gnvpro.network.find_head import find_head

X = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))


class Wrapped(nn.Module):
    """Applies `after` to what a small network returns."""

    def __init__(self, after, before=lambda x: x):
        super().__init__()
        self.body, self.fc = nn.Sequential(nn.Linear(2, 4), nn.Tanh()), nn.Linear(4, 3)
        self.after, self.before = after, before

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.fc(self.before(self.body(x))))


class HeadFirst(nn.Module):
    """Registers the head first and a layer that never runs last."""

    def __init__(self):
        super().__init__()
        self.classifier, self.hidden, self.unused = nn.Linear(4, 3), nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.relu(self.hidden(x)))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.fc(x)))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.fc = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.fc.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.first(x)))


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Keyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(input=x)


class Merging(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.reshape(-1, 1))


def frozen_head():
    model = mlp(3)
    model[-1].bias.requires_grad_(False)
    return model


def normed(norm):
    model = mlp(3)
    norm(model[-1])
    return model


def test_registration_order_does_not_matter():
    model = HeadFirst()
    assert find_head(model, X, None).head is model.classifier
    assert find_head(SkipNet(3), X, None).head_name == "head"


def test_name_of_a_nested_head_is_found_and_may_be_given():
    model = nn.Sequential(nn.Linear(2, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 3)))
    assert find_head(model, X, None).head_name == "1.1"
    assert find_head(model, X, "1.1").head is model[1][1]


def test_identity_and_dropout_after_the_head_in_evaluation_mode_do_not_hide_it():
    model = nn.Sequential(nn.Linear(2, 3), nn.Identity(), nn.Dropout(0.5)).eval()
    assert find_head(model, X, None).head is model[0]


def test_a_bare_linear_layer_is_all_head():
    model = nn.Linear(2, 3)
    location = find_head(model, X, None)
    assert (location.head, location.head_name, location.output_shape) == (model, "", (3,))


def test_one_by_one_convolution_is_a_head():
    model = pixel_net(3)
    location = find_head(model, torch.randn(2, 2, 5, 4), None)
    assert location.head is model[-1]
    assert location.output_shape == (3, 5, 4)


def test_whole_feature_extractor_is_found():
    assert find_head(Wrapped(lambda y: y), X, None).body_name == "body"
    assert find_head(Wrapped(lambda y: y, lambda z: 2 * z), X, None).body_name is None
    assert find_head(Wrapped(lambda y: y, lambda z: z.mul_(2)), X, None).body_name is None


def test_looking_for_the_head_leaves_no_hook_and_no_gradient_behind():
    model = mlp(3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    find_head(model, X, None)
    assert all(not m._forward_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


REFUSED = {
    "softmax at the end": (lambda: nn.Sequential(mlp(3), nn.Softmax(1)), None, r"nn\.Softmax.*multinomial.*logits"),
    "function at the end": (lambda: Wrapped(lambda y: y.sigmoid()), None, r"outside of any submodule.*nn\.Linear"),
    "in-place activation after the head": (lambda: Wrapped(lambda y: y.relu_()), None, r"not the output of a linear"),
    "in-place module after the head": (
        lambda: nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True)),
        None,
        r"nn\.ReLU.*nn\.Linear",
    ),
    "residual after the head": (lambda: Wrapped(lambda y: y + 1), None, r"end the model in nn\.Linear"),
    "head used twice": (Twice, None, r"head 'fc' runs more than once"),
    "shared weight": (Tied, None, r"'first.weight' is shared.*head 'fc'"),
    "frozen head": (frozen_head, None, r"head '4'.*requires_grad=False.*bias"),
    "weight norm": (
        lambda: normed(lambda l: torch.nn.utils.parametrizations.weight_norm(l)),
        None,
        r"head '4'.*parametrised weight",
    ),
    "spectral norm": (
        lambda: normed(lambda l: torch.nn.utils.parametrizations.spectral_norm(l)),
        None,
        r"head '4'.*parametrised weight",
    ),
    "pruned": (lambda: normed(lambda l: prune.identity(l, "weight")), None, r"head '4'"),
    "linear layer with its own forward": (lambda: Scaled(2, 3), None, r"does more than multiply"),
    "hook that changes the head": (
        lambda: normed(lambda l: l.register_forward_hook(lambda m, a, out: out + 1)),
        None,
        r"does more than multiply",
    ),
    "head called by keyword": (Keyword, None, r"head 'fc'.*positional"),
    "samples merged": (Merging, None, r"one output per sample.*\(6, 2\)"),
    "missing name": (HeadFirst, "clasifier", r"head='clasifier'.*did you mean 'classifier'"),
    "name of something else": (lambda: mlp(3), "1", r"head='1' is nn\.Tanh"),
    "name of another linear layer": (lambda: mlp(3), "0", r"head='0' does not compute the model's output.*'4'"),
    "name of a layer that never runs": (HeadFirst, "unused", r"head='unused' does not compute"),
    "wide convolution": (lambda: nn.Sequential(nn.Unflatten(1, (1, 1, 2)), nn.Conv2d(1, 3, (1, 2))), None, "nn.Conv2d"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_head_that_cannot_be_eliminated_is_refused_with_the_remedy(why):
    build, name, message = REFUSED[why]
    model = build().eval()
    with pytest.raises(ValueError, match=message):
        find_head(model, X, name)


def test_a_name_that_is_no_string_is_refused():
    with pytest.raises(TypeError, match="head must be the name"):
        find_head(mlp(3), X, 3)  # type: ignore[arg-type]


def test_a_model_that_returns_no_tensor_is_refused():
    with pytest.raises(TypeError, match="model must return one tensor, got tuple"):
        find_head(Wrapped(lambda y: (y, y)), X, None)


def test_a_model_that_cannot_run_on_the_inputs_is_refused_with_the_models_own_error():
    with pytest.raises(ValueError, match=r"inputs of shape \(3, 5\)"):
        find_head(mlp(3), torch.randn(3, 5), None)
