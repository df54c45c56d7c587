"""Curves: separable nonlinear least squares with certified answers and standard errors.

    y = sum_j c_j z_j(x; theta) + noise

The coefficients c are eliminated (variable projection), one set per curve; the library's trust region searches theta, which all
curves share. Derivatives are exact, no condition number is squared, and `solved` is checked independently of the search.

    from gnvpro import curves
    fit = curves.fit(lambda x, k1, k2: [torch.exp(-k1 * x), torch.exp(-k2 * x), 1.0], x, y, start={"k1": 0.3, "k2": 5.0})

    fitting      `fit`, from arguments to result   fit_arguments    arguments, checked         basis         columns
    parameters   bounds, ties, units               coefficients     elimination by QR          profile       intervals
    search       from a start to a minimum         curve_objective  Phi(theta), its Jacobian   uncertainty   covariance, bands
    verify       what `solved` claims              robust           Huber's loss               fitted        `Fit`
"""

from gnvpro.curves.fitted import Fit
from gnvpro.curves.fitting import fit

__all__ = ["Fit", "fit"]
