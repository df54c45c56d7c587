"""Choice of the default solver between exact, cheap and batch steps."""

from __future__ import annotations

from dataclasses import dataclass

from gnvpro.policy.rows import row

AUTO = "python -m benchmarks.auto"


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
    part_below: float = row(0.1, "of the samples", "largest part that such a matrix is made from", AUTO)
