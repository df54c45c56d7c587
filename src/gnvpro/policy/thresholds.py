"""Every threshold that selects behaviour: one frozen dataclass per subject, one field per threshold."""

from __future__ import annotations

from dataclasses import dataclass

from gnvpro.policy.row import row

AUTO = "python -m benchmarks.auto"
STOCHASTIC = "python -m benchmarks.stochastic"
FEATURES = "python -m benchmarks.features"
STOPPING = "python -m benchmarks.stopping"
NOISE = "python -m pytest -k noise tests/sklearn/test_no_worse_than_simple.py"
CHOICES, TABLES = "python -m benchmarks.estimator_choices", "python -m benchmarks.tables"


@dataclass(frozen=True)
class SolverPolicy:
    """Choice between exact steps, from the whole matrix, and cheap ones, from gradients."""

    exact_below: float = row(60.0, "s", "predicted cost of one exact step above which none is tried", AUTO)
    cheap_first: float = row(6.0, "cheap steps", "cost of an exact step from which cheap steps come first", AUTO)
    judged_after: int = row(6, "exact steps", "fewest exact steps before a standstill is an end", AUTO)
    least_window: int = row(10, "cheap steps", "fewest cheap steps that should halve the objective", AUTO)
    most_window: int = row(100, "cheap steps", "most cheap steps that should halve the objective", AUTO)
    spaces_after: int = row(60, "cheap steps", "quasi-Newton steps before the first large Krylov space", AUTO)
    rows_per_direction: float = row(3.0, "rows", "rows per direction in the matrix of a part of the samples", AUTO)


@dataclass(frozen=True)
class BatchPolicy:
    """When training uses random batches, and for how long."""

    begin_from: int | None = row(10_000, "samples", "start on random batches; None: never", "python -m benchmarks.auto")
    steps: int = row(8000, "steps", "length of the training on batches", STOCHASTIC)
    least_passes: float = row(40.0, "passes", "shortest training on batches", STOCHASTIC)
    most_passes: float = row(600.0, "passes", "longest training on batches", STOCHASTIC)
    alone: float = row(4.0, "times", "longer training on batches if no exact steps can follow", STOCHASTIC)


@dataclass(frozen=True)
class EquationPolicy:
    """Thresholds of the trials in which `pde.solve` chooses the features of a field."""

    trial_share: float = row(0.3, "of the seconds", "for trials of features, and for all times before slabs", FEATURES)
    trial_operations: float = row(1e11, "operations", "the same if no seconds are given", FEATURES)
    operations_per_second: float = row(4e10, "operations", "of trials, on one core", FEATURES)
    trial_rows: int = row(1500, "rows", "of all equations in trials, by fewer points", FEATURES)
    first_steps: int = row(8, "steps", "of the mean candidate in the first round of trials", FEATURES)
    longer: float = row(3.0, "times", "operations of a round relative to the one before", FEATURES)
    march_above: float = row(1e-6, "of the zero field's misfit", "march in time if trials end above", FEATURES)
    first_slabs: int = row(8, "slabs", "length of the first slab of time, as a share of all", FEATURES)
    most_slabs: int = row(10**7, "slabs", "shortest slab, as a share of all, without space", FEATURES)
    slab_growth: float = row(1.5, "times", "length of a slab relative to the last that was solved", FEATURES)
    slab_error: float = row(1e-8, "relative error", "halve a slab whose estimated error is above", FEATURES)
    worst_slab: float = row(1e-3, "relative error", "stop at a shortest slab whose estimated error is above", FEATURES)
    slab_steps: int = row(60, "steps", "most steps on a slab", FEATURES)
    keep_within: float = row(10.0, "times the best misfit", "candidates that go on to the next round", FEATURES)

    def operations_in(self, seconds: float) -> float:
        """Operations that fit into the share of the seconds that trials may take."""
        return self.trial_share * seconds * self.operations_per_second


@dataclass(frozen=True)
class StoppingPolicy:
    """When a run ends by itself."""

    window: float = row(0.25, "of the work so far", "length of the window in which the objective must fall", STOPPING)
    least_work: float = row(100.0, "work units", "shortest window", STOPPING)
    least_iterations: int = row(20, "iterations", "shortest window", STOPPING)
    fall: float = row(0.01, "of the objective", "settled if it falls by less in a window", STOPPING)
    pays: float = row(0.05, "of the objective per 100 work units", "the same for a run without any limit", STOPPING)
    gradient: float = row(1e-9, "of the first gradient's norm", "converged if the gradient is at most this", STOPPING)
    overrun: float = row(
        0.5, "of the given seconds", "no step begins that is predicted to exceed them by more", STOPPING
    )


@dataclass(frozen=True)
class HeadPolicy:
    """Elimination of the head for losses other than least squares, and its exact uncertainty."""

    newton_entries: int = row(
        1500,
        "entries",
        "eliminate heads up to this size by Newton's method with the whole Hessian",
        "python -m benchmarks.heads",
    )
    strong_start: int = row(
        5000,
        "weights",
        "begin the search for penalties from strong ones, for up to so many",
        "python -m benchmarks.penalties",
    )
    evidence_below: float = row(
        1.5,
        "s",
        "predicted cost of the joint matrix of theta and head up to which it is assembled",
        "python -m benchmarks.penalties",
    )


@dataclass(frozen=True)
class MemoryPolicy:
    """Numbers of samples and threads that a computation uses."""

    one_thread: int = row(
        200_000, "numbers", "train on one thread if the inputs hold fewer", "python -m benchmarks.race run"
    )
    looked_at: int = row(
        5000,
        "samples",
        "most samples that `inspect`, counts of parameters and readings on batches look at",
        "python -m benchmarks.tables",
    )


@dataclass(frozen=True)
class EstimatorPolicy:
    """Choices of the scikit-learn estimators: network, solver, and the samples that decisions are made on."""

    narrowest: int = row(16, "units", "least width of the hidden layer", TABLES)
    widest: int = row(64, "units", "largest width of the hidden layer", TABLES)
    exact_below: float = row(5e8, "operations", "exact steps if one costs at most this", CHOICES)
    matrix_rows: int = row(2000, "samples", "with more, exact steps take their matrix from so many", CHOICES)
    matrix_below: float = row(1.5e9, "operations", "such steps if one costs at most this; else hybrid steps", CHOICES)
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
    pieces_from: int = row(
        500,
        "samples",
        "a single regressor considers columns in pieces; a classifier takes them from twice as many",
        CHOICES,
    )
    members_up_to: int = row(4000, "samples", "average networks of several forms", TABLES)
    one_hot_up_to: int = row(20, "levels", "categories with more become means of the targets", CHOICES)
    column_gain: float = row(1.0, "log evidence per column", "gain that earns one penalty per column", CHOICES)
    doubted_rows: int = row(200, "rows", "with fewer, if much is noise, leave rows out by training again", NOISE)
    calibration_rows: int = row(5000, "samples", "most rows that calibrate prediction intervals", TABLES)
    targets_alone: int = row(8, "targets", "try a network of its own for at most so many, noisiest first", TABLES)


@dataclass(frozen=True)
class PrecisionPolicy:
    """Precision of the passes of a model whose parameters are in float32 or less."""

    double_flops: float = row(
        2e9,
        "operations of a forward pass over all samples",
        "run passes in float64 up to this cost",
        "python -m benchmarks.precision",
    )
    convolutions: float = row(
        5.0,
        "times",
        "count operations of convolutions this often, which float64 slows down far more than matrix products",
        "python -m benchmarks.precision",
    )
    double_memory: float = row(
        0.25,
        "share of the memory budget",
        "copy the model to float64 if its parameters take at most this share there",
        "python -m benchmarks.precision",
    )


@dataclass(frozen=True)
class SamplePolicy:
    """When samples that could be read again in every pass are held in memory."""

    held_memory: float = row(
        0.25,
        "share of the memory budget",
        "read the samples of a Dataset or DataLoader once and hold them if they take at most this share",
        "python -m benchmarks.loaders",
    )
