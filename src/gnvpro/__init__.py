"""Train any PyTorch network that ends in a linear layer by eliminating that layer.

    outputs = features(inputs, theta) W'          W(theta) = the best head for these features

Variable projection trains theta alone, on the reduced objective Phi(W(theta), theta), with a Gauss-Newton-Krylov
trust-region method; for least squares, logistic and multinomial regression, and any other convex loss.

Methods are in `gnvpro.methods`, solvers of their steps in `gnvpro.solvers`, eliminators of the head in `gnvpro.heads`, and
the protocols for methods, solvers, losses and listeners of your own in `gnvpro.extend`. Every name is imported at its first
use, so that `import gnvpro` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnvpro import curves, extend, heads, losses, methods, networks, pde, solvers, surrogate
    from gnvpro.minimize.status import Status
    from gnvpro.objectives.problem import Problem
    from gnvpro.problem.penalties import Tikhonov, time_differences
    from gnvpro.sklearn.classifier import GNvproClassifier
    from gnvpro.sklearn.regressor import GNvproRegressor
    from gnvpro.stochastic.reduced_loss import ReducedLoss
    from gnvpro.training import listeners
    from gnvpro.training.checkpoint import Checkpoint
    from gnvpro.training.inspection import inspect
    from gnvpro.training.result import Result
    from gnvpro.training.saved_model import load
    from gnvpro.training.scores import Metric
    from gnvpro.training.train import train

__all__ = [
    "Checkpoint",
    "GNvproClassifier",
    "GNvproRegressor",
    "Metric",
    "Problem",
    "ReducedLoss",
    "Result",
    "Status",
    "Tikhonov",
    "curves",
    "extend",
    "heads",
    "inspect",
    "listeners",
    "load",
    "losses",
    "methods",
    "networks",
    "pde",
    "solvers",
    "surrogate",
    "time_differences",
    "train",
]

_HOMES = {  # of each function and class, and of the one module that does not lie in gnvpro itself
    "Checkpoint": "gnvpro.training.checkpoint",
    "GNvproClassifier": "gnvpro.sklearn",
    "GNvproRegressor": "gnvpro.sklearn",
    "Metric": "gnvpro.training.scores",
    "Problem": "gnvpro.objectives.problem",
    "ReducedLoss": "gnvpro.stochastic.reduced_loss",
    "Result": "gnvpro.training.result",
    "Status": "gnvpro.minimize.status",
    "Tikhonov": "gnvpro.problem.penalties",
    "inspect": "gnvpro.training.inspection",
    "listeners": "gnvpro.training.listeners",
    "load": "gnvpro.training.saved_model",
    "time_differences": "gnvpro.problem.penalties",
    "train": "gnvpro.training.train",
}


def __getattr__(name: str) -> object:
    """Import a public name at its first use."""
    if name == "__version__":
        value: object = _version()
    elif name in __all__:
        value = _imported(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_advice(name)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__file__", "__name__", "__path__", "__version__"]


def _imported(name: str) -> object:
    from importlib import import_module

    home = _HOMES.get(name, f"{__name__}.{name}")
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "sklearn":
            raise
        from gnvpro.extras import how_to_get

        raise ImportError(f"{name} needs scikit-learn; {how_to_get('sklearn')}") from error
    return getattr(module, name, module)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("gnvpro")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"


def _advice(name: str) -> str:
    """Return advice for a missing name: the public module that has it, else the nearest public name."""
    from importlib import import_module

    if name.startswith("_"):
        return ""
    if name[0].isupper():  # modules have names in lower case, and must not import torch
        for module in ("methods", "solvers", "heads", "losses", "extend", "networks"):
            if name in import_module(f"{__name__}.{module}").__all__:
                return f"; write: from gnvpro.{module} import {name}"
    from gnvpro.arguments import suggestion

    return f"; {suggestion(name, __all__)}"
