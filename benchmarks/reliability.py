"""Try random problems, tables, files and faults, and write what was found to docs/lab/reliability.md.

    python -m benchmarks.reliability [--seconds 1200] [--seed N]

The seconds are processor seconds, of which problems and tables get two fifths each and files one fifth; the injected faults of
`tests/training/test_faults.py` run once. A case is one seed, so every failure can be repeated with
`--only tables --seed N --count 1`. A child process with limits on memory and time runs each kind: a crash or a hang counts as
a failure too.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "lab" / "reliability.md"
SHARES = {"problems": 0.4, "tables": 0.4, "files": 0.2}
WHAT = {
    "problems": "random models, losses, penalties, solvers, methods, dtypes, batches, levels, degenerate data; the objective, "
    "the head, the status and the moved parameters of the result are evaluated again from the model alone; the run is "
    "interrupted and resumed; the data are handed over in another way (`tests/project/test_fuzz.py`)",
    "tables": "random tables: tiny, wide, constant, duplicated, collinear and heavy-tailed columns, outliers, numbers of size "
    "1e-200 to 1e200, several targets, two or three classes; at most 0.05 behind the better of two simple models "
    "(`tests/sklearn/random_tables.py`)",
    "files": "tables and model files with random damage: a result, or one line that names the file "
    "(`tests/tabular/random_files.py`)",
    "faults": "loaders that raise or shrink, a disk that fills at each write, clocks that jump, processes that are killed "
    "(`tests/training/test_faults.py`, `test_process_failures.py`)",
}
LONGEST_CASE = 60  # processor seconds
LONGEST_WAIT = 20.0  # wall-clock seconds for one processor second, after which a campaign counts as hanging
MEMORY = 6e9  # bytes


@dataclass
class Tried:
    """Cases of one kind, and those that failed."""

    kind: str
    cases: int = 0
    first: int = 0
    seconds: float = 0.0
    failed: dict[int, str] = field(default_factory=dict)


def checker(kind: str) -> Callable[[int], object]:
    """Return the function that raises if the case of a seed fails."""
    if kind == "problems":
        from tests.project.test_fuzz import OVERFITS, check

        warnings.filterwarnings("ignore", OVERFITS)
        return check
    if kind == "tables":
        from tests.sklearn import random_tables

        return random_tables.check
    from tests.tabular import random_files

    return random_files.check


def hang(number: int, frame: object) -> None:
    """Turn the alarm of a case into an error."""
    raise TimeoutError(f"no end within {LONGEST_CASE} s")


def campaign(kind: str, seconds: float, first: int, count: int | None) -> Tried:
    """Try one case after the other for this many processor seconds."""
    import torch

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (int(MEMORY), int(MEMORY)))
    signal.signal(signal.SIGPROF, hang)  # of the processor's seconds, which other programs do not change
    check, begun, tried = checker(kind), time.process_time(), Tried(kind, first=first)
    while (time.process_time() - begun < seconds) if count is None else tried.cases < count:
        seed = first + tried.cases
        signal.setitimer(signal.ITIMER_PROF, LONGEST_CASE)
        try:
            check(seed)
        except Exception as error:
            tried.failed[seed] = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        tried.cases += 1
    tried.seconds = time.process_time() - begun
    return tried


def in_child(kind: str, seconds: float, first: int, count: int | None) -> Tried:
    """Run a campaign in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.reliability",
        "--only",
        kind,
        "--seconds",
        str(seconds),
        "--seed",
        str(first),
    ]
    command += [] if count is None else ["--count", str(count)]
    wait = LONGEST_WAIT * (seconds + LONGEST_CASE) if count is None else None
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=wait, check=False)
    except subprocess.TimeoutExpired:
        return Tried(kind, first=first, failed={first: "the campaign hangs"})
    if done.returncode:
        return Tried(
            kind, first=first, failed={first: f"the campaign ended with {done.returncode}: {done.stderr[-150:]}"}
        )
    found = json.loads(done.stdout.splitlines()[-1])
    return Tried(**found | {"failed": {int(seed): text for seed, text in found["failed"].items()}})


def faults() -> Tried:
    """Run the tests of injected faults."""
    files = ["tests/training/test_faults.py", "tests/training/test_process_failures.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *files]
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False
    ).stdout.splitlines()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    dots = sum(line.split()[0].count(".") for line in lines if line and set(line.split()[0]) <= set(".FEs"))
    spent = ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime
    return Tried("faults", dots + len(failed), 0, spent, dict(enumerate(failed)))


def page(found: list[Tried], today: date) -> str:
    """The page of the lab book."""
    rows = [
        f"| {each.kind} | {each.cases} | {f'{each.first} to {each.first + each.cases - 1}' if each.kind in SHARES else 'all'} "
        f"| {each.seconds:.0f} | {len(each.failed)} |"
        for each in found
    ]
    failures = [
        f"- {each.kind}, {f'seed {seed}' if each.kind in SHARES else 'test'}: `{text.replace('`', '')}`"
        for each in found
        for seed, text in each.failed.items()
    ]
    total, failed = sum(each.cases for each in found), sum(len(each.failed) for each in found)
    return "\n".join(
        [
            "# Random problems, tables, files and faults",
            "",
            f"{today:%-d %B %Y}: {failed} of {total} cases failed. "
            "`python -m benchmarks.reliability` writes this page; `make soak` spends an hour on it.",
            "",
            "| kind | cases | seeds | processor seconds | failed |",
            "|---|---:|---|---:|---:|",
            *rows,
            "",
            "## What is tried",
            "",
            *(f"- **{kind}**: {text}" for kind, text in WHAT.items()),
            "",
            "A problem fails if something is wrong and the result does not say so, or if an error is raised by anything but "
            "the library's own checks. A table of fewer than about 20 rows may fail by chance: rows that nobody has seen "
            "decide which of the mean and the linear model was the better one.",
            "",
            "## What failed",
            "",
            *(failures or ["Nothing."]),
            "",
        ]
    )


def main() -> None:
    """Run one campaign, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=list(SHARES))
    parser.add_argument("--count", type=int)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(asdict(campaign(given.only, given.seconds, given.seed, given.count))))
        return
    found = [in_child(kind, share * given.seconds, given.seed, given.count) for kind, share in SHARES.items()]
    found.append(faults())
    PAGE.write_text(page(found, date.today()))
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
