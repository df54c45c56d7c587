"""Listeners get every record, and write what they get."""

import csv
import io
import json

import pytest
import torch
from torch import nn

import gnvpro
from gnvpro import listeners


def train(**arguments):
    torch.manual_seed(0)
    inputs = torch.randn(30, 2, dtype=torch.float64)
    targets = (inputs[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    settings = {
        "loss": "multinomial",
        "work": 40,
        "solver": gnvpro.solvers.Krylov(max_rank=3),
        "validation": (inputs[:9], targets[:9]),
    }
    return gnvpro.train(model, inputs, targets, **{**settings, **arguments})


class Heard:
    def begin(self, history, budget):
        self.before, self.budget, self.records, self.status = list(history), budget, [], None

    def record(self, record):
        self.records.append(record)

    def end(self, status):
        self.status = status


def test_a_listener_hears_every_record_the_start_included():
    heard = Heard()
    result = train(listeners=[heard])
    assert heard.records == list(result.history)
    assert (heard.before, heard.budget, heard.status) == ([], 40, result.status)


@pytest.mark.parametrize("several", [False, True])
def test_a_function_of_a_record_is_a_listener_alone_or_among_others(several):
    records, heard = [], Heard()
    result = train(listeners=[records.append, heard] if several else records.append)
    assert records == list(result.history)
    assert not several or heard.records == records


def test_an_interrupted_run_ends_as_running():
    heard = Heard()
    with pytest.raises(ZeroDivisionError):
        train(listeners=[heard, lambda record: 1 / 0])
    assert heard.status is gnvpro.Status.RUNNING


def test_csv_and_json_lines_hold_the_history_also_of_a_resumed_run(tmp_path):
    def stop(record):
        if record.iteration == 2:
            raise KeyboardInterrupt

    def files():
        return [listeners.CSVFile(tmp_path / "h.csv"), listeners.JSONLines(tmp_path / "h.jsonl")]

    with pytest.raises(KeyboardInterrupt):
        train(listeners=[*files(), stop], checkpoint=tmp_path / "run")
    result = train(listeners=files(), checkpoint=tmp_path / "run", resume=True)
    lines = [json.loads(line) for line in (tmp_path / "h.jsonl").read_text().splitlines()]
    assert lines == [record.to_dict() for record in result.history]
    with open(tmp_path / "h.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == result.history.column("loss")
    assert rows[0]["radius"] == ""


def test_tensorboard_writes_every_number(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is an optional extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = train(listeners=[listeners.TensorBoard(tmp_path)])
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    losses = [event.value for event in events.Scalars("loss")]
    assert losses == pytest.approx(result.history.column("loss"), rel=1e-6)
    assert "validation_accuracy" in events.Tags()["scalars"]


def test_lines_are_printed_where_there_is_no_terminal(capsys):
    result = train(listeners="progress")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(result.history) + 1
    assert "loss" in lines[1]
    assert "validation" in lines[1]
    assert lines[-1] == str(result.status)


def test_lines_go_to_the_stream_that_is_given(capsys):
    stream = io.StringIO()
    result = train(listeners=[listeners.Progress(stream)])
    assert len(stream.getvalue().splitlines()) == len(result.history) + 1
    assert capsys.readouterr().err == ""


def test_a_run_is_silent_unless_asked(capsys):
    train()
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_the_bar_shows_loss_validation_work_and_radius(monkeypatch):
    pytest.importorskip("rich", reason="the bar needs rich")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    shown, progress = [], listeners.Progress()
    result = train(listeners=[progress, listeners.as_listener(lambda _: shown.append(progress._display.bar.tasks[0]))])
    assert shown[-1].completed == result.work
    assert shown[-1].total == 40
    for word in ("loss", "validation", "radius"):
        assert word in shown[-1].fields["text"]


def test_a_bar_goes_on_where_a_resumed_run_stopped(monkeypatch):
    pytest.importorskip("rich", reason="the bar needs rich")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    history, progress = train().history, listeners.Progress()
    progress.begin(history, budget=80)
    assert progress._display.bar.tasks[0].completed == history[-1].work
    progress.end(gnvpro.Status.RUNNING)


def test_listeners_may_be_objects_the_word_progress_or_functions_of_a_record():
    heard = Heard()
    assert listeners.as_listener(heard) is heard
    assert isinstance(listeners.as_listener("progress"), listeners.Progress)
    records = []
    result = train(listeners=[listeners.as_listener(records.append)])
    assert records == list(result.history)


def test_an_object_that_can_be_called_too_is_still_a_listener():
    class Both(Heard):
        def __call__(self, record):
            raise AssertionError("called although it has the methods")

    both = Both()
    assert listeners.as_listener(both) is both


@pytest.mark.parametrize("value", ["bar", 3, None, ["progress"], Heard, listeners.CSVFile], ids=repr)
def test_anything_else_is_no_listener(value):
    with pytest.raises(TypeError, match=r'listeners must be an object .* "progress", or a function of one record; got'):
        listeners.as_listener(value)
