"""The head of a batch: its minimum, its distance from the last one, and errors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnvpro.heads import BatchHead
from gnvpro.losses import HalfSquaredError, Multinomial
from gnvpro.stochastic.batch_head import HeadMemory
from stochastic_cases import misfit_of, samples


def test_a_large_head_reaches_the_minimum_too() -> None:
    x, y = samples(50, "multinomial")
    Z = torch.cat([torch.cos(x @ torch.randn(4, 600, dtype=torch.float64)), torch.ones(50, 1, dtype=torch.float64)], 1)
    misfit, W = misfit_of("multinomial", y), 0.1 * torch.randn(3, 601, dtype=torch.float64)
    settings = BatchHead(proximal=0.5, rtol=1e-8, steps=50)
    fit = settings.fit(Z, misfit, 1e-2, settings.first(W))
    residual = misfit.gradient(Z @ fit.W.T).T @ Z + 1e-2 * fit.W + 0.5 * (fit.W - W)
    assert float(residual.norm()) < 1e-6


@pytest.mark.parametrize("proximal", [0.0, 0.3])
def test_least_squares_is_solved_directly(proximal: float) -> None:
    x, y = samples(50, "least_squares")
    misfit, W = misfit_of("least_squares", y), torch.ones(3, 4, dtype=torch.float64)
    settings = BatchHead(proximal=proximal)
    fit = settings.fit(x, misfit, 0.0, settings.first(W))
    gradient = misfit.gradient(x @ fit.W.T).T @ x + proximal * (fit.W - W)
    assert float(gradient.norm()) < 1e-12
    torch.testing.assert_close(fit.outputs, x @ fit.W.T)


def test_a_heavier_proximal_weight_holds_the_head_nearer() -> None:
    x, y = samples(30, "multinomial")
    misfit, W = misfit_of("multinomial", y), torch.zeros(3, 4, dtype=torch.float64)
    moved = []
    for proximal in (0.01, 0.1, 1.0):
        settings = BatchHead(proximal=proximal, rtol=1e-10, steps=50)
        moved.append(float((settings.fit(x, misfit, 0.0, settings.first(W)).W - W).norm()))
    assert moved[0] > 1.5 * moved[1] > 3 * moved[2] > 0


def test_inner_steps_are_few_once_the_factor_is_kept() -> None:
    torch.manual_seed(0)
    x, y = samples(2000, "multinomial")
    settings = BatchHead(proximal=0.3)
    memory = settings.first(torch.zeros(3, 4, dtype=torch.float64))
    steps, factors = [], []
    for part, labels in zip(x.split(100), y.split(100), strict=True):
        fit = settings.fit(part, misfit_of("multinomial", labels), 1e-4, memory)
        memory = fit.memory
        steps.append(fit.steps)
        factors.append(memory.age == 0)
    assert max(steps[2:]) <= 3
    assert sum(factors) < len(factors) / 2


def followed(settings: BatchHead, Z: Tensor, labels: Tensor, size: int) -> tuple[list[HeadMemory], list[Tensor]]:
    """The memory after each batch, and the heads at which gradients were taken."""
    memory = settings.first(torch.zeros(3, Z.shape[1], dtype=torch.float64))
    memories, heads = [], []
    for z, y in zip(Z.split(size), labels.split(size), strict=True):
        fit = settings.fit(z, misfit_of("multinomial", y), 1e-4, memory)
        memory = fit.memory
        memories.append(memory)
        heads.append(fit.W)
    return memories, heads


def test_a_head_in_its_running_metric_takes_part_of_a_newton_step_after_the_gradient() -> None:
    x, y = samples(60, "multinomial")
    misfit, W = misfit_of("multinomial", y), 0.3 * torch.ones(3, 4, dtype=torch.float64)
    W[0] = -W[0]
    settings = BatchHead(gain=0.25)
    fit = settings.fit(x, misfit, 1e-2, settings.first(W))
    assert torch.equal(fit.W, W)
    gradient = misfit.gradient(x @ W.T).T @ x + 1e-2 * W
    p = torch.softmax(x @ W.T, 1)
    blocks = [((p[:, k] * (1 - p[:, k]) / 60)[:, None] * x).T @ x for k in range(3)]
    ridge = 0.1 * sum(float(block.diagonal().mean()) for block in blocks) / 3 + 1e-2
    for k, block in enumerate(blocks):
        step = torch.linalg.solve(block + ridge * torch.eye(4, dtype=torch.float64), gradient[k])
        torch.testing.assert_close(fit.memory.W[k], W[k] - 0.25 * step)


def test_a_head_that_follows_many_batches_is_near_the_best_for_all_samples() -> None:
    x, y = samples(8000, "multinomial")
    memories, _ = followed(BatchHead(gain=0.05), x, y, 40)
    misfit = misfit_of("multinomial", y)
    settings = BatchHead(proximal=0.0, rtol=1e-8, steps=50)
    best = settings.fit(x, misfit, 1e-4, settings.first(torch.zeros(3, 4, dtype=torch.float64)))
    start = misfit.value(torch.zeros(8000, 3, dtype=torch.float64))
    excess = misfit.value(x @ memories[-1].W.T) - misfit.value(best.outputs)
    assert 0 < excess < 0.02 * (start - misfit.value(best.outputs))


def test_the_head_remembers_as_many_samples_as_its_entries_need() -> None:
    x, y = samples(60, "multinomial")
    misfit, W = misfit_of("multinomial", y), torch.zeros(3, 4, dtype=torch.float64)
    moves = [s.fit(x, misfit, 1e-2, s.first(W)).memory.W for s in (BatchHead(), BatchHead(gain=0.5))]
    torch.testing.assert_close(moves[0], 2 * moves[1] * 60 / (20 * 12))  # 60 samples, 12 entries, 20 for each
    few = BatchHead().fit(x.repeat(5, 1), misfit_of("multinomial", y.repeat(5)), 1e-2, BatchHead().first(W))
    torch.testing.assert_close(few.memory.W, moves[1])  # never more than half a step


@pytest.mark.parametrize("size", [0.0, 30.0])
def test_a_head_in_its_running_metric_never_raises_the_objective_of_a_batch_that_comes_again(size: float) -> None:
    """Not even if a wrong head is so certain that its Hessian is nearly zero."""
    x, y = samples(100, "multinomial")
    y = (y > 0).long()
    misfit, W = misfit_of("multinomial", y), torch.zeros(3, 4, dtype=torch.float64)
    W[0, 0], W[1, 0] = size, -size
    settings, values = BatchHead(gain=1.0), []
    memory = settings.first(W)
    for _ in range(60):
        fit = settings.fit(x, misfit, 1e-3, memory)
        memory = fit.memory
        values.append(fit.value)
    assert values == sorted(values, reverse=True)
    best = BatchHead(proximal=0.0, rtol=1e-10, steps=100).fit(x, misfit, 1e-3, memory)
    if not size:
        assert values[-1] == pytest.approx(best.value, rel=1e-3)
    assert values[-1] < 0.5 * values[0] + 0.5 * best.value


def test_readings_of_a_plain_metric_average_more_than_the_last_batch() -> None:
    torch.manual_seed(0)
    x, y = samples(3000, "multinomial")
    settings = BatchHead(proximal=0.01)
    memory = settings.first(torch.zeros(3, 4, dtype=torch.float64))
    away = []
    for part, labels in zip(x.split(50), y.split(50), strict=True):
        memory = settings.fit(part, misfit_of("multinomial", labels), 1e-4, memory).memory
        away.append(float((memory.reading - memory.W).norm()))
    assert min(away[1:]) > 0


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_the_proximal_weight_is_found_at_which_the_head_has_its_freedom(share: float) -> None:
    """tr H (H + rho)^-1, of the diagonal blocks, is the chosen share of the samples."""
    x, y = samples(400, "multinomial")
    Z = torch.cos(x @ torch.randn(4, 40, dtype=torch.float64))
    misfit, settings = misfit_of("multinomial", y), BatchHead(freedom=0.2, steps=1)
    memory = settings.first(torch.zeros(3, 40, dtype=torch.float64))
    for _ in range(12 * 21):  # it is adapted on one batch in twenty-one
        memory = settings.fit(Z, misfit, 1e-4, memory, share).memory
    apply, freedom = misfit.hessian(Z @ memory.W.T), 0.0
    for k in range(3):
        unit = torch.zeros(400, 3, dtype=torch.float64)
        unit[:, k] = 1
        H = (apply(unit)[:, k, None] * Z).T @ Z + 1e-4 * torch.eye(40, dtype=torch.float64)
        freedom += float(torch.linalg.solve(H + memory.proximal * torch.eye(40, dtype=torch.float64), H).trace())
    assert freedom == pytest.approx(share * 0.2 * 400, rel=0.02)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"proximal": "none"}, 'must be a number or "auto"'),
        ({"proximal": -1.0}, "proximal must be at least 0"),
        ({"proximal": 0.1, "freedom": 0.2}, "freedom is what proximal='auto' aims at"),
        ({"freedom": 0.0}, "freedom must be above 0"),
        ({"rtol": 0.0}, "rtol must be above 0"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"metric": "own"}, 'must be "plain" or "running"'),
        ({"metric": "running", "steps": 3}, "are of the plain metric"),
        ({"proximal": 0.1, "gain": 0.1}, "gain is of the running metric"),
        ({"metric": "plain", "gain": 0.1}, "gain is of the running metric"),
        ({"gain": 0.0}, "gain must be above 0"),
        ({"gain": 1.5}, "gain must be at most 1"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatchHead(**settings)  # type: ignore[arg-type]


def test_settings_of_newtons_method_are_refused_for_least_squares() -> None:
    for settings in (BatchHead(rtol=1e-3), BatchHead(steps=3), BatchHead(gain=0.5), BatchHead(metric="running")):
        assert "solved directly" in (settings.why_not(HalfSquaredError()) or "")
        assert settings.why_not(Multinomial()) is None
    assert BatchHead(proximal=0.1).why_not(HalfSquaredError()) is None
