"""Reasons why a minimisation ended, as sentences."""

from __future__ import annotations

import enum


class Status(enum.Enum):
    """Why a solver or a training run stopped.

    >>> print(Status.WORK_SPENT)
    The work budget is spent.
    """

    RUNNING = "The run has not finished."
    CONVERGED = "The gradient is below its tolerance."
    SETTLED = "The objective has settled: it hardly falls any more for the work it takes."
    WORK_SPENT = "The work budget is spent."
    SECONDS_SPENT = "The seconds are spent."
    ITERATIONS_SPENT = "The iteration cap is reached."
    SWEEPS_DONE = "All sweeps over the batches are done."
    STEP_TOO_SMALL = "No step, however short, reduces the objective any more; the best accepted model is kept."
    NOT_FINITE = "The derivatives at the last accepted model are not finite; that model is kept."
    NO_BETTER = "The validation score has not improved for as long as `patience` allows."
    TURNED_UP = "The validation loss has turned up, and was lowest in the first half of the work."
    NOT_SOLVED = "The equations are not solved: the estimated error of the field is above the tolerance."
    HEAD_ONLY = "The features have no trainable parameters; the head was eliminated, which is all there is to train."

    def __str__(self) -> str:
        return self.value
