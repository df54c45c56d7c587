"""The journal of a run: records in order, checkpoints when due and on interruption, listeners last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gnvpro.minimize.status import Status
from gnvpro.training.checkpoint import Checkpoint, load
from gnvpro.training.history import History, Record
from gnvpro.training.journal import Journal


def record(iteration: int) -> Record:
    return Record(iteration, 1.0, 1.0, None, None, None, None, True, work=1.0, seconds=0.0, inner_seconds=0.0)


class Heard:
    def __init__(self) -> None:
        self.words: list[Any] = []

    def begin(self, history: History, budget: float) -> None:
        self.words.append(("begin", len(history), budget))

    def record(self, record: Record) -> None:
        self.words.append(record.iteration)

    def end(self, status: Status) -> None:
        self.words.append(status)


def test_listeners_hear_of_beginning_records_and_end() -> None:
    heard = Heard()
    journal = Journal(None, [heard])
    with journal.watched(7.0):
        journal.publish(record(0), lambda: pytest.fail("nobody asked for a checkpoint"))
        journal.status = Status.CONVERGED
    assert heard.words == [("begin", 0, 7.0), 0, Status.CONVERGED]


def test_an_interruption_writes_the_last_state_and_is_handed_on(tmp_path: Path) -> None:
    file = tmp_path / "run.pt"
    heard = Heard()
    journal = Journal(Checkpoint(file, every=100), [heard])

    def run() -> None:
        with journal.watched(1.0):
            journal.publish(record(0), lambda: {"identity": {"a": "b"}, "x": 0})
            journal.publish(record(1), lambda: {"identity": {"a": "b"}, "x": 1})
            journal.publish(record(2), None)  # after which no run can continue
            assert not file.exists()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert heard.words[-1] is Status.RUNNING
    again = Journal(Checkpoint(file, every=100), [])
    saved = load(file)
    again.take_up(file, saved, {"a": "b"})
    assert saved["x"] == 1
    assert [r.iteration for r in again.history] == [0, 1]
    with pytest.raises(ValueError, match="is of another run: a was"):
        Journal(None, []).take_up(file, saved, {"a": "c"})


def test_what_listeners_do_does_not_cost_the_iteration(tmp_path: Path) -> None:
    file = tmp_path / "run.pt"

    class Fails(Heard):
        def record(self, record: Record) -> None:
            raise RuntimeError("out of paper")

    journal = Journal(Checkpoint(file, every=100), [Fails()])
    with pytest.raises(RuntimeError, match="out of paper"), journal.watched(1.0):
        journal.publish(record(0), lambda: {"identity": {}, "x": 0})
    assert load(file)["history"].count(b"\n") == 0
    assert load(file)["status"] == "RUNNING"


def test_checkpoints_are_written_when_they_are_due(tmp_path: Path) -> None:
    file = tmp_path / "run.pt"
    journal = Journal(Checkpoint(file, every=2), [])
    journal.publish(record(0), lambda: {"identity": {}, "x": 0})
    assert not file.exists()
    journal.publish(record(1), lambda: {"identity": {}, "x": 1})
    assert load(file)["x"] == 1
