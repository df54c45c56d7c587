"""`python -m benchmarks.race search | run | table`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from . import contenders, problems, runner

SEEDS = (0, 1, 2, 3, 4)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.race", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("search", "find each peer's settings, on a seed that does not race, and write settings.json"),
        ("run", "race, then table"),
        ("table", "table and plots from the records"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--out", type=Path, default=Path("runs/race"), help="directory of the records")
        command.add_argument("--problem", action="append", choices=list(problems.SPECS), help="default: all")
        command.add_argument("--contender", action="append", choices=list(contenders.TITLES), help="default: all")
        command.add_argument("--seed", action="append", type=int, help=f"default: {SEEDS}")
        command.add_argument("--cores", type=int, nargs="+", default=None, help="cores to use; default: all")
        command.add_argument("--docs", action="store_true", help="put tables and plot into docs/ too")
    child = commands.add_parser("one")
    child.add_argument("job", type=json.loads)
    child.add_argument("--core", type=int)
    options = parser.parse_args()
    if options.command == "one":
        print(json.dumps(runner.one(options.job, options.core)))
        return
    names, cores = options.contender or contenders.TITLES, options.cores or runner.all_cores()
    chosen = []
    for problem in options.problem or problems.SPECS:
        why = problems.missing(problem)
        if why:
            print(f"{problem} is skipped: {why}", flush=True)
        else:
            chosen.append(problem)
    if options.command == "search":
        from . import search

        search.search(chosen, names, options.out / "search.jsonl", cores)
        return
    if options.command == "run":
        from . import search

        jobs = [
            {"problem": p, "contender": c, "seed": s, "settings": settings, "limit": problems.SPECS[p].seconds}
            for p in chosen
            for s in options.seed or SEEDS
            for c in names
            if (settings := search.settings_for(p, c)) is not None
        ]
        runner.race(jobs, options.out / "records.jsonl", cores)
    from . import report

    report.report(options.out, runner.ROOT / "docs" if options.docs else None)


if __name__ == "__main__":
    main()
