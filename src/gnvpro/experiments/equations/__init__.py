"""Differential equations to solve, as data; how they are solved by several methods; their part of the report."""

from gnvpro.experiments.equations.equation_catalogue import EQUATIONS
from gnvpro.experiments.equations.posed import CatalogueEntry, PosedEquations

__all__ = ["EQUATIONS", "CatalogueEntry", "PosedEquations"]
