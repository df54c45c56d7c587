"""Train any PyTorch network that ends in a linear layer by eliminating that layer.

    outputs = features(inputs, theta) W'          W(theta) = the best head for these features

Variable projection trains theta alone, on the reduced objective Phi(W(theta), theta), with a Gauss-Newton-Krylov
trust-region method; for least squares, logistic and multinomial regression, and any other convex loss.
"""

from typing import TYPE_CHECKING, Any

from gnvpro import listeners, networks
from gnvpro.history import History, Record
from gnvpro.losses import HalfSquaredError, Logistic, Loss, Multinomial
from gnvpro.newton import Newton, NewtonKrylov
from gnvpro.operators import LinearOperator
from gnvpro.penalties import Tikhonov, time_differences
from gnvpro.solvers import DenseSettings
from gnvpro.status import Status
from gnvpro.training import Result, train

if TYPE_CHECKING:
    from gnvpro.estimators import GNvproClassifier as GNvproClassifier
    from gnvpro.estimators import GNvproRegressor as GNvproRegressor

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
            from gnvpro import estimators
        except ImportError as error:
            raise ImportError(f"{name} needs scikit-learn: pip install 'gnvpro[sklearn]'") from error
        return getattr(estimators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
