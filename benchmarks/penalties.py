"""Compare penalties from the data with fixed ones: on the paper's problems, and with the best of a decade grid.

    python benchmarks/penalties.py paper [cdr|dcr|ellipse|indian-pines]
                                                                "auto" against the paper's values, same work, test error
    python benchmarks/penalties.py grid                         "auto" against the best of a decade grid by cross-validation
    python benchmarks/penalties.py start                        first penalties that grow with a unit's inputs, for all networks
                                                                or up to 5000 weights: Indian Pines, validation accuracy

DCR: 1200 samples of a coarser mesh, simulated in a minute; 300 work units, one level of depth 8.
"""

from __future__ import annotations

import dataclasses
import sys
import time
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.model_selection import KFold

import gnvpro
from gnvpro import GNvproRegressor, Tikhonov
from gnvpro.data import dcr
from gnvpro.experiments.catalogue import EXPERIMENTS, scaled
from gnvpro.policy import HeadPolicy, Policy

SEEDS = (0, 1, 2)
DECADES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)


def paper(name: str) -> None:
    experiment = EXPERIMENTS[name]
    settings = experiment.recommended
    training = settings.methods["gnvpro"]
    operator = settings.operator()
    choices: dict[str, dict[str, Any]] = {
        "fixed": {"theta_penalty": Tikhonov(settings.theta_penalty, operator), "head_penalty": settings.head_penalty},
        "auto": {"theta_penalty": Tikhonov("auto", operator), "head_penalty": "auto"},
    }
    for seed in SEEDS:
        coarse = name == "dcr"
        split = dcr.load(1500, 24, seed=seed) if coarse else scaled(experiment.load(seed, None), settings).split
        inputs, targets = split.train
        for label, penalties in choices.items():
            torch.manual_seed(seed)
            model = experiment.network(inputs.shape[1], 8 if coarse else training.depth)
            method = dataclasses.replace(training.method, levels=1 if coarse else training.levels)
            work = 300 if coarse else training.work
            begun = time.process_time()
            result = gnvpro.train(model, inputs, targets, loss=experiment.loss, method=method, work=work, **penalties)
            error = test_error(result.model, *split.test, experiment.loss)
            print(
                f"{name} seed {seed} {label:6} {error} {time.process_time() - begun:.1f} s {result.chosen or ''}",
                flush=True,
            )


def test_error(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor, loss: str) -> str:
    with torch.no_grad():
        outputs = model(inputs)
        if loss == "logistic":
            return (
                f"log loss {float(gnvpro.losses.Logistic().value(outputs, targets.reshape(-1, 1).double()).mean()):.4f}"
            )
        if loss == "multinomial":
            right = 100 * float((outputs.argmax(1) == targets).double().mean())
            return f"accuracy {right:.2f}, log loss {float(torch.nn.functional.cross_entropy(outputs, targets)):.4f}"
        return f"relative error {float(((outputs - targets).norm(dim=1) / targets.norm(dim=1)).mean()):.5f}"


def start() -> None:
    experiment = EXPERIMENTS["indian-pines"]
    training = experiment.recommended.methods["gnvpro"]
    for seed in SEEDS[1:]:
        split = scaled(experiment.load(seed, None), experiment.recommended).split
        for limit in (5000, 10**9):
            torch.manual_seed(seed)
            model = experiment.network(split.train[0].shape[1], training.depth)
            result = gnvpro.train(
                model,
                *split.train,
                loss=experiment.loss,
                method=training.method,
                work=training.work,
                theta_penalty="auto",
                head_penalty="auto",
                policy=Policy(head=HeadPolicy(strong_start=limit)),
            )
            print(
                f"seed {seed} limit {limit}: {test_error(result.model, *split.validation, experiment.loss)}", flush=True
            )


def grid() -> None:
    rng = np.random.default_rng(0)
    X, y = make_friedman1(1150, 6, random_state=0)
    smooth = (X, (y - y.mean()) / y.std() + 0.02 * rng.normal(size=len(y)))
    for name, (X, y), n in (("smooth", smooth, 150), ("diabetes", load_diabetes(return_X_y=True), 200)):
        folds = list(KFold(3, shuffle=True, random_state=0).split(X[:n]))
        rest = np.arange(n, len(X))
        scores = {a: np.mean([error(X, y, *fold, tied(a, 120)) for fold in folds]) for a in DECADES}
        best = min(scores, key=scores.__getitem__)
        fixed, auto = (error(X, y, np.arange(n), rest, settings) for settings in (tied(best, 400), {}))
        print(f"{name}: auto {auto:.4g}, best fixed value ({best:g}) {fixed:.4g}", flush=True)


def tied(alpha: float, work: float) -> dict[str, float]:
    return {"theta_penalty": alpha, "head_penalty": alpha, "work": work}


def error(X: np.ndarray, y: np.ndarray, seen: np.ndarray, unseen: np.ndarray, settings: dict[str, Any]) -> float:
    model = GNvproRegressor(hidden=8, random_state=0, **settings).fit(X[seen], y[seen])
    return float(np.sqrt(np.mean((model.predict(X[unseen]) - y[unseen]) ** 2)))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if sys.argv[1] == "grid":
        grid()
    elif sys.argv[1] == "start":
        start()
    else:
        for name in sys.argv[2:] or ("ellipse", "cdr", "dcr"):
            paper(name)
