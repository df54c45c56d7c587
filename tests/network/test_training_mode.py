"""Dropout and BatchNorm in training mode: trained in that mode on batches, with statistics of the training set."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import gnvpro
from gnvpro.head.newton import Newton
from gnvpro.problem.loss import get_loss
from gnvpro.problem.misfit import Misfit
from gnvpro.stochastic.batch_head import BatchHead
from gnvpro.stochastic.proximal import Proximal

X = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)) * 3 + 1
Y = torch.sin(X[:, :1] * X[:, 1:2])
LABELS = (Y[:, 0] > 0).long()


def net(dtype=torch.float32, drop=0.2, out=1):
    torch.manual_seed(1)
    layers = [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(drop), nn.Linear(8, out)]
    return nn.Sequential(*layers).to(dtype)


def train(model, **kw):
    kw = {"work": 12, "loss": "least_squares", **kw}
    return gnvpro.train(model, X, LABELS if kw["loss"] == "multinomial" else Y, **kw)


def assert_statistics_are_of_the_training_set(model):
    with torch.no_grad():
        inputs = model[0](X)
    torch.testing.assert_close(model[1].running_mean, inputs.mean(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model[1].running_var, inputs.var(0), rtol=1e-4, atol=1e-5)
    assert int(model[1].num_batches_tracked) == 1


@pytest.mark.parametrize("kw", [{}, {"method": "adam"}, {"loss": "multinomial"}], ids=str)
def test_statistics_are_those_of_the_training_set_at_the_trained_weights(kw):
    model = net(out=2 if kw.get("loss") == "multinomial" else 1)
    modes, random = [m.training for m in model.modules()], torch.get_rng_state()
    train(model, **kw)
    assert_statistics_are_of_the_training_set(model)
    assert [m.training for m in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)


def test_statistics_are_those_of_the_model_that_is_kept():
    model = net()
    train(model, validation=(X[:20], Y[:20]), keep="best", work=20)
    assert_statistics_are_of_the_training_set(model)


@pytest.mark.parametrize("method", ["gnvpro", "lbfgs-vpro"])
def test_full_steps_measure_the_statistics_once_before_they_begin(method):
    model = net(drop=0.0)
    first = copy.deepcopy(model)
    solver = {"solver": "krylov"} if method == "gnvpro" else {}
    with pytest.warns(UserWarning, match="BatchNorm1d.*measured once on the training set"):
        train(model, method=method, **solver)
    with torch.no_grad():
        torch.testing.assert_close(model[1].running_mean, first[0](X).mean(0))
    assert not torch.equal(model[0].weight, first[0].weight)


def test_statistics_of_chunks_are_those_of_all_samples():
    problem = gnvpro.Problem(net(torch.float64), X.double(), Y.double(), loss="least_squares")
    problem.network.mode.norms[0].running_mean.fill_(7.0)
    chunks = problem.with_passes(gnvpro.objectives.problem.PassPlan(10, 0.0))
    chunks.measure_statistics(problem.theta())
    with torch.no_grad():
        inputs = problem.working.given[0](X.double())
    torch.testing.assert_close(problem.working.given[1].running_mean, inputs.mean(0))
    torch.testing.assert_close(problem.working.given[1].running_var, inputs.var(0))


def test_batches_run_in_training_mode_and_readings_in_evaluation_mode():
    model, modes = net(), set()
    model[3].register_forward_hook(lambda module, args, output: modes.add((module.training, len(args[0]))))
    train(model)
    assert {training for training, size in modes if size == 4} == {True}  # batches
    assert {training for training, size in modes if size == 64} == {False}


def test_equal_seeds_draw_equal_numbers_and_a_run_resumes_to_the_same_bits(tmp_path):
    def run(**kw):
        model = net()
        return train(model, **kw).history[-1].loss, model[0].weight.detach()

    whole, weight = run(method="adam-vpro")
    torch.manual_seed(5)
    path = tmp_path / "run.checkpoint"
    run(method="adam-vpro", iterations=2, checkpoint=path)
    again, same = run(method="adam-vpro", checkpoint=path, resume=True)
    assert (again, same.tolist()) == (whole, weight.tolist())


def test_the_default_trains_in_the_mode_of_the_model():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = train(net())
    assert "BatchNorm1d, Dropout in training mode" in result.plan[0]
    assert result.history[-1].solver != "dense"
    still = net().eval()
    before = still[1].running_mean.clone()
    assert "training mode" not in " ".join(train(still).plan)
    assert torch.equal(still[1].running_mean, before)


def test_a_small_network_with_batch_norm_and_dropout_reads_digits():
    data = pytest.importorskip("sklearn.datasets").load_digits()
    inputs, labels = torch.tensor(data.data / 16).float().view(-1, 1, 8, 8), torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
    train_part, test = order[:1200], order[1200:]
    torch.manual_seed(0)
    blocks = [
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
    ]
    blocks += [nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.3), nn.Linear(128, 10)]
    model = nn.Sequential(*blocks)
    gnvpro.train(model, inputs[train_part], labels[train_part], loss="multinomial", work=12)
    with torch.no_grad():
        right = (model.eval()(inputs[test]).argmax(1) == labels[test]).double().mean()
    assert right >= 0.983


def test_a_wide_head_shares_one_block_and_is_eliminated_as_exactly():
    settings = BatchHead(rtol=1e-8, steps=60, proximal=0.0)
    torch.manual_seed(0)
    Z, labels = torch.randn(100, 140, dtype=torch.float64), torch.arange(100) % 3
    misfit = Misfit.mean(get_loss("multinomial"), nn.functional.one_hot(labels).double())
    first = 0.01 * torch.randn(3, 140, dtype=torch.float64)
    inner = Proximal(Z, misfit, 1e-2, 0.0, first)
    assert inner.hessian_blocks(Z @ first.T).shape == (1, 140, 140)
    fit = settings.fit(Z, misfit, 1e-2, settings.first(first))
    exact = Newton().fit(Z, misfit, 1e-2, None)
    torch.testing.assert_close(fit.W, exact.W, rtol=1e-5, atol=1e-7)


def test_statistics_of_samples_outside_memory_are_those_of_all(tmp_path):
    path = tmp_path / "inputs.npy"
    np.save(path, X.numpy())
    model = net()
    gnvpro.train(model, np.load(path, mmap_mode="r"), Y, loss="least_squares", method="adam-vpro", work=6)
    assert_statistics_are_of_the_training_set(model)
