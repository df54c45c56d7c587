"""Train any PyTorch network that ends in a linear layer by eliminating that layer.

    outputs = features(inputs, theta) W'          W(theta) = the best head for these features

Variable projection trains theta alone, on the reduced objective Phi(W(theta), theta), with a Gauss-Newton-Krylov
trust-region method; for least squares, logistic and multinomial regression, and any other convex loss.
"""

from typing import TYPE_CHECKING, Any

from gnvpro import networks
from gnvpro.training import listeners
from gnvpro.training.history import History, Record
from gnvpro.problem.losses import HalfSquaredError, Logistic, Loss, Multinomial
from gnvpro.head.newton import Newton, NewtonKrylov
from gnvpro.linalg.operators import LinearOperator
from gnvpro.problem.penalties import Tikhonov, time_differences
from gnvpro.methods.choose_solver import DenseSettings
from gnvpro.minimize.status import Status
from gnvpro.training.train import Result, train

if TYPE_CHECKING:
    from gnvpro.sklearn.estimators import GNvproClassifier as GNvproClassifier
    from gnvpro.sklearn.estimators import GNvproRegressor as GNvproRegressor

__version__ = "0.1.0"

__all__ = [
    "DenseSettings",
    "HalfSquaredError",
    "History",
    "LinearOperator",
    "Logistic",
    "Loss",
    "Multinomial",
    "Newton",
    "NewtonKrylov",
    "Record",
    "Result",
    "Status",
    "Tikhonov",
    "listeners",
    "networks",
    "time_differences",
    "train",
]


def __getattr__(name: str) -> Any:
    """The scikit-learn estimators, imported when asked for: nothing else here needs scikit-learn."""
    if name in ("GNvproClassifier", "GNvproRegressor"):
        try:
            from gnvpro.sklearn import estimators
        except ImportError as error:
            raise ImportError(f"{name} needs scikit-learn: pip install 'gnvpro[sklearn]'") from error
        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
