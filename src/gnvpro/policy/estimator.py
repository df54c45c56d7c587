"""Choices of the scikit-learn estimators: network, solver, and the samples that decisions are made on."""

from __future__ import annotations

from dataclasses import dataclass

from gnvpro.policy.rows import row

CHOICES, TABLES = "python -m benchmarks.estimator_choices", "python -m benchmarks.tables"


@dataclass(frozen=True)
class EstimatorPolicy:
    """Choices of the scikit-learn estimators: network, solver, and the samples that decisions are made on."""

    narrowest: int = row(16, "units", "least width of the hidden layer", TABLES)
    widest: int = row(64, "units", "largest width of the hidden layer", TABLES)
    exact_below: float = row(1e9, "operations", "exact steps if one costs at most this", CHOICES)
    matrix_rows: int = row(2000, "samples", "with more, exact steps take their matrix from so many", CHOICES)
    matrix_below: float = row(3e9, "operations", "such steps if one costs at most this; else hybrid steps", CHOICES)
    part_rows: int = row(4000, "samples", "least part of the rows that relevances are found from", CHOICES)
    part_share: float = row(0.25, "of the rows", "the part that relevances are found from, if it is larger", CHOICES)
    part_iterations: int = row(100, "iterations", "longest training on that part", CHOICES)
    batches_from: int = row(15_000, "samples", "train on random batches, with penalties found on a part", TABLES)
    batch_steps: int = row(2000, "steps", "length of a training on batches", TABLES)
    least_work: float = row(20.0, "work units", "shortest training on batches", TABLES)
    most_work: float = row(80.0, "work units", "longest training on batches", TABLES)
    smooth_below: float = row(0.01, "of a target's deviation", "noise below which a target counts as smooth", CHOICES)
    pilot_rows: int = row(
        1000, "samples", "try pieces of columns on so many first, if there are twice as many", CHOICES
    )
    pilot_iterations: int = row(25, "iterations", "length of that trial", CHOICES)
    pilot_behind: float = row(0.03, "log evidence per number", "deficit of the trial that rules out pieces", CHOICES)
    pieces_from: int = row(500, "samples", "regressors consider columns in pieces", CHOICES)
    classes_pieces_from: int = row(1000, "samples", "classifiers see columns in pieces", CHOICES)
    column_gain: float = row(1.0, "log evidence per column", "gain that earns one penalty per column", CHOICES)
    calibration_rows: int = row(5000, "samples", "most rows that calibrate prediction intervals", TABLES)
    targets_alone: int = row(8, "targets", "try a network of its own for at most so many, noisiest first", TABLES)
