"""Protocols and values for methods, solvers, eliminators, losses and listeners of your own.

Loss                                            what a loss computes
Listener, History, Record                       what a listener gets
Method, Start, Budget                           a way to train, and what it starts from
State, MethodState, Iterate, iterate_at, Cache  the state of a method, and values that can be computed again
StepReport                                      what a step tried
Solver, ModelSolver, LocalModel, Step           what makes the steps of GNvpro
ReducedPoint                                    the reduced objective at one theta
Eliminator, HeadFit, WarmStart, LinearOperator  what eliminates the head
Inspection                                      what `gnvpro.inspect` returns
"""

from gnvpro.head.eliminator import Eliminator, HeadFit, WarmStart
from gnvpro.linalg.operators import LinearOperator
from gnvpro.methods.cache import Cache
from gnvpro.methods.protocol import Budget, Iterate, Method, MethodState, Solver, Start, iterate_at
from gnvpro.methods.step_solvers import ModelSolver
from gnvpro.minimize.step_rules import LocalModel, Step
from gnvpro.minimize.trust_region import StepReport
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.problem.loss import Loss
from gnvpro.state import State
from gnvpro.training.history import History, Record
from gnvpro.training.inspection import Inspection
from gnvpro.training.listeners import Listener

__all__ = [
    "Budget",
    "Cache",
    "Eliminator",
    "HeadFit",
    "History",
    "Inspection",
    "Iterate",
    "LinearOperator",
    "Listener",
    "LocalModel",
    "Loss",
    "Method",
    "MethodState",
    "ModelSolver",
    "Record",
    "ReducedPoint",
    "Solver",
    "Start",
    "State",
    "Step",
    "StepReport",
    "WarmStart",
    "iterate_at",
]
