"""The small search: every setting of a contender's grid runs once on a seed that does not race; the best is kept.

The best setting reaches the most accuracies of the problem's ladder, and among those it takes the least time to
reach them (geometric mean). If none is reached, the lowest error decides. `settings.json` holds the outcome.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import contenders, problems, runner

SEED = 100
SETTINGS = Path(__file__).with_name("settings.json")


def search(chosen: Sequence[str], names: Sequence[str], path: Path, cores: list[int]) -> None:
    """Run the grids and save the best settings."""
    jobs = []
    for problem in chosen:
        spec = problems.SPECS[problem]
        for name in names:
            grid = contenders.module(name).grid(spec)
            jobs += [
                {"problem": problem, "contender": name, "seed": SEED, "settings": settings, "limit": spec.seconds / 2}
                for settings in (grid if len(grid) > 1 else [])
            ]
    records = runner.race(jobs, path, cores)
    kept = load()
    for problem in chosen:
        for name in names:
            own = [r for r in records if (r["problem"], r["contender"]) == (problem, name)]
            if own:
                best = max(own, key=lambda record: merit(record, problems.SPECS[problem].ladder))
                kept.setdefault(problem, {})[name] = best["settings"]
    SETTINGS.write_text(json.dumps(kept, indent=2) + "\n")


def merit(record: dict[str, Any], ladder: Sequence[float]) -> tuple[float, ...]:
    """Sort key of a record: larger is better."""
    times = [t for goal in ladder if (t := seconds_to(record["looks"], goal)) is not None]
    lowest = min((look[2] for look in record["looks"]), default=math.inf)
    return len(times), -sum(math.log(max(t, 1e-4)) for t in times), -lowest


def seconds_to(looks: Sequence[Sequence[float]], goal: float, column: int = 0) -> float | None:
    """Seconds (or, with column 3, work) at the first look with an error of at most the goal."""
    return next((look[column] for look in looks if look[2] <= goal), None)


def load() -> dict[str, dict[str, Any]]:
    """Load the settings that were found, by problem and contender."""
    return json.loads(SETTINGS.read_text()) if SETTINGS.exists() else {}


def settings_for(problem: str, contender: str) -> dict[str, Any] | None:
    """Settings to race with; None if the contender does not run the problem."""
    grid = contenders.module(contender).grid(problems.SPECS[problem])
    if not grid:
        return None
    return grid[0] if len(grid) == 1 else load()[problem][contender]
