"""Results of a run for people: plot, summary, the table of a notebook, the saved model and its card."""

from __future__ import annotations

import dataclasses
import sys

import pytest
import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file
from torch import nn

import gnvpro
from gnvpro.drawing import readable_log_axis
from gnvpro.policy import BatchPolicy, Policy, SolverPolicy
from gnvpro.training.summary import Summary, described


@pytest.fixture(scope="module")
def result():
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 60, dtype=torch.float64)[:, None]
    model = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    return gnvpro.train(
        model,
        x,
        (x > 0.2).long(),
        loss="logistic",
        work=60,
        solver="krylov",
        validation=(x[::4], (x[::4] > 0.2).long()),
    )


def lines(figure):
    return {axes.get_title(): {line.get_label(): line for line in axes.get_lines()} for axes in figure.get_axes()}


@pytest.mark.parametrize("against", ["work", "seconds", "iteration"])
def test_the_plot_shows_what_the_records_hold(result, against):
    figure = result.plot(against)
    assert isinstance(figure, Figure)
    drawn = lines(figure)
    assert drawn["loss"]["objective"].get_ydata().tolist() == result.history.column("loss")
    assert drawn["loss"]["objective"].get_xdata().tolist() == result.history.column(against)
    assert drawn["loss"]["validation misfit"].get_ydata().tolist() == result.history.column("validation_loss")
    assert drawn["accuracy"]["validation"].get_ydata().tolist() == result.history.column("validation_accuracy")
    radii = [radius for radius in result.history.column("radius") if radius is not None]
    assert drawn["size of the step"]["trust radius"].get_ydata().tolist() == radii


def test_penalties_are_drawn_where_they_change(result):
    assert "penalties" not in lines(result.plot())
    changed = [dataclasses.replace(record, theta_penalty=0.1 / (k + 1)) for k, record in enumerate(result.history)]
    drawn = lines(gnvpro.extend.History(changed).plot())
    assert drawn["penalties"]["theta_penalty"].get_ydata().tolist() == [0.1 / (k + 1) for k in range(len(changed))]


def test_an_axis_that_is_not_there_is_named(result):
    with pytest.raises(ValueError, match="against='hours' is not known"):
        result.history.plot("hours")
    with pytest.raises(ValueError, match="no record"):
        gnvpro.extend.History().plot()


def test_a_missing_matplotlib_is_asked_for(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'matplotlib.*gnvpro\[plot\]"):
        result.plot()


def test_a_figure_shows_itself_in_a_notebook(result, monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    assert result.plot()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(("low", "high"), [(1.5, 500), (0.9, 1.1e4), (1e-9, 1e3), (3.1, 7.9)])
def test_a_logarithmic_axis_has_enough_labels_and_not_too_many(low, high):
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1], [low, high])
    axes.set_yscale("log")
    readable_log_axis(axes.yaxis, low, high)
    figure.canvas.draw()
    shown = [t for t in axes.get_yticklabels() if t.get_text() and low <= t.get_position()[1] <= high]
    assert (3 if high / low > 10 else 1) <= len(shown) <= 12


def test_the_summary_says_how_much_of_the_gradient_is_left():
    torch.manual_seed(0)
    x = torch.rand(40, 2, dtype=torch.float64)
    net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    made = gnvpro.train(net, x, torch.sin(3 * x[:, :1]), loss="least_squares", solver="krylov", iterations=2)
    first, last = made.history[0].gradient_norm, made.history[-1].gradient_norm
    assert f"The iteration cap is reached. The gradient is {last / first:.2g} of the first." in made.summary()
    assert "gradient is" not in gnvpro.train(nn.Linear(2, 1).double(), x, x[:, :1], loss="least_squares").summary()


def test_the_summary_names_data_method_cost_and_scores(result):
    text = result.summary()
    assert isinstance(text, str)
    assert repr(text) == str(text)
    for part in ("60 samples of 1 inputs", "15 samples", "Logistic", "Krylov(max_rank=20", "theta_penalty=0.0001"):
        assert part in text
    assert str(result.status) in text
    start, end = result.history[0], result.history[-1]
    row = next(line for line in text.splitlines() if line.startswith("objective"))
    assert row.split()[1:3] == [f"{start.loss:.4g}", f"{end.loss:.4g}"]
    assert f"{end.validation_accuracy:.2%}" in text


def test_the_best_score_is_the_lowest_loss_and_the_highest_accuracy():
    def record(i, loss, accuracy):
        return gnvpro.extend.Record(i, loss, loss, None, None, None, None, True, 1.0 * i, 0.1, 0.0, accuracy=accuracy)

    history = gnvpro.extend.History([record(0, 3.0, 0.5), record(1, 1.0, 0.75), record(2, 2.0, 0.25)])
    scores = gnvpro.Result(nn.Linear(1, 1), gnvpro.Status.WORK_SPENT, history).summary().scores
    assert ["objective", "3", "2", "1"] in scores
    assert ["accuracy", "50.00%", "25.00%", "75.00%"] in scores


def test_a_notebook_gets_tables_without_markup_from_the_facts(result):
    assert result._repr_html_().count("<table>") == 2
    assert "<script>" not in Summary.of({"data": "<script>"}, [["", "a"], ["b", "c"]])._repr_html_()


def test_settings_are_written_without_what_was_left_open():
    assert described(gnvpro.solvers.Hybrid(max_rank=7)) == "Hybrid(max_rank=7, rtol=0.01)"
    assert "None" not in described(gnvpro.methods.GNvpro())


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_a_saved_model_has_its_card_beside_it(result, name, tmp_path):
    card = result.save(tmp_path / name, notes="For a test.")
    read = load_file if name.endswith("safetensors") else torch.load
    state = read(tmp_path / name)
    assert state.keys() == result.model.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in result.model.state_dict().items())
    text = card.read_text()
    assert card == tmp_path / f"{name}.md"
    for part in ("For a test.", "60 samples", "Krylov", "validation accuracy", f"torch {torch.__version__}", "Tanh()"):
        assert part in text


def test_a_plan_says_which_rules_chose_what() -> None:
    x = torch.linspace(-1, 1, 60, dtype=torch.float64)[:, None]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    policy = Policy(batches=BatchPolicy(begin_from=50), solver=SolverPolicy(cheap_first=0.0))
    result = gnvpro.train(model, x, x**2, loss="least_squares", iterations=1, policy=policy)
    assert result.plan[0] == "60 samples >= batches.begin_from = 50: starts on random batches"
    assert "solver.cheap_first = 0" in result.plan[1]
    assert result.plan[-1] == "60 numbers of inputs < memory.one_thread = 200,000: torch uses one thread"
    assert any(record.solver == "adam-vpro" for record in result.history)
    found = gnvpro.inspect(model, x, x**2, loss="least_squares", policy=policy)
    assert found.plan == result.plan
    assert result.plan[0] in str(found)
    labels = (x[:, 0] > 0).long()
    by_labels = gnvpro.train(model, x, labels[:, None].double(), loss="logistic", work=0)
    assert "4 entries of the head <= head.newton_entries = 1,500: it is eliminated by Newton" in by_labels.plan
