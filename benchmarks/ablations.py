"""Rules switched off one at a time: seconds to the same objectives without the rule over seconds with it.

    GNVPRO_DATA=DIR python -m benchmarks.ablations [--rules NAME ...] [--seeds 0 1] [--seconds 0.4]

For every problem of a rule, both variants run for the same processor seconds, on one thread. The ratio is the geometric mean,
over the seeds and over objectives a factor of sqrt(10) apart that both reach, of the seconds to each. Above 1.1 the rule pays.
The last column compares the lowest objectives at the end, without the rule over with it.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from benchmarks.auto import CASES, Curve, trained

AUTO = ("regression", "cdr", "dcr-1200", "peaks-2000", "ellipse")


@dataclass(frozen=True)
class Rule:
    """The switched-off part: its names in the library, replacements for them, and the problems it was made for."""

    patches: dict[str, Any]
    solver: str = "auto"
    problems: tuple[str, ...] = AUTO
    also: dict[str, Any] = field(default_factory=dict)  # patches of both variants


RULES = {
    "way back from exact to cheap steps": Rule({"gnvpro.methods.race.Race._exact_is_slow": lambda self: False}),
    "large Krylov spaces after 60 cheap steps": Rule({"gnvpro.methods.auto.LateSpaces.pays": lambda self: False}),
    "longer steps from a Krylov space": Rule(
        {"gnvpro.methods.steps.Steps._affords_a_trial": lambda self: False},
        "krylov",
        ("ellipse", "peaks-2000", "cdr", "regression"),
    ),
    "exact steps at all": Rule(
        {"gnvpro.methods.auto.Auto.takes_exact_steps": lambda self, problem: False}, problems=AUTO[:2]
    ),
}


@contextlib.contextmanager
def replaced(patches: dict[str, Any]) -> Iterator[None]:
    """Run with these names replaced."""
    with contextlib.ExitStack() as stack:
        for name, value in patches.items():
            stack.enter_context(patch(name, value))
        yield


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
    limit = case.seconds * share
    for seed in seeds:
        curves = []
        for patches in (rule.also, rule.also | rule.patches):
            with replaced(patches):
                curves.append(trained(case, rule.solver, seed, limit, iterations=10**9))
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
    trained(CASES["ellipse"], "auto", 0, 0.2, iterations=10)
    print("| rule | problem | seconds without / with | lowest objective without / with |\n|---|---|---|---|")
    for name in given.rules:
        for problem in given.problems or RULES[name].problems:
            seconds, end = measure(RULES[name], problem, given.seeds, given.seconds)
            print(f"| {name} | {problem} | {seconds:.2f} | {end:.2f} |", flush=True)


if __name__ == "__main__":
    main()
