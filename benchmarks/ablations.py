"""Rules of the default solver switched off one at a time: seconds to the same objectives without the rule over with it.

    GNVPRO_DATA=DIR python -m benchmarks.ablations [--rules NAME ...] [--problems NAME ...] [--seeds 0 1] [--seconds 0.4]

A rule is switched off by a policy. Both variants run for the same processor seconds, on one thread. The ratio is the
geometric mean, over the seeds and over objectives a factor of sqrt(10) apart that both reach, of the seconds to each. Above
1.1 the rule pays. The last column compares the lowest objectives at the end, without the rule over with it.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass

import torch
from benchmarks.auto import CASES, Curve, trained

from gnvpro.policy import BatchPolicy, Policy, SolverPolicy


@dataclass(frozen=True)
class Rule:
    """A rule: the policy without it, and the problems it was made for."""

    without: Policy
    problems: tuple[str, ...]


def solver(**rows: float) -> Policy:
    """Return the policy with these rows of the solver."""
    return Policy(solver=SolverPolicy(**rows))  # type: ignore[arg-type]


RULES = {
    "cheap steps first": Rule(solver(cheap_first=math.inf), ("regression", "cdr", "peaks-2000", "ellipse")),
    "exact steps": Rule(solver(exact_below=0.0), ("regression", "cdr")),
    "large Krylov spaces after 60 cheap steps": Rule(solver(spaces_after=10**9), ("regression", "cdr", "dcr-1200")),
    "the matrix of a part": Rule(solver(rows_per_direction=1e9), ("regression", "arm-20000")),
    "random batches first": Rule(Policy(batches=BatchPolicy(begin_from=None)), ("regression", "arm-20000")),
}


def ratios(with_rule: Curve, without: Curve) -> list[float]:
    """Logarithms of the ratio of seconds to every objective that both reach."""
    top = min(with_rule.losses[0], without.losses[0])
    least = max(with_rule.losses[-1], without.losses[-1])
    values = [top * 10.0 ** (-k / 2) for k in range(1, 60) if top * 10.0 ** (-k / 2) >= least]
    times = [(without.time_to(value), with_rule.time_to(value)) for value in values]
    return [math.log(a / b) for a, b in times if 0 < b < math.inf and 0 < a < math.inf]


def measure(rule: Rule, problem: str, seeds: list[int], share: float) -> tuple[float, float]:
    """Return the mean ratio of seconds and the median ratio of the lowest objectives."""
    case, logs, ends = CASES[problem], [], []
    trained(case, "auto", seeds[0], 0.5, iterations=20)  # the first run of a process pays for imports
    for seed in seeds:
        curves = [
            trained(case, "auto", seed, case.seconds * share, policy=policy, iterations=10**9)
            for policy in (Policy(), rule.without)
        ]
        logs += ratios(*curves)
        ends.append(curves[1].losses[-1] / curves[0].losses[-1])
    return math.exp(statistics.fmean(logs)) if logs else math.nan, statistics.median(ends)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--problems", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--seconds", type=float, default=0.4, help="times the usual ones of a run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| rule | problem | seconds without / with | lowest objective without / with |\n|---|---|---|---|")
    for name in given.rules:
        for problem in given.problems or RULES[name].problems:
            seconds, end = measure(RULES[name], problem, given.seeds, given.seconds)
            print(f"| {name} | {problem} | {seconds:.2f} | {end:.2f} |", flush=True)


if __name__ == "__main__":
    main()
