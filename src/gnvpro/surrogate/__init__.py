"""Surrogates: from samples of a simulator to a model with derivatives and uncertainty.

    f(x) = trend(x) + sum_i w_i k(x, x_i; theta)

The weights w and the trend are eliminated; few lengths theta remain. The norm of the function space is the penalty on w.

    from gnvpro.surrogate import Surrogate
    s = Surrogate(random_state=0).fit(X, y, gradients=dY)
    mean, std = s.predict(X_new, return_std=True)
    slopes, curvature = s.gradient(X_new), s.hessian(X_new)

    correlation  one input, with derivatives     kernel      products over inputs      trend       polynomial columns
    likelihood   weights eliminated, lengths     kriging     the model at points       member      values or logarithms
    candidates   which form                      given       arguments, checked        surrogate   `Surrogate`, `fit`
    sobol        sensitivity                     distribution  of inputs, of outputs   acquisition the next samples
    explore      runs a simulator, journal       deploy      ONNX, torch.export
"""

from gnvpro.surrogate.explore import explore
from gnvpro.surrogate.surrogate import OutsideWarning, Surrogate, fit

__all__ = ["OutsideWarning", "Surrogate", "explore", "fit"]
