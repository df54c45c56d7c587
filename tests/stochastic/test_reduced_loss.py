"""The reduced loss of a batch in a loop of one's own: its gradient, its head, what a loop may do, and bad input."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

import gnvpro
from cases import PseudoHuber
from gnvpro.heads import BatchHead
from gnvpro.methods import RotatedAdam
from stochastic_cases import exact, network, samples, train_a_little


def flat(criterion: gnvpro.ReducedLoss) -> Tensor:
    return torch.cat([p.grad.reshape(-1) for p in criterion.parameters() if p.grad is not None])


@pytest.mark.parametrize("loss", ["least_squares", "multinomial", PseudoHuber()])
@pytest.mark.parametrize("proximal", [0.0, 0.3])
def test_gradient_is_that_of_the_batch_reduced_loss_by_finite_differences(loss, proximal) -> None:
    x, y = samples(40, "multinomial" if loss == "multinomial" else "least_squares")
    model = network()
    settings = dataclasses.replace(exact(loss), proximal=proximal)

    def value() -> Tensor:  # a new criterion, so that each call begins from the model's own head
        return gnvpro.ReducedLoss(copy.deepcopy(model), loss=loss, head_penalty=1e-2, batch_head=settings)(
            x, y
        ).detach()

    criterion = gnvpro.ReducedLoss(model, loss=loss, head_penalty=1e-2, batch_head=settings)
    own = copy.deepcopy(model.state_dict())
    criterion(x, y).backward()
    model.load_state_dict(own)
    for parameter in list(criterion.parameters())[:2]:
        assert parameter.grad is not None
        for i in range(0, parameter.numel(), 5):
            entry, h = parameter.data.view(-1), 1e-5
            entry[i] += h
            above = float(value())
            entry[i] -= 2 * h
            below = float(value())
            entry[i] += h
            assert (above - below) / (2 * h) == pytest.approx(float(parameter.grad.view(-1)[i]), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
def test_all_samples_as_one_batch_give_the_reduced_objective(loss: str) -> None:
    x, y = samples(60, loss)
    model = network()
    problem = gnvpro.Problem(copy.deepcopy(model), x, y, loss=loss, theta_penalty=0.0, head_penalty=1e-3)
    point = problem.reduced.at(problem.theta())
    criterion = gnvpro.ReducedLoss(model, loss=loss, head_penalty=1e-3, batch_head=exact(loss))
    value = criterion(x, y)
    value.backward()
    assert float(value.detach()) == pytest.approx(point.value, rel=1e-10)
    torch.testing.assert_close(flat(criterion), point.gradient(), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
def test_refit_writes_the_eliminated_head_whatever_the_batches(loss: str) -> None:
    x, y = samples(60, loss)
    model = network()
    problem = gnvpro.Problem(copy.deepcopy(model), x, y, loss=loss, theta_penalty=0.0, head_penalty=1e-3)
    point = problem.reduced.at(problem.theta())
    criterion = gnvpro.ReducedLoss(model, loss=loss, head_penalty=1e-3)
    loader = list(zip(x.split(17), y.split(17), strict=True))
    value = criterion.refit(loader)
    assert value == pytest.approx(point.value, rel=1e-10)
    head = model[-1]
    assert isinstance(head, nn.Linear)
    torch.testing.assert_close(torch.cat([head.weight, head.bias[:, None]], 1).detach(), point.W, rtol=0, atol=1e-8)
    assert criterion.refit((x, y)) == pytest.approx(value, rel=1e-12)


def test_a_plain_loop_learns() -> None:
    x, y = samples(600, "multinomial")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=50)
    model = network()
    criterion = gnvpro.ReducedLoss(model, loss="multinomial", head_penalty=1e-4)
    before = criterion.refit(loader)
    train_a_little(criterion, torch.optim.AdamW(criterion.parameters(), lr=1e-2), loader, 12)
    running = float((model(x).argmax(1) == y).double().mean())
    after = criterion.refit(loader)
    assert after < 0.6 * before
    assert float((model(x).argmax(1) == y).double().mean()) >= running - 0.02 > 0.75


def test_theta_only_is_given_to_the_optimiser() -> None:
    model = network()
    criterion = gnvpro.ReducedLoss(model, loss="multinomial")
    assert [name for name, _ in criterion.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_an_optimiser_that_also_holds_the_head_leaves_it_alone() -> None:
    x, y = samples(200, "multinomial")
    loader = list(zip(x.split(50), y.split(50), strict=True))
    results = []
    for everything in (False, True):
        model = network()
        criterion = gnvpro.ReducedLoss(model, loss="multinomial")
        parameters = model.parameters() if everything else criterion.parameters()
        train_a_little(criterion, torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1), loader)
        results.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert torch.equal(*results)


def test_dropout_and_batch_norm_train_as_usual_and_keep_their_mode() -> None:
    x, y = samples(200, "multinomial")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)).double()
    criterion = gnvpro.ReducedLoss(model, loss="multinomial")
    train_a_little(
        criterion, torch.optim.SGD(criterion.parameters(), lr=0.1), list(zip(x.split(50), y.split(50), strict=True))
    )
    norm = model[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.num_batches_tracked is not None
    assert int(norm.num_batches_tracked) == 12  # the look at the first batch was in evaluation mode
    before = norm.running_mean.clone()
    criterion.refit((x, y))
    assert torch.equal(norm.running_mean, before)
    assert all(module.training for module in model.modules())


def test_state_dict_makes_a_loop_resumable_to_the_last_bit() -> None:
    x, y = samples(400, "multinomial")
    loader = list(zip(x.split(50), y.split(50), strict=True))

    def parts() -> tuple[nn.Module, gnvpro.ReducedLoss, torch.optim.Optimizer]:
        model = network()
        criterion = gnvpro.ReducedLoss(model, loss="multinomial")
        return model, criterion, RotatedAdam(criterion.parameters(), lr=1e-2)

    model, criterion, optimizer = parts()
    train_a_little(criterion, optimizer, loader, 2)
    saved = copy.deepcopy([model.state_dict(), criterion.state_dict(), optimizer.state_dict()])
    train_a_little(criterion, optimizer, loader, 2)
    again = parts()
    for part, state in zip(again, saved, strict=True):
        part.load_state_dict(state)  # type: ignore[arg-type]
    train_a_little(again[1], again[2], loader, 2)
    for p, q in zip(model.parameters(), again[0].parameters(), strict=True):
        assert torch.equal(p, q)


def test_gradients_scale_and_accumulate() -> None:
    x, y = samples(40, "least_squares")
    model = network()
    criterion = gnvpro.ReducedLoss(model, loss="least_squares", batch_head=BatchHead(proximal=0.0))
    (3 * criterion(x, y)).backward()
    thrice = flat(criterion).clone()
    criterion(x, y).backward()
    torch.testing.assert_close(flat(criterion), thrice * 4 / 3)


def test_a_pixelwise_head_is_eliminated() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 1)).double()
    x = torch.randn(5, 1, 6, 6, dtype=torch.float64)
    labels = (x[:, 0] > 0).long() + (x[:, 0] > 1).long()
    criterion = gnvpro.ReducedLoss(model, loss="multinomial")
    criterion(x, labels).backward()
    assert float(flat(criterion).norm()) > 0
    before = nn.functional.cross_entropy(model(x), labels)
    criterion.refit((x, labels))
    assert nn.functional.cross_entropy(model(x), labels) < before


def test_a_loader_that_yields_nothing_is_refused() -> None:
    criterion = gnvpro.ReducedLoss(network(), loss="multinomial")
    with pytest.raises(ValueError, match="yielded nothing"):
        criterion.refit([])


@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
def test_a_batch_smaller_than_the_features_moves_the_head_a_little(loss: str) -> None:
    x, y = samples(2, loss)
    model = network(width=20)
    before = model[-1].weight.detach().clone()  # type: ignore[union-attr]
    criterion = gnvpro.ReducedLoss(model, loss=loss)
    value = criterion(x, y)
    value.backward()
    W = criterion.state_dict()["memory"]["W"]
    assert math.isfinite(value.item())
    assert torch.isfinite(W).all()
    with torch.no_grad():  # nothing is said about directions that the batch does not have
        Z = torch.cat([model[:-1](x), torch.ones(2, 1, dtype=torch.float64)], 1)
    outside = torch.linalg.svd(Z)[2][2:]
    moved = W[:, :-1] - before
    away = torch.cat([moved, (W[:, -1] - network(width=20)[-1].bias.detach())[:, None]], 1) @ outside.T  # type: ignore[union-attr]
    assert float(away.norm()) < 1e-2 * float(moved.norm())


def test_a_missing_class_is_no_obstacle_and_labels_beyond_are_refused() -> None:
    x, y = samples(40, "multinomial")
    criterion = gnvpro.ReducedLoss(network(), loss="multinomial")
    assert math.isfinite(criterion(x[y < 2], y[y < 2]).item())
    with pytest.raises(ValueError, match="from 0 to 2"):
        criterion(x, y + 1)


def same(a: object, b: object) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b


@pytest.mark.parametrize("where", ["inputs", "targets"])
def test_a_batch_with_nan_is_refused_and_leaves_the_head(where: str) -> None:
    x, y = samples(40, "least_squares")
    criterion = gnvpro.ReducedLoss(network(), loss="least_squares")
    criterion(x, y)
    before = copy.deepcopy(criterion.state_dict())
    bad_x, bad_y = x.clone(), y.clone()
    (bad_x if where == "inputs" else bad_y)[3] = math.nan
    with pytest.raises(ValueError, match=r"1 of 40 rows|NaN or infinity"):
        criterion(bad_x, bad_y)
    with pytest.raises(ValueError, match=r"1 of 40 rows|NaN or infinity"):
        criterion.refit((bad_x, bad_y))
    after = criterion.state_dict()
    assert before["memory"].keys() == after["memory"].keys()
    assert all(same(before["memory"][name], after["memory"][name]) for name in before["memory"])


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.head(x)))


class Reversed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.first = nn.Linear(4, 3), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x)))


def test_a_head_that_runs_twice_is_refused() -> None:
    x, y = samples(10, "multinomial")
    criterion = gnvpro.ReducedLoss(Twice().double(), loss="multinomial")
    with pytest.raises(ValueError, match="more than once"):
        criterion(x, y)


def test_a_head_that_is_not_the_last_layer_registered_must_be_named() -> None:
    x, y = samples(10, "multinomial")
    with pytest.raises(ValueError, match=r"head=\.\.\."):
        gnvpro.ReducedLoss(Reversed().double(), loss="multinomial")(x, y)
    named = gnvpro.ReducedLoss(Reversed().double(), loss="multinomial", head="head")
    assert [name for name, _ in named.named_parameters()] == ["first.weight", "first.bias"]
    assert math.isfinite(named(x, y).item())


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="head_penalty"):
        gnvpro.ReducedLoss(network(), loss="multinomial", head_penalty=-1.0)
    with pytest.raises(ValueError, match=r"no nn\.Linear"):
        gnvpro.ReducedLoss(nn.Sequential(nn.Tanh()), loss="multinomial")
    with pytest.raises(ValueError, match="is not a linear layer"):
        gnvpro.ReducedLoss(network(), loss="multinomial", head="1")
    with pytest.raises(ValueError, match="a head of shape"):
        gnvpro.ReducedLoss(network(), loss="multinomial").load_state_dict({"memory": {"W": torch.zeros(2, 2)}})
    with pytest.raises(TypeError, match=r"gnvpro\.heads\.BatchHead"):
        gnvpro.ReducedLoss(network(), loss="multinomial", batch_head="auto")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="solved directly"):
        gnvpro.ReducedLoss(network(), loss="least_squares", batch_head=BatchHead(steps=3))


def test_an_eliminator_for_other_losses_is_refused_before_the_model_is_written() -> None:
    x, y = samples(40, "multinomial")
    model = network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="least squares only"):
        gnvpro.ReducedLoss(model, loss="multinomial").refit((x, y), gnvpro.heads.LeastSquares())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


# -- several arguments, empty batches, closures


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(2, 5), nn.Linear(3, 5), nn.Linear(5, 1)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.head(torch.tanh(self.a(x)) * self.b(scale))


def two() -> tuple[Two, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, scale = torch.randn(30, 2).double(), torch.randn(30, 3).double()
    return Two().double(), x, scale, (x.sum(1) * scale.sum(1))[:, None]


@pytest.mark.parametrize("kind", ["tuple", "list", "dictionary"])
def test_a_model_of_several_arguments_learns_and_is_refitted(kind: str) -> None:
    model, x, scale, y = two()
    inputs = {"tuple": (x, scale), "list": [x, scale], "dictionary": {"scale": scale, "x": x}}[kind]
    criterion = gnvpro.ReducedLoss(model, loss="least_squares", head_penalty=1e-3)
    problem = gnvpro.Problem(model, inputs, y, loss="least_squares", head_penalty=1e-3)
    expected = problem.reduced.at(problem.theta()).value - problem.theta_penalty.value(problem.theta())
    assert criterion.refit((inputs, y)) == pytest.approx(expected, rel=1e-9)
    assert criterion.refit([(inputs, y)]) == pytest.approx(expected, rel=1e-9)
    optimizer = torch.optim.Adam(criterion.parameters(), lr=1e-2)
    first = float(criterion(inputs, y).detach())
    for _ in range(50):
        optimizer.zero_grad()
        loss = criterion(inputs, y)
        loss.backward()
        optimizer.step()
    assert all(p.grad is not None and p.grad.any() for p in criterion.parameters())
    assert float(loss.detach()) < 0.5 * first


def test_inputs_that_are_no_batch_are_refused_in_a_sentence() -> None:
    model, x, scale, y = two()
    criterion = gnvpro.ReducedLoss(model, loss="least_squares")
    for inputs, message in (
        ((x[:0], scale[:0]), "inputs is an empty batch"),
        ((x, scale[:3]), r"inputs have \[3, 30\] samples"),
        ((x, "a"), "tuple or dictionary of tensors.*got tuple of Tensor, str"),
        (None, "got NoneType"),
    ):
        with pytest.raises(ValueError, match=message):
            criterion(inputs, y)
    criterion((x, scale), y)
    with pytest.raises(ValueError, match=r"empty batch.*leave such batches out"):
        criterion((x[:0], scale[:0]), y[:0])


@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_descends_on_one_function_per_step(loss: str, search: str | None) -> None:
    torch.manual_seed(1)
    x, y = samples(60, loss)
    criterion = gnvpro.ReducedLoss(network(), loss=loss)
    optimizer = torch.optim.LBFGS(criterion.parameters(), lr=0.3, max_iter=20, line_search_fn=search)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = criterion(x, y)
        value.backward()
        return value

    first = criterion.refit((x, y))
    for _ in range(15):
        optimizer.step(closure)
        assert all(torch.isfinite(p).all() for p in criterion.parameters())
    assert criterion.refit((x, y)) < 0.5 * first


def test_evaluations_within_a_step_are_of_one_function_and_the_next_step_goes_on() -> None:
    x, y = samples(60, "least_squares")
    criterion = gnvpro.ReducedLoss(network(), loss="least_squares")
    values: list[float] = []

    class Still(torch.optim.Optimizer):
        """Evaluates three times and moves nothing."""

        def step(self, closure):  # type: ignore[override]
            for _ in range(3):
                values.append(float(closure().detach()))

    still = Still(criterion.parameters(), {})
    for _ in range(2):
        still.step(lambda: criterion(x, y))
    assert values[0] == values[1] == values[2]
    assert values[3] == values[4] == values[5] != values[0]
