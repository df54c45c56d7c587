"""Losses for `loss=...`: each is convex in the outputs, and has a name that may stand for it.

    HalfSquaredError    least squares                    "least_squares"
    Logistic            two classes, one output each     "logistic"
    Multinomial         several classes                  "multinomial"

A loss of your own implements `gnvpro.extend.Loss`.
"""

from gnvpro.problem.losses import HalfSquaredError, Logistic, Multinomial

__all__ = [
    "HalfSquaredError",
    "Logistic",
    "Multinomial",
]
