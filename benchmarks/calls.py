"""Count the calls inside the package that one step makes.

    python -m benchmarks.calls

The problem is 400 x 3 -> 20, MLP 3-16-16-20, float64, least squares: so small that calls, not arithmetic, take the time. A
call is a Python call of a function of the package (`sys.setprofile`); a change of module is a call from one module of the
package to another. Set-up is everything from the call of `train` to the first record; it includes imports and caches if the
process has trained nothing before, so each run is made twice and the second counts. For each kind of step the median of the
accepted ones is printed.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import gnvpro

FORWARD = torch.nn.Sequential.forward.__code__  # of the model
PACKAGE = str(Path(gnvpro.__file__).parent)
RUNS: dict[str, dict[str, Any]] = {
    "cheap, quasi-Newton": {"solver": "hybrid"},
    "exact": {"solver": "dense"},
    "Krylov, rank 20": {"solver": "krylov"},
    "lbfgs-vpro": {"method": "lbfgs-vpro"},
    "gauss-newton": {"method": "gauss-newton"},
    "default solver": {},
}


@dataclass
class Counts:
    """Number of calls and of changes of module so far."""

    model: torch.nn.Module
    calls: int = 0
    changes: int = 0
    runs: int = 0  # of the model itself
    files: dict[CodeType, str | None] = field(default_factory=dict)

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Count one call."""
        if event == "call" and frame.f_code is FORWARD and frame.f_locals["self"] is self.model:
            self.runs += 1
        if event != "call" or (here := self._file(frame)) is None:
            return
        self.calls += 1
        caller = frame.f_back
        while caller is not None and (there := self._file(caller)) is None:
            caller = caller.f_back
        self.changes += caller is not None and there != here

    def _file(self, frame: FrameType) -> str | None:
        code = frame.f_code
        if code not in self.files:
            inside = code.co_filename.startswith(PACKAGE)
            self.files[code] = code.co_filename if inside else None
        return self.files[code]


@dataclass(frozen=True)
class Counted:
    """What happened between two records."""

    solver: str
    accepted: bool
    calls: int
    changes: int
    runs: int


def count(iterations: int = 30, **arguments: Any) -> list[Counted]:
    """Count from record to record; the first is the set-up."""
    torch.manual_seed(0)
    inputs = torch.rand(400, 3, dtype=torch.float64)
    targets = torch.sin(inputs @ torch.randn(3, 20, dtype=torch.float64))
    model = gnvpro.networks.MLP(3, [16, 16], n_outputs=20, dtype=torch.float64)
    counts, marks = Counts(model), [Counted("", True, 0, 0, 0)]

    def note(record: gnvpro.extend.Record) -> None:
        marks.append(Counted(record.solver or "set-up", record.accepted, counts.calls, counts.changes, counts.runs))

    sys.setprofile(counts.profile)
    try:
        gnvpro.train(model, inputs, targets, loss="least_squares", iterations=iterations, listeners=note, **arguments)
    finally:
        sys.setprofile(None)
    return [
        Counted(now.solver, now.accepted, now.calls - last.calls, now.changes - last.changes, now.runs - last.runs)
        for last, now in pairwise(marks)
    ]


def typical(steps: list[Counted], solver: str) -> tuple[float, float]:
    """Return the median calls and changes of module of the accepted steps of a solver."""
    made = [step for step in steps[1:] if step.solver == solver and step.accepted]
    return statistics.median(step.calls for step in made), statistics.median(step.changes for step in made)


def main() -> None:
    """Print a table."""
    print(f"{'step':<28} {'calls':>7} {'changes of module':>18} {'runs of the model':>18}")
    for name, arguments in RUNS.items():
        count(1, **arguments)
        steps = count(**arguments)
        print(f"{name + ': set-up':<28} {steps[0].calls:7d} {steps[0].changes:18d} {steps[0].runs:18d}")
        for solver in dict.fromkeys(step.solver for step in steps[1:] if step.accepted):
            calls, changes = typical(steps, solver)
            print(f"{name + ': ' + solver:<28} {calls:7.0f} {changes:18.0f}")


if __name__ == "__main__":
    main()
