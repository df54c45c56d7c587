"""Run each (problem, contender, seed) in a fresh process on one core with one thread, and append its record to a file.

If there are several cores, processes run side by side, each pinned to its own core. The file holds one JSON object
per line. Runs that it already contains are skipped, so an interrupted race can be continued.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "JAX_PLATFORMS": "cpu",
}
GRACE = 120  # seconds beyond the limit for imports, evaluations and a busy machine

Job = dict[str, Any]  # problem, contender, seed, settings, limit


def race(jobs: Iterable[Job], path: Path, cores: list[int]) -> list[dict[str, Any]]:
    """Run the jobs that are not in the file yet; return all records of these jobs."""
    jobs = list(jobs)
    done = {key(record) for record in read(path)}
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        if key(job) not in done:
            waiting.put(job)
    lock = threading.Lock()
    total, finished = waiting.qsize(), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.read_text().endswith("\n"):
        path.write_text(path.read_text() + "\n")  # a line cut off by an interruption must not swallow the next

    def work(core: int) -> None:
        nonlocal finished
        while True:
            try:
                job = waiting.get_nowait()
            except queue.Empty:
                return
            record = run(job, core)
            with lock, path.open("a") as file:
                file.write(json.dumps(record) + "\n")
                finished += 1
                best = min((look[2] for look in record["looks"]), default=float("nan"))
                told = record.get("failure") or f"{record['seconds']:.1f} s, best {best:.3g}"
                settings = json.dumps(job["settings"]) if job["settings"] else ""
                print(
                    f"[{finished}/{total}] {job['problem']} {job['contender']} seed {job['seed']} {settings}: {told}",
                    flush=True,
                )

    threads = [threading.Thread(target=work, args=(core,)) for core in cores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = {key(job) for job in jobs}
    return [record for record in read(path) if key(record) in wanted]


def run(job: Job, core: int) -> dict[str, Any]:
    """Run one job in a separate process; a failure becomes a record too."""
    command = [sys.executable, "-m", "benchmarks.race", "one", json.dumps(job), "--core", str(core)]
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **ONE_THREAD},
            capture_output=True,
            text=True,
            timeout=4 * job["limit"] + GRACE,
        )
    except subprocess.TimeoutExpired:
        return {**job, "looks": [], "seconds": time.perf_counter() - began, "failure": "no answer in time"}
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {**job, "looks": [], "seconds": time.perf_counter() - began, "failure": reason[:300]}
    return json.loads(done.stdout.splitlines()[-1])


def one(job: Job, core: int | None) -> dict[str, Any]:
    """Run one job; this is the entry point of the process."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    import torch

    torch.set_num_threads(1)
    from . import contenders, problems
    from .referee import Referee, TimeUp

    problem = problems.make(job["problem"], job["seed"])
    module = contenders.module(job["contender"])
    referee = Referee(problem, job["limit"])
    failure = None
    try:
        module.fit(problem, job["settings"], referee)
        end = "converged"
    except TimeUp:
        end = "time is up"
    except (RuntimeError, ValueError, ArithmeticError) as error:  # what it had reached counts
        end, failure = "failed", f"{type(error).__name__}: {error}"[:300]
    seconds, wall = referee.seconds()
    return {
        **job,
        "end": end,
        **({"failure": failure} if failure else {}),
        "seconds": seconds,
        "wall": wall,
        "compile": referee.compile_seconds,
        "looks": referee.looks,
    }


def read(path: Path) -> list[dict[str, Any]]:
    """Read the records of a file; skip a line cut off by an interruption."""
    records = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def key(job: Job) -> str:
    """Key that identifies a run."""
    return json.dumps([job[name] for name in ("problem", "contender", "seed", "settings", "limit")], sort_keys=True)


def all_cores() -> list[int]:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [0]
