"""When a run ends by itself."""

from __future__ import annotations

from dataclasses import dataclass

from gnvpro.policy.rows import row

STOPPING = "python -m benchmarks.stopping"


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
