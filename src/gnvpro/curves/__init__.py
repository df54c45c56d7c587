"""Curves: separable nonlinear least squares with certified answers and standard errors.

    y = sum_j c_j z_j(x; theta) + noise

The coefficients c are eliminated (variable projection), one set per curve; the library's trust region searches theta, which all
curves share. Derivatives are exact, no condition number is squared, and `solved` is checked independently of the search.

    from gnvpro import curves
    fit = curves.fit(lambda x, k1, k2: [torch.exp(-k1 * x), torch.exp(-k2 * x), 1.0], x, y, start={"k1": 0.3, "k2": 5.0})

    data         arguments, checked          basis        columns and derivatives        parameters   bounds, ties, units
    eliminate    coefficients by QR          objective    Phi(theta) and its Jacobian    search       from a start to a minimum
    verify       what `solved` claims        uncertainty  covariance, bands              profile      intervals
    robust       Huber's loss                result       `Fit`
"""

from gnvpro.curves.fit import fit
from gnvpro.curves.fitted import Fit

__all__ = ["Fit", "fit"]
