"""Make a simulated set once: in parallel, resumable, and kept in the data directory for every later load.

    intact archive there?  -> read it
    else: unfinished archive (of earlier runs) -> solve the rest over processes -> archive

The solver is a pure function from a block of inputs to a block of targets, so blocks may come in any order. Samples
that are not solved yet are NaN in the unfinished archive. It is written in one step, on interruption and from time
to time: writing takes at most a twentieth of the time, and a killed run loses only what came after the last writing.
"""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from gnvpro.arguments import check_count
from gnvpro.progress import Display

from . import archive, data_directory
from .archive import Recipe

Array = NDArray[np.float64]
Solver = Callable[[Array], Array]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
SECONDS_BETWEEN_LINES = 10.0
WRITING_COST = 20  # the next writing waits this many times as long as the last one took


@dataclass(frozen=True)
class SimulatedSet:
    """A set whose inputs are drawn and whose targets are simulated."""

    name: str
    version: int  # raise it whenever the solver's numbers change
    n_targets: int
    block: int  # samples that are solved together
    check_mesh: Callable[[int], object]
    draw: Callable[[int, int], Array]  # samples, seed -> inputs
    solve: Callable[[int, Array], Array]  # mesh, inputs -> targets

    def simulated(
        self,
        samples: int,
        mesh: int,
        *,
        draw_seed: int = 0,
        data_dir: str | os.PathLike[str] | None = None,
        workers: int | None = None,
        progress: bool = True,
    ) -> tuple[Path, Array, Array]:
        """Return path, inputs and targets of the set, which is made on first use and kept in the data directory."""
        self.check_mesh(mesh)
        samples, draw_seed = check_count("samples", samples, 1), check_count("draw_seed", draw_seed, 0)
        recipe = Recipe(self.name, self.version, mesh, samples, draw_seed)
        inputs = self.draw(samples, draw_seed)
        directory, solve = data_directory(data_dir) / self.name, partial(self.solve, mesh)
        stream = None if progress else io.StringIO()  # a stream that is discarded
        with closing(Display(self.name, "samples", stream, SECONDS_BETWEEN_LINES)) as display:
            path, targets = make(recipe, inputs, self.n_targets, solve, self.block, directory, workers, display)
        return path, inputs, targets


def make(
    recipe: Recipe,
    inputs: Array,
    n_targets: int,
    solve: Solver,
    block: int,
    directory: Path,
    workers: int | None,
    display: Display,
) -> tuple[Path, Array]:
    """Return the path of the archive and its targets; simulate them unless an intact archive of this recipe exists."""
    n_workers = available_cores() if workers is None else check_count("workers", workers, 1)
    path, stamp = directory / f"{recipe.stem}.npz", recipe.stamp(inputs)
    if path.exists():
        try:
            return path, archive.read(path, stamp)[1]
        except archive.UnusableArchive as reason:
            display.note(f"{reason}: making it again")
    writing = partial(archive.explained, directory, 2 * 8e-6 * len(inputs) * (inputs.shape[1] + n_targets))
    with writing() as megabytes:
        directory.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(directory).free < 1e6 * megabytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        unfinished = directory / f"{recipe.stem}.partial"
        targets = solved_before(unfinished, stamp)
    if targets is None:
        targets = np.full((len(inputs), n_targets), np.nan)
    missing = np.flatnonzero(np.isnan(targets[:, 0]))
    display.note(f"{recipe.problem}: {len(missing)} of {len(inputs)} samples to simulate")
    done = len(inputs) - len(missing)
    display.start(len(inputs), done)
    blocks = np.split(missing, range(block, len(missing), block)) if len(missing) else []
    written, took = time.monotonic(), 0.0
    try:
        # close explicitly: if a write fails, the processes must end now and not when the traceback is freed
        with closing(solve_blocks(solve, inputs, blocks, min(n_workers, len(blocks)))) as solved:
            for rows, found in solved:
                if not np.isfinite(found).all():
                    raise ArithmeticError(f"the solver of {recipe.problem} failed for {inputs[rows].tolist()}")
                targets[rows], done = found, done + len(rows)
                display.update(done)
                begun = time.monotonic()
                if begun - written > WRITING_COST * took:
                    with writing():
                        archive.write(unfinished, stamp, inputs, targets)
                    written = time.monotonic()
                    took = written - begun
    except OSError:
        raise
    except BaseException:
        archive.write(unfinished, stamp, inputs, targets)
        display.note(f"stopped; {done} of {len(inputs)} samples are kept, the same call goes on from there")
        raise
    with writing():
        archive.write(path, stamp, inputs, targets)
        unfinished.unlink(missing_ok=True)
    return path, targets


def solved_before(unfinished: Path, stamp: str) -> Array | None:
    """Return the targets left by an earlier run, if it was for the same set."""
    try:
        return archive.read(unfinished, stamp)[1]
    except (FileNotFoundError, archive.UnusableArchive):
        return None


def solve_blocks(
    solve: Solver, inputs: Array, blocks: list[NDArray[np.intp]], workers: int
) -> Generator[tuple[NDArray[np.intp], Array], None, None]:
    """Yield rows and targets of each block, in the order in which they are finished."""
    if workers <= 1:
        for rows in blocks:
            yield rows, solve(inputs[rows])
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_become_worker)
    pending: dict[Future[Array], NDArray[np.intp]] = {}
    try:
        with spawning():
            pending.update({pool.submit(solve, inputs[rows]): rows for rows in blocks})
        for future in as_completed(pending):
            yield pending[future], future.result()
    finally:
        # also after an interrupt or a failed write: start nothing new, leave no process behind
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def spawning() -> Iterator[None]:
    """Start processes with one thread each and without importing the user's script, which they do not need.

    Otherwise every script that loads a set would need `if __name__ == "__main__":`.
    """
    main, environment = sys.modules["__main__"], {name: os.environ.get(name) for name in THREAD_VARIABLES}
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in environment.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _become_worker() -> None:
    """Ignore Ctrl-C, which the parent handles, and end with the parent even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def available_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
