"""Measure when `pde.solve` ends without a budget, and what twice the iterations would gain.

    python -m benchmarks.equation_ends                       the problems that the rule was chosen on
    python -m benchmarks.equation_ends heat1d-deep burgers   others

Errors belong to the returned field, as in `gnvpro run`; seconds are processor seconds of one thread.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch

from gnvpro import pde
from gnvpro.experiments.equations import EQUATIONS
from gnvpro.experiments.equations.errors import Errors

CHOSEN_ON = ["poisson2d", "heat1d", "l-shape", "inverse-diffusion", "helmholtz2d"]


def main() -> None:
    """Print one row for each problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=CHOSEN_ON)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| problem | ends | iterations | s | error | error after twice the iterations |\n|---|---|---|---|---|---|")
    for name in arguments.names:
        posed = EQUATIONS[name].pose(arguments.seed)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "run.pt"
            errors = Errors(EQUATIONS[name], posed, 1.0, Path(folder) / "errors.csv")
            result = pde.solve(posed.field, posed.equations, clock=time.process_time, checkpoint=file)
            at_end, count = errors.now(), len(result.history) - 1
            row = f"| {name} | {result.status.name} | {count} | {result.history[-1].seconds:.0f} | {at_end:.1e}"
            pde.solve(posed.field, posed.equations, checkpoint=file, resume=True, iterations=2 * count)
            print(f"{row} | {errors.now():.1e} |", flush=True)


if __name__ == "__main__":
    main()
