"""Train any PyTorch network that ends in a linear layer by eliminating that layer.

    outputs = features(inputs, theta) W'          W(theta) = the best head for these features

Variable projection trains theta alone, on the reduced objective Phi(W(theta), theta), with a Gauss-Newton-Krylov
trust-region method; for least squares, logistic and multinomial regression, and any other convex loss.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from gnvpro import networks
from gnvpro.extras import how_to_get
from gnvpro.head.eliminator import Eliminator, HeadFit, WarmStart
from gnvpro.head.least_squares import LeastSquares
from gnvpro.head.newton import Newton, NewtonKrylov
from gnvpro.head.newton_cg import NewtonCG
from gnvpro.linalg.operators import LinearOperator
from gnvpro.methods.adam_vpro import AdamVPro
from gnvpro.methods.auto import Auto
from gnvpro.methods.gnvpro import GaussNewton, GNvpro
from gnvpro.methods.lbfgs import LBFGSvpro
from gnvpro.methods.protocol import Batches, Method, Running, Solver
from gnvpro.methods.solvers import Dense, Hybrid, Krylov, ModelSolver
from gnvpro.methods.stochastic import Adam, Nesterov
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import LocalModel, Step
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.problem import Problem
from gnvpro.problem.losses import HalfSquaredError, Logistic, Loss, Multinomial
from gnvpro.problem.penalties import Tikhonov, time_differences
from gnvpro.stochastic.batch_head import BatchHead
from gnvpro.stochastic.reduced_loss import ReducedLoss
from gnvpro.stochastic.rotated_adam import RotatedAdam
from gnvpro.training import listeners
from gnvpro.training.checkpoint import Checkpoint
from gnvpro.training.history import History, Record
from gnvpro.training.inspection import Inspection, inspect
from gnvpro.training.result import Result
from gnvpro.training.scores import Metric
from gnvpro.training.train import train

if TYPE_CHECKING:
    from gnvpro.sklearn.classifier import GNvproClassifier as GNvproClassifier
    from gnvpro.sklearn.regressor import GNvproRegressor as GNvproRegressor

try:
    __version__ = version("gnvpro")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "unknown"

__all__ = [
    "Adam",
    "AdamVPro",
    "Auto",
    "BatchHead",
    "Batches",
    "Checkpoint",
    "Dense",
    "Eliminator",
    "GNvpro",
    "GaussNewton",
    "HalfSquaredError",
    "HeadFit",
    "History",
    "Hybrid",
    "Inspection",
    "Krylov",
    "LBFGSvpro",
    "LeastSquares",
    "LinearOperator",
    "LocalModel",
    "Logistic",
    "Loss",
    "Method",
    "Metric",
    "ModelSolver",
    "Multinomial",
    "Nesterov",
    "Newton",
    "NewtonCG",
    "NewtonKrylov",
    "Problem",
    "Record",
    "ReducedLoss",
    "Result",
    "RotatedAdam",
    "Running",
    "Solver",
    "Status",
    "Step",
    "StepReport",
    "Tikhonov",
    "WarmStart",
    "inspect",
    "listeners",
    "networks",
    "time_differences",
    "train",
]


def __getattr__(name: str) -> Any:
    """The scikit-learn estimators, imported when asked for: nothing else here needs scikit-learn."""
    if name in ("GNvproClassifier", "GNvproRegressor"):
        try:
            from gnvpro import sklearn
        except ImportError as error:
            raise ImportError(f"{name} needs scikit-learn; {how_to_get('sklearn')}") from error
        return getattr(sklearn, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
