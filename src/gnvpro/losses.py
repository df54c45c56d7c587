"""Losses for `loss=...`: each is convex in the outputs, and has a name that may stand for it.

    HalfSquaredError    least squares                    "least_squares", "mse", "squared_error"
    Logistic            yes or no for each output        "logistic", "log_loss" if there is one output
    Multinomial         one of several classes           "multinomial", "cross_entropy", "log_loss"

A loss of your own implements `gnvpro.extend.Loss`.
"""

from gnvpro.problem.loss import HalfSquaredError, Logistic, Multinomial

__all__ = [
    "HalfSquaredError",
    "Logistic",
    "Multinomial",
]
