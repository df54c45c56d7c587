"""Making sets: killed, interrupted, cut, altered, outdated, locked, without room or permission - never a wrong set."""

import dataclasses
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gnvpro.data import archive, dcr, simulation
from gnvpro.data.archive import Recipe, UnusableArchive
from gnvpro.progress import Display

RECIPE = Recipe("toy", 1, 5, 12, 0)
INPUTS = np.random.default_rng(0).random((12, 3))
STAMP = RECIPE.stamp(INPUTS)
TARGETS = INPUTS @ np.ones((3, 4)) + np.arange(4.0)


class Solver:
    """A quick solver that records its blocks and may fail after some of them."""

    def __init__(self, fail_after=None, error=KeyboardInterrupt):
        self.solved, self.fail_after, self.error = 0, fail_after, error

    def __call__(self, inputs):
        if self.solved == self.fail_after:
            raise self.error
        self.solved += len(inputs)
        return inputs @ np.ones((3, 4)) + np.arange(4.0)


def make(directory, solver, recipe=RECIPE, stream=None):
    return simulation.make(
        recipe, INPUTS, 4, solver, 1, directory, 1, Display("toy", "samples", stream or io.StringIO())
    )


def path_in(directory):
    return directory / f"{RECIPE.stem}.npz"


def test_a_made_set_is_read_back_without_solving(tmp_path):
    first, second = Solver(), Solver()
    assert make(tmp_path, first)[1] == pytest.approx(TARGETS)
    assert make(tmp_path, second)[1] == pytest.approx(TARGETS)
    assert (first.solved, second.solved) == (12, 0)
    assert [p.name for p in tmp_path.iterdir()] == [path_in(tmp_path).name]  # no unfinished archive stays


def test_progress_is_reported_unless_it_is_not_wanted(tmp_path, capsys):
    toy = simulation.SimulatedSet(
        "toy", 1, 4, 5, lambda mesh: None, lambda n, seed: INPUTS, lambda mesh, y: Solver()(y)
    )
    for wanted in (False, True):
        path, inputs, targets = toy.simulated(12, 5, data_dir=tmp_path / str(wanted), workers=1, progress=wanted)
        assert path == tmp_path / str(wanted) / "toy" / path_in(tmp_path).name
        assert (inputs == INPUTS).all()
        assert targets == pytest.approx(TARGETS)
        said = capsys.readouterr().err.splitlines()
        assert said == (["toy: 12 of 12 samples to simulate", "toy: 12 of 12 samples, 0 s left"] if wanted else [])


def test_an_interrupted_set_goes_on_where_it_stopped(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, Solver(fail_after=5))
    assert not path_in(tmp_path).exists()
    rest = Solver()
    assert (make(tmp_path, rest)[1] == TARGETS).all()
    assert rest.solved == 7


@pytest.mark.parametrize("damage", ["cut", "altered"])
def test_a_damaged_unfinished_set_is_begun_again(damage, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, Solver(fail_after=5))
    (unfinished,) = tmp_path.glob("*.partial")
    content = bytearray(unfinished.read_bytes())
    content[300] ^= 1
    unfinished.write_bytes(content if damage == "altered" else content[:-1])
    rest = Solver()
    assert (make(tmp_path, rest)[1] == TARGETS).all()
    assert rest.solved == 12


def test_what_is_solved_is_written_before_the_end(tmp_path):
    """Written at once, so that a killed run has it."""
    seen = []

    def solve(inputs):
        seen.append(simulation.solved_before(tmp_path / f"{RECIPE.stem}.partial", STAMP))
        return Solver()(inputs)

    make(tmp_path, solve)
    assert seen[0] is None
    assert (seen[1][0] == TARGETS[0]).all()
    assert np.isnan(seen[1][1:]).all()


def test_an_unfinished_set_of_another_version_is_not_used(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, Solver(fail_after=5))
    rest = Solver()
    make(tmp_path, rest, Recipe("toy", 2, 5, 12, 0))
    assert rest.solved == 12


def damage_by_cutting(path):
    os.truncate(path, path.stat().st_size // 2)


def damage_by_emptying(path):
    os.truncate(path, 0)


def damage_by_another_version(path):
    archive.write(path, Recipe("toy", 0, 5, 12, 0).stamp(INPUTS), INPUTS, TARGETS + 1)


def damage_by_other_inputs(path):
    archive.write(path, RECIPE.stamp(INPUTS + 1), INPUTS + 1, TARGETS + 1)


def damage_by_altering(path):
    with np.load(path) as file:
        content = dict(file)
    content["targets"][3, 2] += 1e-9
    np.savez(path, **content)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage_by_cutting, "is cut or is not an archive"),
        (damage_by_emptying, "is cut or is not an archive"),
        (damage_by_another_version, "another version or recipe"),
        (damage_by_other_inputs, "another version or recipe"),
        (damage_by_altering, "does not match its checksum"),
    ],
)
def test_a_damaged_or_foreign_archive_is_made_again_with_a_note(damage, reason, tmp_path, capsys):
    make(tmp_path, Solver())
    damage(path_in(tmp_path))
    with pytest.raises(UnusableArchive, match=reason):
        archive.read(path_in(tmp_path), STAMP)
    again = Solver()
    assert (make(tmp_path, again, stream=sys.stderr)[1] == TARGETS).all()
    assert again.solved == 12
    assert f"{reason}" in capsys.readouterr().err
    assert (archive.read(path_in(tmp_path), STAMP)[1] == TARGETS).all()


def test_stamp_holds_everything_a_set_depends_on():
    stamps = {
        Recipe(*fields).stamp(inputs)
        for fields, inputs in (
            (("toy", 1, 5, 12, 0), INPUTS),
            (("other", 1, 5, 12, 0), INPUTS),
            (("toy", 2, 5, 12, 0), INPUTS),
            (("toy", 1, 6, 12, 0), INPUTS),
            (("toy", 1, 5, 13, 0), INPUTS),
            (("toy", 1, 5, 12, 1), INPUTS),
            (("toy", 1, 5, 12, 0), INPUTS + 1e-15),
        )
    }
    assert len(stamps) == 7
    assert json.loads(STAMP)["version"] == 1


def test_a_solver_that_returns_nan_never_becomes_a_set(tmp_path):
    with pytest.raises(ArithmeticError, match="solver of toy failed for"):
        make(tmp_path, lambda inputs: np.full((len(inputs), 4), np.nan))
    assert not path_in(tmp_path).exists()


def test_a_failed_write_ends_the_worker_processes_at_once(tmp_path, monkeypatch):
    ended = []

    def blocks(solve, inputs, blocks, workers):
        try:
            yield np.array([0]), TARGETS[:1]
        finally:
            ended.append(True)

    def refuse(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(simulation, "solve_blocks", blocks)
    monkeypatch.setattr(archive, "write", refuse)
    with pytest.raises(OSError, match="No space left") as caught:
        make(tmp_path, Solver())
    assert ended, caught  # while the traceback is still held


def test_too_little_room_is_reported_before_anything_is_solved(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 100))
    solver = Solver()
    with pytest.raises(OSError, match=r"No space left.*needs about 0.0 MB.*--data-dir or GNVPRO_DATA") as caught:
        make(tmp_path, solver)
    assert caught.value.errno == errno.ENOSPC
    assert solver.solved == 0


def test_a_file_that_cannot_grow_is_a_clear_error_and_leaves_no_part_of_a_set(tmp_path):
    resource = pytest.importorskip("resource", reason="file size limits are POSIX")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    rest = Solver()
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, hard))
    try:
        with pytest.raises(OSError, match="make room or choose another directory"):
            make(tmp_path, Solver())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())
    assert (make(tmp_path, rest)[1] == TARGETS).all()
    assert rest.solved == 12


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"cannot write .*file.*data_dir, --data-dir or GNVPRO_DATA"):
        make(tmp_path / "file" / "cache", Solver())


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_named(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OSError, match=r"cannot write .*Permission denied"):
            make(tmp_path, Solver())
    finally:
        tmp_path.chmod(0o700)


def test_a_read_only_file_system_is_named(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(OSError, match=r"cannot write .*Read-only file system.*--data-dir or GNVPRO_DATA"):
        make(tmp_path, Solver())


def test_a_complete_set_in_a_read_only_directory_is_used(tmp_path, monkeypatch):
    make(tmp_path, Solver())
    monkeypatch.setattr(Path, "mkdir", lambda *_a, **_k: pytest.fail("wrote to a directory it need not write to"))
    monkeypatch.setattr(archive, "write", lambda *_a: pytest.fail("wrote to a directory it need not write to"))
    solver = Solver()
    assert (make(tmp_path, solver)[1] == TARGETS).all()
    assert solver.solved == 0


# Tests that run in the background of a shell inherit its deafness to Ctrl-C.
LONG_RUN = """import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from gnvpro.data import dcr
dcr.load(3000, 24, data_dir={directory!r}, workers=2)
"""
# workers have one thread, this process perhaps more, and sum in another order: equal to the solver's residual of 1e-10
# times the largest difference, about 10
ROUNDING = 1e-9


def start_long_run(directory):
    """A script without a __main__ guard that makes 3000 samples with two processes; returns once ten are kept."""
    script = directory / "script.py"
    script.write_text(LONG_RUN.format(directory=str(directory)))
    process = subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while kept_in(directory) < 10:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "no sample finished within two minutes"
        time.sleep(0.02)
    return process


def kept_in(directory):
    unfinished = directory / "dcr" / "dcr-mesh24-samples3000-seed0.partial"
    targets = archive.read(unfinished)[1] if unfinished.exists() else np.full((1, 1), np.nan)
    return int(np.isfinite(targets[:, 0]).sum())


def children_of(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="watches processes through /proc")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT], ids=["kill", "ctrl-c"])
def test_a_killed_run_keeps_its_samples_and_leaves_no_process_behind(end, tmp_path):
    process = start_long_run(tmp_path)
    workers = children_of(process.pid)
    assert len(workers) >= 2
    process.send_signal(end)
    _, said = process.communicate(timeout=30)
    assert process.returncode == -end
    if end == signal.SIGINT:
        assert "samples are kept, the same call goes on from there" in said
    deadline = time.monotonic() + 20
    while any(running(pid) for pid in workers):
        assert time.monotonic() < deadline, "worker processes outlive their parent"
        time.sleep(0.05)

    kept = kept_in(tmp_path)
    assert 10 <= kept < 3000
    unsolved = dataclasses.replace(dcr.SET, solve=lambda mesh, inputs: np.zeros((len(inputs), 882)))
    _, inputs, targets = unsolved.simulated(3000, 24, data_dir=tmp_path, workers=1, progress=False)
    solved_before = targets.any(axis=1)
    assert solved_before.sum() == kept
    some = np.flatnonzero(solved_before)[:3]
    assert np.abs(targets[some] - dcr.problem.simulate(24, inputs[some])).max() < ROUNDING


@pytest.mark.slow
def test_parallel_blocks_are_those_of_one_process():
    inputs = dcr.draw(4, 0)
    blocks = [np.array([0]), np.array([1, 3]), np.array([2])]
    solve = partial(dcr.problem.simulate, 24)
    targets = np.zeros((4, 882))
    for rows, part in simulation.solve_blocks(solve, inputs, blocks, 2):
        targets[rows] = part
    assert np.abs(targets - solve(inputs)).max() < ROUNDING
