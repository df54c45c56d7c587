"""Tables in Markdown and plots from the records of the race.

A cell is the median over the seeds of the seconds to an accuracy, with the range in brackets. A seed that never reaches
the accuracy counts as infinitely late, so a cell is "-" if at most half of the seeds reach it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import contenders, problems
from .runner import read
from .search import seconds_to

Record = dict[str, Any]
BEGIN, END = "<!-- the race: made by `python -m benchmarks.race table --docs` -->", "<!-- end of the race -->"
PICTURE = "![Validation error against processor seconds: medians over the seeds, with ranges.](../images/race.png)"


def report(out: Path, docs: Path | None) -> None:
    """Write race.md and race.png to `out`; with `docs`, also the tables of docs/lab/race.md and docs/images/race.png."""
    records = read(out / "records.jsonl")
    if not records:
        raise SystemExit(
            f"no records in {out}: run `python -m benchmarks.race run` first, or name their place with --out"
        )
    text = markdown(records)
    (out / "race.md").write_text(text)
    plot(records, [out / "race.png", *([docs / "images" / "race.png"] if docs else [])])
    if docs:
        page = docs / "lab" / "race.md"
        before, rest = page.read_text().split(BEGIN)
        page.write_text(f"{before}{BEGIN}\n\n{PICTURE}\n\n{text}\n{END}{rest.split(END)[1]}")
    print(text)


def markdown(records: Sequence[Record]) -> str:
    """The tables of all problems."""
    sections = []
    for spec in problems.SPECS.values():
        own = [record for record in records if record["problem"] == spec.name]
        if own:
            sections.append(section(spec, own))
    return "\n".join(sections)


def section(spec: problems.Spec, records: Sequence[Record]) -> str:
    """Format one problem: ratios to the fastest other trainer, seconds, work."""
    groups = grouped(records)
    seeds = len({record["seed"] for record in records})
    head = [f"{goal:g}" for goal in spec.ladder]
    lines = [
        f"### {spec.title}\n",
        *verdict(spec, groups),
        f"\nProcessor seconds until the validation {spec.measure} is at most the value in the column "
        f"({seeds} seeds, time limit {spec.seconds:g} s after compiling):\n",
        "| contender | " + " | ".join(head) + " | lowest | compiling |",
        "|---|" + "---|" * (len(head) + 2),
    ]
    for name, group in groups.items():
        cells = [seconds_cell(group, goal) for goal in spec.ladder]
        compiling = statistics.median(record.get("compile", 0.0) for record in group)
        lowest = spread([best(record) for record in group], "{:.2g}")
        lines.append(f"| {title(name)} | {' | '.join(cells)} | {lowest} | {f'{compiling:.1f}' if compiling else ''} |")
    lines += ["", "Work units at these times (medians):\n"]
    lines += ["| contender | " + " | ".join(head) + " |", "|---|" + "---|" * len(head)]
    for name, group in groups.items():
        cells = [work_cell(group, goal) for goal in spec.ladder]
        if set(cells) != {"-"}:
            lines.append(f"| {title(name)} | {' | '.join(cells)} |")
    failures = sorted({f"{title(r['contender'])}: {r['failure']}" for r in records if r.get("failure")})
    if failures:
        lines += ["", "Runs that failed: " + "; ".join(f"`{failure}`" for failure in failures)]
    return "\n".join(lines) + "\n"


def verdict(spec: problems.Spec, groups: dict[str, list[Record]]) -> list[str]:
    """Compare gnvpro with the fastest other trainer at each accuracy, and the lowest errors."""
    ours = groups.get("gnvpro")
    peers = {name: group for name, group in groups.items() if name not in contenders.OURS}
    if not ours or not peers:
        return []
    parts = []
    for goal in spec.ladder:
        mine = median_seconds(ours, goal)
        rival = min(peers, key=lambda name: median_seconds(peers[name], goal))
        theirs = median_seconds(peers[rival], goal)
        if math.isfinite(theirs):
            ratio = f"{mine / theirs:.2f}" if math.isfinite(mine) else "not reached by gnvpro"
            parts.append(f"{goal:g}: {ratio} ({title(rival)})")
        elif math.isfinite(mine):
            parts.append(f"{goal:g}: reached by gnvpro only")
    lowest = {name: statistics.median(best(record) for record in group) for name, group in groups.items()}
    rival = min(peers, key=lambda name: lowest[name])
    ratio = lowest["gnvpro"] / lowest[rival] if lowest[rival] else math.inf
    return [
        "Seconds of gnvpro / seconds of the fastest other trainer: " + "; ".join(parts) + ".",
        f"Lowest error of gnvpro / lowest error of the best other trainer: {ratio:.2f} ({title(rival)}).",
    ]


def grouped(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by contender, in the order of the race."""
    names = [name for name in contenders.TITLES if any(record["contender"] == name for record in records)]
    return {name: [record for record in records if record["contender"] == name] for name in names}


def title(name: str) -> str:
    """Display name of a contender."""
    return contenders.TITLES[name]


def best(record: Record) -> float:
    """The lowest error of a run."""
    return min((look[2] for look in record["looks"]), default=math.inf)


def times(group: Sequence[Record], goal: float, column: int = 0) -> list[float]:
    """Seconds to the goal (or another column) for every seed; infinite if it is never reached."""
    found = [seconds_to(record["looks"], goal, column) for record in group]
    return [math.inf if t is None else t for t in found]


def median_seconds(group: Sequence[Record], goal: float) -> float:
    """Median seconds over the seeds; for an even number the larger of the middle two."""
    return statistics.median_high(times(group, goal))


def seconds_cell(group: Sequence[Record], goal: float) -> str:
    """Median and spread."""
    return spread(times(group, goal), "{:.2f}")


def work_cell(group: Sequence[Record], goal: float) -> str:
    """Median."""
    middle = statistics.median_high(times(group, goal, 3))
    return f"{middle:.0f}" if math.isfinite(middle) else "-"


def spread(values: Sequence[float], form: str) -> str:
    """Median, and the range in brackets."""
    middle, most = statistics.median_high(values), max(values)
    if not math.isfinite(middle):
        return "-"
    last = form.format(most) if math.isfinite(most) else "never"
    return f"{form.format(middle)} ({form.format(min(values))} to {last})"


# -- the plot


def curve(group: Sequence[Record], grid: Sequence[float]) -> list[list[float]]:
    """Lowest error so far at the times of the grid, one row per seed."""
    rows = []
    for record in group:
        row, low, looks = [], math.nan, iter([*record["looks"], [math.inf, 0, 0, 0]])
        look = next(looks)
        for seconds in grid:
            while look[0] <= seconds:
                low = look[2] if math.isnan(low) else min(low, look[2])
                look = next(looks)
            row.append(low)
        rows.append(row)
    return rows


def plot(records: Sequence[Record], paths: Sequence[Path]) -> None:
    """Draw error against seconds, one panel per problem: the median over the seeds and a band over their range."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    specs = [spec for spec in problems.SPECS.values() if any(r["problem"] == spec.name for r in records)]
    if not specs:
        return
    columns, rows = min(2, len(specs)), -(-len(specs) // 2)
    figure, axes = plt.subplots(
        rows, columns, figsize=(5.5 * columns, 4.2 * rows + 1.2), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(specs) :]:
        axis.axis("off")
    # gnvpro is dark; other trainers differ in colour and line style, for print and colour-blind readers.
    colors = dict(zip(contenders.OURS, ("black", "#0072b2", "#d55e00"), strict=True))
    colors |= {name: plt.get_cmap("tab10")(i) for i, name in enumerate(contenders.PEERS)}
    lines = dict(zip(contenders.PEERS, ["--", ":", "-.", (0, (5, 1)), (0, (1, 1))] * 3, strict=False))
    handles = {}
    for axis, spec in zip(axes.flat, specs, strict=False):
        grid = np.geomspace(3e-3, spec.seconds, 300)
        for name, group in grouped([r for r in records if r["problem"] == spec.name]).items():
            errors = np.array(curve(group, grid))
            shown = np.isfinite(errors).sum(0) > len(errors) / 2
            if not shown.any():
                continue
            errors, own = errors[:, shown], name in contenders.OURS
            style = {"color": colors[name], "lw": 2.5 if own else 1.4, "ls": lines.get(name, "-")}
            (line,) = axis.loglog(grid[shown], np.nanmedian(errors, 0), **style)
            axis.fill_between(
                grid[shown], np.nanmin(errors, 0), np.nanmax(errors, 0), color=colors[name], alpha=0.1, lw=0
            )
            handles[name] = line
        axis.set(title=spec.title.split(":")[0], xlabel="seconds", ylabel=f"validation {spec.measure}")
        axis.grid(alpha=0.3)
    order = [name for name in contenders.TITLES if name in handles]
    labels = [title(name).replace("*", "") for name in order]
    figure.legend([handles[name] for name in order], labels, loc="outside lower center", ncols=4, frameon=False)
    for path in paths:
        figure.savefig(path, dpi=110)
    plt.close(figure)
