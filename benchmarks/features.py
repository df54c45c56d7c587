"""Fields given by their domain: which features are chosen, and what they reach.

    python -m benchmarks.features [--seconds 20] [--seed 0] [NAME ...]

Prints, per problem of the catalogue, the true and the estimated relative error, processor seconds and the features. `CHOOSING`
decided about candidates and the rows of the policy, the others confirm them.
"""

from __future__ import annotations

import argparse
import time

import torch

from gnvpro import pde
from gnvpro.experiments.equations import EQUATIONS
from gnvpro.experiments.equations.equation_catalogue import CHOSEN

CHOOSING = ("helmholtz-6-6", "wave", "chirp", "burgers-chosen", "kovasznay", "lotka-volterra")


def main() -> None:
    confirming = [problem.name for problem in CHOSEN if problem.name not in CHOOSING]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*CHOOSING, *confirming])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'problem':20} {'error':>8} {'estimate':>8} {'seconds':>7}  features, status")
    for name in arguments.names:
        posed = EQUATIONS[name].pose(arguments.seed)
        u, began = posed.field, time.process_time()
        result = pde.solve(u, posed.equations, seconds=arguments.seconds, seed=arguments.seed, clock=time.process_time)
        spent = time.process_time() - began
        exact = posed.exact(posed.check)
        exact = exact.view(len(exact), -1)
        error = float((u(posed.check).detach() - exact).norm() / exact.norm())
        width, status = u.head.in_features, result.status.name
        print(
            f"{name:20} {error:8.1e} {result.error:8.1e} {spent:7.1f}  {u.kind}; {width} at the end; {status}",
            flush=True,
        )


if __name__ == "__main__":
    main()
