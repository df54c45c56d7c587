"""Training on samples outside memory: every method and solver takes the same path as on tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gnvpro
from gnvpro.methods.stochastic import NESTEROV
from gnvpro.network import passes
from gnvpro.networks import NeuralODE
from streamed import on_disk

F64 = torch.float64


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """Sixty samples then make many chunks."""
    monkeypatch.setattr(passes, "STREAMED_BYTES", 10_000)
    monkeypatch.setattr("gnvpro.network.separable.STREAMED_BYTES", 10_000)


def samples(labels: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(60, 2, dtype=F64, generator=generator)
    y = torch.stack([torch.sin(2 * x[:, 0]) + 0.3 * x[:, 1], x[:, 0] * x[:, 1]], 1)
    y = y + 0.1 * torch.randn(60, 2, dtype=F64, generator=generator)
    return x, y.argmax(1) if labels else y


def network(features: int = 6) -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(2, features), nn.Tanh(), nn.Linear(features, 2)).double()


def interrupt_at(iteration: int) -> Any:
    def listen(record: gnvpro.extend.Record) -> None:
        if record.iteration == iteration:
            raise KeyboardInterrupt

    return listen


def files(folder: Path, x: Tensor, y: Tensor) -> tuple[Any, Any]:
    return on_disk(folder, "x", x), on_disk(folder, "y", y)


METHODS: dict[str, dict[str, Any]] = {
    "krylov": {"solver": "krylov"},
    "hybrid": {"solver": "hybrid"},
    "dense": {"solver": "dense"},
    "dense, full": {"solver": gnvpro.solvers.Dense(residual_term=True)},
    "auto": {},
    "gauss-newton": {"method": "gauss-newton"},
    "lbfgs-vpro": {"method": "lbfgs-vpro"},
    "adam": {"method": gnvpro.methods.TorchOptimizer(torch.optim.Adam, lr=1e-2, batch_size=16)},
    "nesterov": {"method": gnvpro.methods.TorchOptimizer(NESTEROV, lr=1e-2, batch_size=16)},
    "adam-vpro": {"method": gnvpro.methods.AdamVPro(batch_size=20, lr=1e-2)},
    "batches": {"method": gnvpro.methods.GNvpro(solver="krylov", batches=gnvpro.methods.Batches(25, iterations=2))},
    "newton-krylov": {"method": gnvpro.methods.GNvpro(solver="krylov", eliminator=gnvpro.heads.NewtonKrylov())},
}
CASES = [(name, loss) for name in METHODS for loss in ("least_squares", "multinomial") if name != "newton-krylov"]
CASES += [("newton-krylov", "multinomial")]


@pytest.mark.filterwarnings("ignore:the validation loss was")
@pytest.mark.parametrize(("name", "loss"), CASES)
def test_the_history_is_that_of_tensors(name, loss, tmp_path):
    x, y = samples(loss == "multinomial")
    # With smaller penalties three steps carry rounding errors on to 1e-9, as a permutation of tensors does.
    options = {"loss": loss, "iterations": 3, "work": 100, "theta_penalty": 1e-4, "head_penalty": 1e-4, **METHODS[name]}
    held, streamed = network(), network()
    expected = gnvpro.train(held, x, y, validation=(x[:20], y[:20]), **options)
    disk = files(tmp_path, x, y)
    result = gnvpro.train(streamed, *disk, validation=tuple(each[:20] for each in disk), **options)
    digits = 1e-6 if name == "newton-krylov" else 1e-10  # whose head is as exact as its tolerance
    assert len(result.history) == len(expected.history) > 2
    for here, there in zip(result.history, expected.history, strict=True):
        assert here.loss == pytest.approx(there.loss, rel=digits)
        assert here.validation_loss == pytest.approx(there.validation_loss, rel=digits)
        assert (here.accuracy, here.validation_accuracy) == pytest.approx((there.accuracy, there.validation_accuracy))
        assert here.work == there.work
    for a, b in zip(held.parameters(), streamed.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=100 * digits, atol=100 * digits)


def test_levels(tmp_path):
    x, y = samples()

    def model() -> nn.Module:
        torch.manual_seed(7)
        return nn.Sequential(NeuralODE(2, 3, depth=2, final_time=1.0), nn.Linear(3, 2)).double()

    method = gnvpro.methods.GNvpro(solver="krylov", levels=2)
    expected = gnvpro.train(model(), x, y, loss="least_squares", method=method, work=40)
    result = gnvpro.train(model(), *files(tmp_path, x, y), loss="least_squares", method=method, work=40)
    assert result.history[-1].level == 1
    assert result.history.column("loss") == pytest.approx(expected.history.column("loss"), rel=1e-8)


@pytest.mark.parametrize("name", ["krylov", "dense", "adam", "adam-vpro", "batches"])
def test_a_run_is_taken_up_to_the_same_bits(name, tmp_path):
    x, y = files(tmp_path, *samples())
    weights = on_disk(tmp_path, "w", torch.rand(60, dtype=F64, generator=torch.Generator().manual_seed(0)))
    options = {"loss": "least_squares", "sample_weight": weights, **METHODS[name]}
    whole = gnvpro.train(network(), x, y, iterations=6, checkpoint=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        gnvpro.train(network(), x, y, iterations=6, checkpoint=tmp_path / "part", listeners=interrupt_at(3), **options)
    parted = gnvpro.train(network(), x, y, iterations=6, checkpoint=tmp_path / "part", resume=True, **options)
    assert parted.history.column("loss") == whole.history.column("loss")
    changed = np.array(y)
    changed[7] += 1e-6
    np.save(tmp_path / "y.npy", changed)
    other = np.load(tmp_path / "y.npy", mmap_mode="r")
    with pytest.raises(ValueError, match="targets"):
        gnvpro.train(network(), x, other, iterations=6, checkpoint=tmp_path / "part", resume=True, **options)


def test_several_inputs_from_disk(tmp_path):
    x, y = samples()

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.inner, self.head = nn.Linear(2, 5, dtype=F64), nn.Linear(5, 2, dtype=F64)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.head(torch.tanh(self.inner(torch.cat([a, b], 1))))

    options = {"loss": "least_squares", "solver": "krylov", "work": 40}
    a, b = on_disk(tmp_path, "a", x[:, :1]), on_disk(tmp_path, "b", x[:, 1:])
    expected = gnvpro.train(Two(), (x[:, :1], x[:, 1:]), y, **options)
    for inputs in ((a, x[:, 1:]), {"b": b, "a": a}):  # one of them in memory; by name
        result = gnvpro.train(Two(), inputs, y, **options)
        assert result.history[-1].loss == pytest.approx(expected.history[-1].loss, rel=1e-10)


def test_another_dtype_on_disk(tmp_path):
    x, y = samples()
    x = x.to(torch.float32)
    result = gnvpro.train(network(), *files(tmp_path, x, y), loss="least_squares", solver="krylov", work=40)
    expected = gnvpro.train(network(), x, y, loss="least_squares", solver="krylov", work=40)
    assert result.history[-1].loss == pytest.approx(expected.history[-1].loss, rel=1e-10)


def test_targets_left_out_are_asked_for():
    with pytest.raises(TypeError, match="targets must be a tensor or an array, got NoneType; only a Dataset"):
        gnvpro.train(network(), samples()[0], loss="least_squares")


@pytest.mark.parametrize("validated", [False, True])
def test_metrics_ask_for_samples_that_are_held(validated, tmp_path):
    inputs, targets = on_disk(tmp_path, "inputs", torch.randn(9, 2)), on_disk(tmp_path, "targets", torch.randn(9, 1))
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).double()
    samples = {"validation": (inputs, targets)} if validated else {}
    with pytest.raises(ValueError, match="metrics needs samples that are held in memory"):
        gnvpro.train(model, inputs, targets, loss="least_squares", metrics={"mae": lambda x, y: 0.0}, **samples)
