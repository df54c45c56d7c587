"""Records of a run, and what they are written to."""

from __future__ import annotations

import csv

import pandas
import pytest

from gnvpro.extend import History, Record
from gnvpro.training.history import FIELDS


def record(iteration, **changes):
    values = {
        "iteration": iteration,
        "loss": 1.0 / 3 / (iteration + 1),
        "misfit": 0.1,
        "gradient_norm": 1e-17,
        "radius": None,
        "ratio": None,
        "rank": None,
        "accepted": True,
        "work": float(iteration),
        "seconds": 0.5,
        "inner_seconds": 0.1,
    }
    return Record(**{**values, **changes})


HISTORY = History([record(0), record(1, rank=3, ratio=0.75, radius=2.5, accepted=False), record(2, accuracy=0.5)])


def test_a_history_is_a_sequence():
    assert len(HISTORY) == 3
    assert HISTORY[-1].iteration == 2
    assert isinstance(HISTORY[1:], History)
    assert [r.iteration for r in HISTORY[1:]] == [1, 2]
    assert [r.iteration for r in HISTORY] == HISTORY.column("iteration") == [0, 1, 2]
    longer = History(HISTORY)
    longer.append(record(3))
    assert (len(longer), len(HISTORY)) == (4, 3)


def test_csv_gives_every_number_back_to_the_last_bit(tmp_path):
    path = tmp_path / "history.csv"
    HISTORY.to_csv(path)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == FIELDS
    for row, r in zip(rows, HISTORY, strict=True):
        for name, text in row.items():
            value = getattr(r, name)
            if value is None:
                assert text == ""
            elif isinstance(value, bool):
                assert text == str(value)
            else:
                assert float(text) == value


def test_data_frame_has_a_row_a_record():
    frame = HISTORY.to_dataframe()
    assert list(frame.columns) == FIELDS
    assert frame["loss"].tolist() == HISTORY.column("loss")
    assert frame["accepted"].tolist() == [True, False, True]
    assert pandas.isna(frame["rank"][0])
    assert frame["rank"][1] == 3


def test_data_frame_of_a_csv_is_the_data_frame(tmp_path):
    HISTORY.to_csv(tmp_path / "history.csv")
    read = pandas.read_csv(tmp_path / "history.csv")
    for name in ("iteration", "loss", "misfit", "gradient_norm", "work", "accepted"):
        assert read[name].tolist() == pytest.approx(HISTORY.column(name), rel=1e-14)


def test_repr_tells_the_run():
    assert repr(History()) == "History(empty)"
    assert "3 records" in repr(HISTORY)
    assert "2 work units" in repr(HISTORY)


def test_records_cannot_be_changed():
    with pytest.raises(AttributeError):
        HISTORY[0].loss = 2.0  # type: ignore[misc]
    assert record(5).to_dict()["iteration"] == 5
