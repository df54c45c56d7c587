"""Estimators for scikit-learn."""

from gnvpro.sklearn.classifier import GNvproClassifier
from gnvpro.sklearn.regressor import GNvproRegressor

__all__ = ["GNvproClassifier", "GNvproRegressor"]
