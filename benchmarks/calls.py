"""Count the calls inside the package that one step makes.

    python -m benchmarks.calls

The problem is 400 x 3 -> 20, MLP 3-16-16-20, float64, least squares: so small that calls, not arithmetic, take the time. A
call is a Python call of a function of the package (`sys.setprofile`); a change of module is a call from one module of the
package to another. Set-up is everything from the call of `train` to the first record. For each kind of step the median of
the accepted ones is printed.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import gnvpro

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

    calls: int = 0
    changes: int = 0
    files: dict[CodeType, str | None] = field(default_factory=dict)

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Count one call."""
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


def count(**arguments: Any) -> list[tuple[str, bool, int, int]]:
    """Solver, whether the step was accepted, calls and changes of module, from record to record."""
    torch.manual_seed(0)
    inputs = torch.rand(400, 3, dtype=torch.float64)
    targets = torch.sin(inputs @ torch.randn(3, 20, dtype=torch.float64))
    model = gnvpro.networks.MLP(3, [16, 16], n_outputs=20, dtype=torch.float64)
    counts, marks = Counts(), []

    def note(record: gnvpro.extend.Record) -> None:
        marks.append((record.solver or "set-up", record.accepted, counts.calls, counts.changes))

    sys.setprofile(counts.profile)
    try:
        gnvpro.train(model, inputs, targets, loss="least_squares", iterations=30, listeners=note, **arguments)
    finally:
        sys.setprofile(None)
    before = [("", True, 0, 0), *marks]
    return [(s, a, c - b[2], d - b[3]) for (s, a, c, d), b in zip(marks, before, strict=False)]


def main() -> None:
    """Print a table."""
    print(f"{'step':<28} {'calls':>7} {'changes of module':>18}")
    for name, arguments in RUNS.items():
        steps = count(**arguments)
        print(f"{name + ': set-up':<28} {steps[0][2]:7d} {steps[0][3]:18d}")
        for solver in dict.fromkeys(step[0] for step in steps[1:]):
            made = [step for step in steps[1:] if step[0] == solver and step[1]]
            if made:
                calls, changes = (statistics.median(step[k] for step in made) for k in (2, 3))
                print(f"{name + ': ' + solver:<28} {calls:7.0f} {changes:18.0f}")


if __name__ == "__main__":
    main()
