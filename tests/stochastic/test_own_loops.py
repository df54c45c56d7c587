"""Loops around a reduced loss: mixed precision, scalers, schedules, readings, compiled models, several processes."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import gnvpro
from gnvpro.stochastic.batch_features import Envelope
from group import Keep, run_in_group
from stochastic_cases import exact, network, samples, train_a_little


def batches(n: int = 200, size: int = 50, loss: str = "multinomial") -> list[tuple[Tensor, Tensor]]:
    x, y = samples(n, loss)
    return list(zip(x.split(size), y.split(size), strict=True))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


# -- precision


@pytest.mark.filterwarnings(
    "ignore:Detected call of `lr_scheduler.step"
)  # the scaler skips a first step that overflows
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_loop_in_mixed_precision_with_a_scaler_learns(dtype: torch.dtype) -> None:
    loader = [(x.float(), y) for x, y in batches(600)]
    model = network().float()
    criterion = gnvpro.ReducedLoss(model, loss="multinomial")
    before = criterion.refit(loader)
    optimizer = torch.optim.AdamW(criterion.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=12 * len(loader))
    scaler = torch.amp.GradScaler("cpu")
    for x, y in loader * 12:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = criterion(x, y)
        assert loss.dtype == torch.float32
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
    assert criterion.refit(loader) < 0.6 * before


def test_the_head_is_eliminated_in_double_precision_inside_of_autocast() -> None:
    x, y = samples(80, "multinomial")
    heads = []
    for inside in (True, False):
        model = nn.Sequential(nn.Identity(), nn.Linear(4, 3)).float()
        nn.init.zeros_(model[1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(model[1].bias)  # type: ignore[arg-type]
        criterion = gnvpro.ReducedLoss(model, loss="multinomial", head_penalty=1e-2, batch_head=exact("multinomial"))
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            criterion(x.float(), y)
        heads.append(criterion.state_dict()["memory"]["W"])
    torch.testing.assert_close(*heads, rtol=0, atol=1e-10)


def test_a_scaler_saves_what_half_precision_would_lose() -> None:
    features = torch.zeros(1, 1, dtype=torch.float16, requires_grad=True)
    (65536 * Envelope.apply(features, torch.tensor([[1e-9]], dtype=torch.float64), 0.0)).backward()
    assert features.grad is not None
    assert features.grad.item() == pytest.approx(65536e-9, rel=1e-2)  # 1e-9 itself is no half


# -- readings


def test_without_gradients_the_loss_is_that_of_the_model_and_nothing_moves() -> None:
    loader = batches()
    model = network()
    criterion = gnvpro.ReducedLoss(model, loss="multinomial", head_penalty=1e-2)
    train_a_little(criterion, torch.optim.SGD(criterion.parameters(), lr=0.1), loader, 1)
    before, state = flat(model), copy.deepcopy(criterion.state_dict())
    x, y = loader[0]
    with torch.no_grad():
        value = criterion(x, y)
    head = model[-1]
    penalty = 0.5e-2 * (head.weight.square().sum() + head.bias.square().sum())  # type: ignore[operator,union-attr]
    assert value.item() == pytest.approx((nn.functional.cross_entropy(model(x), y) + penalty).item(), rel=1e-12)
    assert torch.equal(flat(model), before)
    assert torch.equal(criterion.state_dict()["memory"]["W"], state["memory"]["W"])
    assert criterion.state_dict()["memory"]["age"] == state["memory"]["age"]


@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
def test_the_model_never_holds_the_head_of_a_batch(loss: str) -> None:
    """A head that follows the batches: for least squares the mean, of two so far; for other losses a part of each move."""
    (x, y), (x2, y2) = batches(100, 50, loss)
    model = network()
    settings = gnvpro.heads.BatchHead(proximal=0.1) if loss == "least_squares" else gnvpro.heads.BatchHead(gain=0.25)
    criterion = gnvpro.ReducedLoss(model, loss=loss, batch_head=settings)
    before = held(model)
    criterion(x, y)
    first, one = criterion.state_dict()["memory"], held(model)
    criterion(x2, y2)
    second, two = criterion.state_dict()["memory"], held(model)
    if loss == "least_squares":
        torch.testing.assert_close(one, first["W"])
        torch.testing.assert_close(two, (first["W"] + second["W"]) / 2)
    else:
        torch.testing.assert_close(one, first["W"])
        torch.testing.assert_close(two, second["W"])
        best = gnvpro.heads.BatchHead(gain=1.0)
        torch.testing.assert_close(one, before + (first_head(best, x, y) - before) / 4)
    assert float((two - one).norm()) > 1e-3


def first_head(settings: gnvpro.heads.BatchHead, x: Tensor, y: Tensor) -> Tensor:
    criterion = gnvpro.ReducedLoss(network(), loss="multinomial", batch_head=settings)
    criterion(x, y)
    return criterion.state_dict()["memory"]["W"]


def held(model: nn.Sequential) -> Tensor:
    head = model[-1]
    assert isinstance(head, nn.Linear)
    return torch.cat([head.weight, head.bias[:, None]], 1).detach().clone()


def augmented(loader: list[tuple[Tensor, Tensor]], seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(seed)
    for x, y in loader:
        yield x + 0.05 * torch.randn(x.shape, generator=random, dtype=x.dtype), y


def test_samples_may_differ_in_every_epoch_and_a_generator_be_refitted() -> None:
    loader = batches(600)
    model = network()
    criterion = gnvpro.ReducedLoss(model, loss="multinomial")
    before = criterion.refit(augmented(loader, 0))
    optimizer = torch.optim.AdamW(criterion.parameters(), lr=1e-2)
    for epoch in range(12):
        train_a_little(criterion, optimizer, augmented(loader, epoch), 1)  # type: ignore[arg-type]
    assert criterion.refit(augmented(loader, 12)) < 0.6 * before


def test_an_exhausted_loader_is_refused_and_leaves_the_model() -> None:
    model = network()
    criterion = gnvpro.ReducedLoss(model, loss="multinomial")
    loader = iter(batches(100))
    criterion.refit(loader)
    before = flat(model)
    with pytest.raises(ValueError, match="yielded nothing"):
        criterion.refit(loader)
    assert torch.equal(flat(model), before)


def test_a_bad_batch_can_be_skipped_by_the_loop() -> None:
    loader = batches(200)
    bad = (torch.full_like(loader[0][0], math.nan), loader[0][1])
    results = []
    for stream in (loader, [loader[0], bad, *loader[1:]]):
        model = network()
        criterion = gnvpro.ReducedLoss(model, loss="multinomial")
        optimizer = torch.optim.AdamW(criterion.parameters(), lr=1e-2)
        for x, y in stream:
            optimizer.zero_grad()
            try:
                criterion(x, y).backward()
            except ValueError:
                continue
            optimizer.step()
        results.append(flat(model))
    assert torch.equal(*results)


# -- wrapped models


@pytest.mark.slow
def test_a_compiled_model_is_run_as_it_was_before() -> None:
    x, y = samples(50, "multinomial")
    values = []
    for wrap in (lambda model: model, torch.compile):
        model = network()
        values.append(gnvpro.ReducedLoss(wrap(model), loss="multinomial")(x, y).item())  # type: ignore[operator]
    assert values[0] == values[1]


class Sometimes(nn.Module):
    """Leaves its head out when it is in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) if self.training else self.head(self.body(x))


def test_a_head_that_is_left_out_of_a_batch_is_noticed() -> None:
    x, y = samples(50, "multinomial")
    with pytest.raises(ValueError, match="ran 0 times"):
        gnvpro.ReducedLoss(Sometimes().double(), loss="multinomial")(x, y)


# -- several processes


def in_two_processes(rank: int, keep: Keep) -> None:
    for loss in ("least_squares", "multinomial"):
        part = slice(0, 10) if rank == 0 else slice(10, 40)
        loader = [(x[part], y[part]) for x, y in batches(200, 40, loss)]
        model = network()
        wrapped = nn.parallel.DistributedDataParallel(model)
        criterion = gnvpro.ReducedLoss(wrapped, loss=loss, batch_head=exact(loss), head_penalty=1e-3)
        train_a_little(criterion, torch.optim.SGD(criterion.parameters(), lr=0.1), loader, 1)
        keep(f"{loss} running", flat(model))
        keep(f"{loss} value", criterion.refit(loader))
        keep(f"{loss} refitted", flat(model))
    x, y = loader[0]
    with pytest.raises(ValueError, match="not finite in 1 of 40 rows"):  # everywhere, though only rank 1 has it
        criterion(torch.where(torch.arange(len(x))[:, None] == 3, math.nan, x) if rank else x, y)
    with pytest.raises(ValueError, match="targets") as raised:
        criterion(x, y[:-1] if rank else y)
    keep("short", str(raised.value))
    keep("on", criterion(x, y).item())  # and both continue
    alone = gnvpro.ReducedLoss(copy.deepcopy(model), loss=loss, process_group=dist.group.WORLD)
    keep("given", alone(x, y).item())


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one_that_has_whole_batches() -> None:
    kept = run_in_group(in_two_processes)
    assert not [ranks["error"] for ranks in kept if "error" in ranks]
    for loss in ("least_squares", "multinomial"):
        model, loader = network(), batches(200, 40, loss)
        criterion = gnvpro.ReducedLoss(model, loss=loss, batch_head=exact(loss), head_penalty=1e-3)
        train_a_little(criterion, torch.optim.SGD(criterion.parameters(), lr=0.1), loader, 1)
        running, value = flat(model), criterion.refit(loader)
        for ranks in kept:
            torch.testing.assert_close(ranks[f"{loss} running"], running, rtol=0, atol=1e-8)
            torch.testing.assert_close(ranks[f"{loss} refitted"], flat(model), rtol=0, atol=1e-8)
            assert ranks[f"{loss} value"] == pytest.approx(value, rel=1e-9)
        for name in ("running", "refitted"):
            assert torch.equal(*(ranks[f"{loss} {name}"] for ranks in kept))
    assert kept[0]["on"] == kept[1]["on"]
    assert kept[0]["given"] == kept[1]["given"]
    assert "rank 1" in kept[0]["short"]
