"""Differential equations to solve, as data; how they are solved by several methods; their part of the report."""

from gnvpro.experiments.equations.catalogue import EQUATIONS
from gnvpro.experiments.equations.posed import EquationProblem, Posed

__all__ = ["EQUATIONS", "EquationProblem", "Posed"]
