"""Bad input: refused before any work, by name, with the model untouched."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Adam

import gnvpro
from cases import F64, PseudoHuber, mlp, pixel_net
from gnvpro.methods.gnvpro import SOLVERS
from gnvpro.methods.names import METHODS, as_method
from gnvpro.methods.stochastic import NESTEROV

X = torch.randn(12, 2, dtype=F64, generator=torch.Generator().manual_seed(0))
REAL = torch.randn(12, 3, dtype=F64, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(12) % 3
META = torch.device("meta")


def with_value(tensor, value):
    changed = tensor.clone()
    changed[5, 0] = value
    return changed


def broken(value):
    model = mlp(3)
    with torch.no_grad():
        model[2].weight[1, 1] = value
    return model


class TiedHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.fc = nn.Linear(2, 3), nn.Linear(3, 3, bias=False), nn.Linear(3, 3)
        self.fc.weight = self.middle.weight

    def forward(self, x):
        return self.fc(torch.tanh(self.middle(self.first(x))))


class Exploding(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.fc = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.fc((1e4 + self.first(x) ** 2).exp())


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 3)

    def forward(self, x):
        return self.fc(x), x


class NoValue:
    def gradient(self, outputs, targets):
        return outputs

    def hessian(self, outputs, targets):
        return lambda d: d


def head_frozen():
    model = mlp(3)
    model[-1].weight.requires_grad_(False)
    return model


def head_normed():
    model = mlp(3)
    torch.nn.utils.parametrizations.weight_norm(model[-1])
    return model


def op(n):
    return gnvpro.extend.LinearOperator((n,), (n,), lambda x: x, lambda x: x)


# what is wrong: (changed arguments, exception, what the message must say)
BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    # inputs
    "inputs: a vector": ({"inputs": X[:, 0]}, ValueError, r"^inputs must have shape \(samples, \.\.\.\), got \(12,\)"),
    "inputs: a number": ({"inputs": 3.0}, ValueError, r"^inputs must have shape"),
    "inputs: too many columns": ({"inputs": torch.zeros(12, 5, dtype=F64)}, ValueError, r"inputs of shape \(\d+, 5\)"),
    "inputs: empty": ({"inputs": X[:0], "targets": LABELS[:0]}, ValueError, r"^inputs is empty"),
    "inputs: NaN": ({"inputs": with_value(X, math.nan)}, ValueError, r"^inputs holds NaN or infinity.*sample 5"),
    "inputs: infinity": ({"inputs": with_value(X, math.inf)}, ValueError, r"^inputs holds NaN or infinity"),
    "inputs: a string": ({"inputs": "data.csv"}, TypeError, r"^inputs must be a tensor or an array, got str"),
    "inputs: objects": ({"inputs": np.array([object()] * 12)}, TypeError, r"^inputs must be a tensor or an array"),
    "inputs: None": ({"inputs": None}, TypeError, r"^inputs must be a tensor or an array, got NoneType"),
    "inputs: whole numbers": ({"inputs": torch.ones(12, 2, dtype=torch.int64)}, ValueError, r"inputs.*torch.int64"),
    "inputs: another device": ({"inputs": X.to(META)}, ValueError, r"^inputs is on device 'meta' but the model is on 'cpu'"),
    # targets
    "targets: another count": ({"targets": LABELS[:7]}, ValueError, r"^targets has 7 samples but the inputs have 12"),
    "targets: empty": ({"targets": LABELS[:0]}, ValueError, r"^targets is empty"),
    "targets: a string": ({"targets": "labels"}, TypeError, r"^targets must be a tensor or an array, got str"),
    "targets: None": ({"targets": None}, TypeError, r"^targets must be a tensor or an array, got NoneType"),
    "targets: names of classes": ({"targets": ["cat"] * 12}, TypeError, r"^targets must be a tensor or an array, got list"),
    "targets: another device": ({"targets": LABELS.to(META)}, ValueError, r"^targets is on device 'meta'"),
    "targets: complex": ({"targets": REAL.to(torch.complex128), "loss": "least_squares"}, TypeError, r"^targets must be real"),
    "targets: NaN": ({"targets": with_value(REAL, math.nan), "loss": "least_squares"}, ValueError, r"^targets holds NaN.*sample 5"),
    "targets: infinity": ({"targets": with_value(REAL, -math.inf), "loss": "least_squares"}, ValueError, r"^targets holds NaN or inf"),
    "targets: label too large": ({"targets": LABELS + 1}, ValueError, r"^targets must be class labels from 0 to 2.*from 1 to 3"),
    "targets: negative label": ({"targets": LABELS - 1}, ValueError, r"^targets must be class labels from 0 to 2.*from -1 to 1"),
    "targets: fractions as labels": ({"targets": LABELS + 0.5}, ValueError, r"^targets.*whole numbers.*soft labels"),
    "targets: soft labels that do not sum to one": ({"targets": torch.full((12, 3), 0.5)}, ValueError, r"^targets.*sum to one.*1\.5"),
    "targets: negative soft labels": (
        {"targets": torch.tensor([[1.5, -0.5, 0.0]] * 12)},
        ValueError,
        r"^targets.*non-negative.*-0\.5",
    ),
    "targets: columns for other classes": ({"targets": torch.eye(4)[torch.arange(12) % 4]}, ValueError, r"^targets must have shape \(samples, 3\)"),
    "targets: labels for regression": ({"loss": "least_squares"}, ValueError, r"^targets must have shape \(samples, 3\)"),
    "targets: too many axes": ({"targets": torch.zeros(12, 3, 2)}, ValueError, r"^targets must have shape"),
    "targets: logistic out of range": (
        {"model": lambda: mlp(1), "targets": LABELS, "loss": "logistic"},
        ValueError,
        r"^targets for loss=\"logistic\" must be labels 0 and 1.*from 0 to 2",
    ),
    "targets: logistic with minus one": (
        {"model": lambda: mlp(1), "targets": 2 * (LABELS > 0) - 1, "loss": "logistic"},
        ValueError,
        r"^targets for loss=\"logistic\" must be labels 0 and 1.*from -1 to 1",
    ),
    "targets: pixels of another size": (
        {"model": lambda: pixel_net(3), "inputs": torch.zeros(4, 2, 3, 3, dtype=F64), "targets": torch.zeros(4, 2, 2, dtype=torch.int64)},
        ValueError,
        r"^targets must have shape \(samples, 3, 3, 3\).*\(samples, 3, 3\) for labels",
    ),
    # loss
    "loss: misspelt": ({"loss": "multinomail"}, ValueError, r"^loss='multinomail' is not known; did you mean 'multinomial'"),
    "loss: unknown": ({"loss": "xyz"}, ValueError, r"^loss='xyz' is not known; known: 'least_squares'"),
    "loss: a class": ({"loss": PseudoHuber}, TypeError, r"^loss must be one of .*PseudoHuber"),
    "loss: a function": ({"loss": torch.nn.functional.mse_loss}, TypeError, r"^loss must be one of"),
    "loss: a method missing": ({"loss": NoValue()}, TypeError, r"^loss must be .*value, gradient and hessian"),
    "loss: None": ({"loss": None}, TypeError, r"^loss must be one of"),
    "loss: logistic with many outputs": ({"loss": "logistic"}, ValueError, r"^loss=\"logistic\" needs a head with one output, got 3"),
    "loss: multinomial with one output": (
        {"model": lambda: mlp(1), "targets": LABELS % 2},
        ValueError,
        r"^loss=\"multinomial\" needs .*logistic",
    ),
    # numbers and names
    "theta_penalty: negative": ({"theta_penalty": -1e-3}, ValueError, r"^theta_penalty must be at least 0.*-0\.001"),
    "theta_penalty: NaN": ({"theta_penalty": math.nan}, ValueError, r"^theta_penalty must be at least 0 and finite"),
    "theta_penalty: a string": ({"theta_penalty": "small"}, ValueError, r"^theta_penalty must be a number, or .auto."),
    "theta_penalty: negative with an operator": ({"theta_penalty": gnvpro.Tikhonov(-1.0)}, ValueError, r"^theta_penalty must be"),
    "theta_penalty: operator of another size": ({"theta_penalty": gnvpro.Tikhonov(1.0, op(7))}, ValueError, r"^theta_penalty's operator.*\(7,\).*39 entries"),
    "theta_penalty: operator that is a matrix": ({"theta_penalty": gnvpro.Tikhonov(1.0, torch.eye(39))}, TypeError, r"^theta_penalty's operator must be"),
    "theta_penalty: time differences without time": (
        {"theta_penalty": gnvpro.Tikhonov(1.0, gnvpro.time_differences)},
        ValueError,
        r"time_differences needs.*theta_penalty",
    ),
    "head_penalty: negative": ({"head_penalty": -1.0}, ValueError, r"^head_penalty must be at least 0"),
    "head_penalty: infinite": ({"head_penalty": math.inf}, ValueError, r"^head_penalty must be at least 0 and finite"),
    "head_penalty: a boolean": ({"head_penalty": True}, TypeError, r"^head_penalty must be a number"),
    "work: negative": ({"work": -1}, ValueError, r"^work must be at least 0"),
    "work: a string": ({"work": "all"}, TypeError, r"^work must be a number"),
    "work: NaN": ({"work": math.nan}, ValueError, r"^work must be at least 0 and finite"),
    "iterations: negative": ({"iterations": -1}, ValueError, r"^iterations must be at least 0"),
    "iterations: a fraction": ({"iterations": 1.5}, TypeError, r"^iterations must be a whole number"),
    "method: misspelt": ({"method": "gnvrpo"}, ValueError, r"^method='gnvrpo' is not known; did you mean 'gnvpro'"),
    "method: unknown": ({"method": "zzz"}, ValueError, r"^method='zzz' is not known; known: 'gnvpro'"),
    "method: None": ({"method": None}, TypeError, r"^method must be one of 'gnvpro', .*got None"),
    "method: a class": ({"method": gnvpro.methods.AdamVPro}, TypeError, r"^method must be one of .* or an object such as gnvpro\.methods\.AdamVPro\(lr=1e-2"),
    "solver: misspelt": ({"solver": "krilov"}, ValueError, r"^solver='krilov' is not known; did you mean 'krylov'"),
    "solver: a class": ({"solver": gnvpro.solvers.Dense}, TypeError, r"^solver must be one of .* or an object such as gnvpro\.solvers\.Krylov"),
    "solver: of a method that has none": (
        {"method": "adam", "solver": "dense"},
        ValueError,
        r"^solver='dense' is for method='gnvpro', got method='adam', which makes its steps itself; leave solver out",
    ),
    "solver: of the full objective": (
        {"method": "gauss-newton", "solver": "dense"},
        ValueError,
        r"^solver='dense' is for method='gnvpro'; method='gauss-newton' takes its steps from Krylov spaces",
    ),
    "solver: in two places": (
        {"method": gnvpro.methods.GNvpro(solver="krylov"), "solver": "dense"},
        ValueError,
        r"^solver='dense' is given beside method=GNvpro\(.*; give it in one place",
    ),
    "levels: without a network in time": ({"method": gnvpro.methods.TorchOptimizer(Adam, levels=2)}, ValueError, r"^levels=2 needs a model .*prolongated"),
    "keep: misspelt": ({"keep": "bets"}, ValueError, r"^keep='bets' is not known; did you mean 'best'"),
    "keep: best of nothing": ({"keep": "best"}, ValueError, r'^keep="best" needs validation'),
    "resume: from nothing": ({"resume": True}, ValueError, r"^resume=True needs checkpoint"),
    "eliminator: a name": ({"method": gnvpro.methods.GNvpro(eliminator="newton")}, TypeError, r"^eliminator must be"),
    "eliminator: a class": ({"method": gnvpro.methods.GNvpro(eliminator=gnvpro.heads.Newton)}, TypeError, r"^eliminator must be"),
    "eliminator: of another loss": (
        {"method": gnvpro.methods.GNvpro(eliminator=gnvpro.heads.LeastSquares())},
        ValueError,
        r"^eliminator=LeastSquares\(\) cannot be used: .*Newton",
    ),
    "listeners: a number": ({"listeners": 3}, TypeError, r"^each of listeners must be an object with the methods begin, record and end"),
    "listeners: one of several": ({"listeners": [print, "bar"]}, TypeError, r"^each of listeners must be .*got 'bar'"),
    "listeners: a class": ({"listeners": gnvpro.listeners.CSVFile}, TypeError, r"^each of listeners must be"),
    # model and head
    "model: a class": ({"model": lambda: nn.Linear}, TypeError, r"^model must be a torch\.nn\.Module object"),
    "model: a function": ({"model": lambda: torch.tanh}, TypeError, r"^model must be a torch\.nn\.Module object"),
    "model: NaN in a parameter": ({"model": lambda: broken(math.nan)}, ValueError, r"^model parameter '2\.weight' holds NaN or infinity"),
    "model: infinity in a parameter": ({"model": lambda: broken(math.inf)}, ValueError, r"^model parameter '2\.weight' holds NaN or infinity"),
    "model: lazy": ({"model": lambda: nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 3))}, ValueError, r"^model has lazy parameters"),
    "model: two outputs": ({"model": Pair}, TypeError, r"^model must return one tensor, got tuple"),
    "model: softmax at the end": ({"model": lambda: nn.Sequential(mlp(3), nn.Softmax(1))}, ValueError, r"model's output.*Softmax.*logits"),
    "model: features overflow": ({"model": Exploding}, ValueError, r"the model's features are not finite"),
    "model: features overflow, full objective": ({"model": Exploding, "method": "gauss-newton"}, ValueError, r"the model's features are not finite"),
    "model: on another device": ({"model": lambda: mlp(3).to(META)}, ValueError, r"^inputs is on device 'cpu' but the model is on 'meta'"),
    "head: missing": ({"method": gnvpro.methods.GNvpro(head="7")}, ValueError, r"^head='7' is not a module of the model"),
    "head: not a string": ({"method": gnvpro.methods.GNvpro(head=-1)}, TypeError, r"^head must be the name"),
    "head: not linear": ({"method": gnvpro.methods.GNvpro(head="1")}, ValueError, r"^head='1' is nn\.Tanh"),
    "head: not the last": ({"method": gnvpro.methods.GNvpro(head="0")}, ValueError, r"^head='0' does not compute the model's output"),
    "head: frozen": ({"model": head_frozen}, ValueError, r"^head '4' has requires_grad=False"),
    "head: weight norm": ({"model": head_normed}, ValueError, r"^head '4' has a parametrised weight"),
    "head: shares parameters": ({"model": TiedHead}, ValueError, r"'middle\.weight' is shared between the head 'fc' and the features"),
    # validation
    "validation: not a pair": ({"validation": X}, TypeError, r"^validation must be a pair"),
    "validation: four": ({"validation": (X, LABELS, LABELS, LABELS)}, TypeError, r"^validation must be a pair"),
    "validation: weights too few": (
        {"validation": (X, LABELS, LABELS[:2])},
        ValueError,
        r"^validation weights must have shape",
    ),
    "validation: counts differ": ({"validation": (X, LABELS[:5])}, ValueError, r"^validation targets has 5 samples"),
    "validation: empty": ({"validation": (X[:0], LABELS[:0])}, ValueError, r"^validation inputs is empty"),
    "validation: NaN": ({"validation": (with_value(X, math.nan), LABELS)}, ValueError, r"^validation inputs holds NaN"),
    "validation: label out of range": ({"validation": (X, LABELS + 3)}, ValueError, r"^validation targets must be class labels"),
    "validation: other columns": ({"validation": (torch.zeros(5, 7, dtype=F64), LABELS[:5])}, ValueError, r"validation inputs of shape \(5, 7\)"),
    "validation: another device": ({"validation": (X.to(META), LABELS)}, ValueError, r"^validation inputs is on device 'meta'"),
}  # fmt: skip


def state_of(model):
    if not isinstance(model, nn.Module):
        return None
    tensors = {
        k: v.clone() for k, v in model.state_dict().items() if not isinstance(v, nn.parameter.UninitializedTensorMixin)
    }
    modes = [m.training for m in model.modules()]
    hooks = sum(len(m._forward_hooks) for m in model.modules())
    return tensors, modes, hooks


def same(before, after):
    if before is None:
        return after is None
    tensors = all(
        after[0][k].is_meta or torch.equal(torch.nan_to_num(v), torch.nan_to_num(after[0][k]))
        for k, v in before[0].items()
    )
    return tensors and before[0].keys() == after[0].keys() and before[1:] == after[1:]


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_by_name_before_any_work_with_the_model_untouched(what):
    changes, error, message = BAD[what]
    arguments: dict[str, Any] = {
        "model": lambda: mlp(3),
        "inputs": X,
        "targets": LABELS,
        "loss": "multinomial",
        "work": 50,
    }
    arguments.update(changes)
    model = arguments.pop("model")()
    if isinstance(model, nn.Module):
        model.double()
        model.train()
        next(model.children()).eval()  # a non-default mode, to be restored
    before = state_of(model)
    records: list[Any] = []
    arguments.setdefault("listeners", records.append)
    with pytest.raises(error, match=message):
        gnvpro.train(model, arguments.pop("inputs"), arguments.pop("targets"), **arguments)
    assert records == []
    assert same(before, state_of(model))


BAD_SETTINGS: dict[str, tuple[Any, type[Exception], str]] = {
    "memory: zero": (lambda: gnvpro.methods.GNvpro(memory=0), ValueError, r"^GNvpro: memory must be above 0"),
    "memory: infinite": (lambda: gnvpro.methods.LBFGSvpro(memory=math.inf), ValueError, r"^LBFGSvpro: memory must be above 0 and finite"),
    "memory: a string": (lambda: gnvpro.methods.TorchOptimizer(Adam, memory="4GB"), TypeError, r"^TorchOptimizer: memory must be a number, got .4GB"),
    "seed: a fraction": (lambda: gnvpro.methods.AdamVPro(seed=0.5), TypeError, r"^AdamVPro: seed must be a whole number"),
    "seed: negative": (lambda: gnvpro.methods.TorchOptimizer(NESTEROV, seed=-1), ValueError, r"^TorchOptimizer: seed must be at least 0"),
    "levels: zero": (lambda: gnvpro.methods.GaussNewton(levels=0), ValueError, r"^GaussNewton: levels must be at least 1"),
    "Krylov: rank zero": (lambda: gnvpro.solvers.Krylov(max_rank=0), ValueError, r"^Krylov: max_rank must be at least 1, got 0"),
    "Krylov: a fraction": (lambda: gnvpro.solvers.Krylov(max_rank=2.5), TypeError, r"^Krylov: max_rank must be a whole number"),
    "Krylov: negative tolerance": (lambda: gnvpro.solvers.Krylov(rtol=-0.1), ValueError, r"^Krylov: rtol must be at least 0"),
    "Hybrid": (lambda: gnvpro.solvers.Hybrid(max_rank=0), ValueError, r"^Hybrid: max_rank must be at least 1"),
    "Auto: rank": (lambda: gnvpro.solvers.Auto(max_rank=0), ValueError, r"^Auto: max_rank must be at least 1"),
    "Auto: tolerance": (lambda: gnvpro.solvers.Auto(rtol=math.nan), ValueError, r"^Auto: rtol must be at least 0 and finite"),
    "Dense: step control": (
        lambda: gnvpro.solvers.Dense(step_control="damped"),
        ValueError,
        r"^Dense: step_control='damped' is not known; did you mean 'damping'",
    ),
    "Dense: scaling": (lambda: gnvpro.solvers.Dense(scaling=-1), ValueError, r"^Dense: scaling must be at least 0"),
    "Adam: rate": (lambda: gnvpro.methods.TorchOptimizer(Adam, lr=-1), ValueError, r"^TorchOptimizer: lr must be above 0 and finite, got -1"),
    "Adam: no rate": (lambda: gnvpro.methods.TorchOptimizer(Adam, lr=math.nan), ValueError, r"^TorchOptimizer: lr must be above 0 and finite"),
    "Adam: batch": (lambda: gnvpro.methods.TorchOptimizer(Adam, batch_size=0), ValueError, r"^TorchOptimizer: batch_size must be at least 1"),
    "Nesterov: rate": (lambda: gnvpro.methods.TorchOptimizer(NESTEROV, lr=0.0), ValueError, r"^TorchOptimizer: lr must be above 0"),
    "TorchOptimizer: a name": (lambda: gnvpro.methods.TorchOptimizer("adam"), TypeError, r"^TorchOptimizer: factory must be a class .*got 'adam'"),
    "TorchOptimizer: no optimiser": (lambda: gnvpro.methods.TorchOptimizer(dict), ValueError, r"^TorchOptimizer: factory=.*dict.* fails"),
    "TorchOptimizer: another thing": (lambda: gnvpro.methods.TorchOptimizer(lambda p, lr: lr), TypeError, r"must return a torch.optim.Optimizer, got 0.001"),
    "TorchOptimizer: L-BFGS": (lambda: gnvpro.methods.TorchOptimizer(torch.optim.LBFGS), ValueError, r"use method=.lbfgs-vpro"),
    "LBFGSvpro": (lambda: gnvpro.methods.LBFGSvpro(history_size=0), ValueError, r"^LBFGSvpro: history_size must be at least 1"),
    "Batches: size": (lambda: gnvpro.methods.Batches(0), ValueError, r"^Batches: size must be at least 1"),
    "Batches: iterations": (lambda: gnvpro.methods.Batches(8, iterations=0), ValueError, r"^Batches: iterations must be at least 1"),
    "Batches: sweeps": (lambda: gnvpro.methods.Batches(8, sweeps=0.5), TypeError, r"^Batches: sweeps must be a whole number"),
    "Checkpoint": (lambda: gnvpro.Checkpoint("run", every=0), ValueError, r"^Checkpoint: every must be at least 1"),
    "GNvpro: solver": (lambda: gnvpro.methods.GNvpro(solver="densse"), ValueError, r"^solver='densse' is not known; did you mean 'dense'"),
    "GNvpro: batches": (lambda: gnvpro.methods.GNvpro(batches=64), TypeError, r"^GNvpro: batches must be .*gnvpro\.methods\.Batches.*got 64"),
    "GaussNewton: solver": (lambda: gnvpro.methods.GaussNewton(solver=gnvpro.solvers.Hybrid()), ValueError, r"method='gauss-newton' takes its steps from Krylov"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD_SETTINGS)
def test_a_setting_that_cannot_be_is_refused_by_its_name_where_it_is_made(what):
    make, error, message = BAD_SETTINGS[what]
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("kind", "foreign"),
    [
        (gnvpro.methods.TorchOptimizer, "max_rank"),
        (gnvpro.methods.TorchOptimizer, "solver"),
        (gnvpro.methods.TorchOptimizer, "batches"),
        (gnvpro.methods.GNvpro, "lr"),
        (gnvpro.methods.LBFGSvpro, "solver"),
        (gnvpro.solvers.Krylov, "scaling"),
        (gnvpro.solvers.Dense, "max_rank"),
    ],
)
def test_what_a_method_does_not_use_it_does_not_take(kind, foreign):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{foreign}'"):
        kind(**{foreign: 3})


def test_train_takes_at_most_twenty_arguments_beside_policy_and_seed_and_says_what_each_is_when_left_out():
    parameters = inspect.signature(gnvpro.train).parameters
    assert len(parameters.keys() - {"policy", "seed"}) <= 20
    text = inspect.getdoc(gnvpro.train)
    described = dict(re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z|^\w)", text, flags=re.MULTILINE | re.DOTALL))
    for name, parameter in parameters.items():
        assert name in described, f"{name} is not in the docstring's Args"
        if parameter.default is not inspect.Parameter.empty and name not in ("method", "keep"):
            assert re.search(r"[Ll]eft\s+out|[Dd]efault", described[name]), f"{name}: what happens when it is left out?"


def test_a_name_is_short_for_the_object_with_its_defaults():
    methods = {
        "gnvpro": gnvpro.methods.GNvpro(),
        "lbfgs-vpro": gnvpro.methods.LBFGSvpro(),
        "adam": gnvpro.methods.TorchOptimizer(Adam),
    }
    methods |= {
        "gauss-newton": gnvpro.methods.GaussNewton(),
        "nesterov": gnvpro.methods.TorchOptimizer(NESTEROV),
        "adam-vpro": gnvpro.methods.AdamVPro(),
    }
    solvers = {
        "auto": gnvpro.solvers.Auto(),
        "dense": gnvpro.solvers.Dense(),
        "hybrid": gnvpro.solvers.Hybrid(),
        "krylov": gnvpro.solvers.Krylov(),
    }
    assert set(methods) == set(METHODS)
    assert set(solvers) == set(SOLVERS)
    for name, method in methods.items():
        assert as_method(name, None) == method
    for name, solver in solvers.items():
        assert (
            as_method("gnvpro", name)
            == gnvpro.methods.GNvpro(solver=solver)
            == as_method(gnvpro.methods.GNvpro(), solver)
        )


def test_numpy_arrays_and_lists_are_taken():
    losses = []
    for inputs, targets in ((X, LABELS), (X.numpy(), LABELS.numpy()), (X.tolist(), LABELS.tolist())):
        torch.manual_seed(0)
        losses.append(gnvpro.train(mlp(3).double(), inputs, targets, loss="multinomial", work=0).history[0].loss)
    assert losses[0] == losses[1] == pytest.approx(losses[2], rel=1e-6)  # lists of floats become float32


def test_data_that_require_gradients_are_left_without():
    inputs, targets = X.clone().requires_grad_(), REAL.clone().requires_grad_()
    gnvpro.train(mlp(3).double(), inputs, targets, loss="least_squares", work=20)
    assert inputs.grad is None
    assert targets.grad is None


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(4)], ids=["dropout", "batchnorm"])
def test_dropout_and_batch_norm_warn_once_and_their_mode_comes_back(layer):
    model = nn.Sequential(nn.Linear(2, 4), layer, nn.Tanh(), nn.Linear(4, 3)).double()
    model[2].eval()
    modes = [m.training for m in model.modules()]
    buffers = {k: v.clone() for k, v in model.named_buffers()}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gnvpro.train(model, X, LABELS, loss="multinomial", solver="dense", work=30)
    assert len(caught) == 1
    assert type(layer).__name__ in str(caught[0].message)
    assert caught[0].filename == __file__
    assert [m.training for m in model.modules()] == modes
    assert all(v.shape == buffers[k].shape for k, v in model.named_buffers())


def test_a_model_in_evaluation_mode_does_not_warn():
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 3)).double().eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gnvpro.train(model, X, LABELS, loss="multinomial", work=0)
    assert caught == []
    assert not model.training
