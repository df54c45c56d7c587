"""`gnvpro train` and `gnvpro predict`: a table in; a model, scores, card and report out."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

from gnvpro.cli import app
from gnvpro.policy import EstimatorPolicy, Policy
from gnvpro.sklearn import GNvproClassifier, GNvproRegressor
from gnvpro.tabular import model_file
from gnvpro.tabular.model_file import TableModel
from gnvpro.tabular.read import read_table
from gnvpro.tabular.table_columns import Columns
from gnvpro.tabular.table_scores import coverage, importance


def command(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def beams(n=80, seed=0):
    random = np.random.default_rng(seed)
    frame = pandas.DataFrame(
        {"width": random.uniform(1, 2, n), "metal": random.choice(["steel", "brass"], n), "idle": random.normal(size=n)}
    )
    frame["load"] = frame.width**2 + 3.0 * (frame.metal == "steel")
    frame["grade"] = np.where(frame.load > 4, "strong", "weak")
    return frame


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    beams().to_csv(folder / "beams.csv", index=False)
    done = command(
        "train", folder / "beams.csv", "--target", "load", "--drop", "grade", "--out", folder / "run", "--work", 60
    )
    assert done.exit_code == 0, done.output
    return folder, done.output


def test_training_writes_everything_that_was_promised(trained):
    folder, output = trained
    names = {path.name for path in (folder / "run").iterdir()}
    assert names == {
        "model.safetensors",
        "model.md",
        "metrics.json",
        "history.csv",
        "predictions.csv",
        "config.json",
        "report.html",
    }
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    assert metrics["rows"] == {"train": 64, "test": 16}
    assert metrics["test"]["rmse"] < 0.3 * metrics["baselines"]["mean"]["rmse"]
    assert set(metrics["baselines"]) == {"mean", "linear regression", "boosted trees"}
    assert "held-out rows" in output
    assert f"{metrics['test']['rmse']:.4g}" in output
    assert f"{metrics['test']['rmse']:.4g}" in (folder / "run" / "model.md").read_text()
    assert next(iter(metrics["importance"])) == "metal"


def test_scores_are_those_of_the_written_predictions(trained):
    folder, _ = trained
    table = pandas.read_csv(folder / "run" / "predictions.csv")
    rmse = np.sqrt(((table["load"] - table["predicted load"]) ** 2).mean())
    assert json.loads((folder / "run" / "metrics.json").read_text())["test"]["rmse"] == pytest.approx(rmse)
    assert np.allclose(table["load"], beams()["load"].to_numpy()[table["row"]])


def test_no_phase_is_silent(trained):
    _, output = trained
    assert "reading" in output
    assert "training on 64 rows of 3 columns; 16 rows are held out" in output
    assert "scoring" in output


def test_predictions_are_those_of_the_trained_model(trained):
    folder, _ = trained
    beams(7, seed=3).drop(columns=["load"]).to_csv(folder / "new.csv", index=False)
    done = command("predict", folder / "run" / "model.safetensors", folder / "new.csv", "--out", folder / "out.csv")
    assert done.exit_code == 0, done.output
    found = pandas.read_csv(folder / "out.csv")
    assert list(found.columns) == ["width", "metal", "idle", "grade", "predicted load", "std of load"]
    assert (found["predicted load"] - beams(7, seed=3)["load"]).abs().max() < 0.3
    printed = command("predict", folder / "run" / "model.safetensors", folder / "new.csv").stdout
    assert next(csv.reader(printed.splitlines()))[-1] == "std of load"


@pytest.mark.parametrize("classes", [None, ["no", "yes"], [3, 5, 7]])
def test_a_written_model_predicts_the_same(classes, tmp_path):
    pieces = Policy(estimator=EstimatorPolicy(pieces_from=0))
    random = np.random.default_rng(0)
    X = random.normal(size=(40, 3))
    columns = Columns({"a": "number", "b": "number", "c": "number"}, ("t",) if classes else ("s", "t"))
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    if classes:
        y = np.array(classes)[
            np.clip((X[:, 0] > 0).astype(int) + (X[:, 1] > 1) * (len(classes) - 2), 0, len(classes) - 1)
        ]
        model = TableModel(GNvproClassifier(random_state=0, work=20, policy=pieces).fit(frame, y), columns)
    else:
        model = TableModel(GNvproRegressor(random_state=0, work=20).fit(frame, X[:, :2] ** 2), columns)
    model_file.save(tmp_path / "m.safetensors", model)
    again = model_file.load(tmp_path / "m.safetensors")
    assert again.columns == columns
    assert again.classifies == (classes is not None)
    assert np.array_equal(again.estimator.predict(frame), model.estimator.predict(frame))
    if classes:
        assert np.array_equal(again.estimator.predict_proba(frame), model.estimator.predict_proba(frame))
    else:
        # the order of sums depends on how a matrix lies in memory
        assert np.allclose(
            again.estimator.predict(frame, True)[1], model.estimator.predict(frame, True)[1], rtol=1e-12, atol=0
        )


@pytest.mark.slow
def test_classes_are_learnt_from_parquet(tmp_path):
    beams().to_parquet(tmp_path / "beams.parquet")
    done = command(
        "train",
        tmp_path / "beams.parquet",
        "--target",
        "grade",
        "--drop",
        "load",
        "--classify",
        "--out",
        tmp_path / "r",
        "--work",
        30,
    )
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "r" / "metrics.json").read_text())["test"]["accuracy"] > 0.8
    done = command(
        "predict", tmp_path / "r" / "model.safetensors", tmp_path / "beams.parquet", "--out", tmp_path / "p.parquet"
    )
    found = pandas.read_parquet(tmp_path / "p.parquet")
    assert set(found["predicted grade"]) <= {"strong", "weak"}
    assert np.allclose(found["probability of strong"] + found["probability of weak"], 1)


@pytest.mark.slow
def test_the_report_shows_the_run_and_runs_no_text_of_it(trained, tmp_path):
    folder, _ = trained
    page = (folder / "run" / "report.html").read_text()
    assert page.count("<img") == 4
    assert "boosted trees" in page
    assert not re.search(r"https?://(?!www.w3.org)", page)
    bad = beams().rename(columns={"idle": "<script>alert(1)</script>"})
    bad.to_csv(tmp_path / "b.csv", index=False)
    command("train", tmp_path / "b.csv", "--target", "load", "--drop", "grade", "--out", tmp_path / "r", "--work", 3)
    assert "<script>alert" not in (tmp_path / "r" / "report.html").read_text()
    shown = command("report", tmp_path)
    assert shown.exit_code == 0, shown.output
    assert "boosted trees" in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "lod"], "has no column 'lod'.*it has 'width'"),
        (["--target", "grade"], "'strong'|'weak'.*add --classify"),
        (["--target", "load", "--drop", "nothing"], "no column 'nothing' .--drop"),
        (["--target", "load", "--drop", "load"], "both --target and --drop"),
        (["--target", "load", "--target", "width", "--classify"], "one --target"),
        (["--target", "load", "--test", "2"], "give a share such as 0.2"),
        (
            ["--target", "load", "--drop", "width", "--drop", "metal", "--drop", "idle", "--drop", "grade"],
            "nothing to learn",
        ),
    ],
)
def test_mistakes_are_answered_in_one_line_that_names_the_remedy(words, message, tmp_path):
    beams().to_csv(tmp_path / "beams.csv", index=False)
    done = command("train", tmp_path / "beams.csv", "--out", tmp_path / "run", *words)
    assert done.exit_code == 1
    last = done.output.strip().splitlines()[-1]
    assert last.startswith("gnvpro: ")
    assert re.search(message, last)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_empty_cells_are_counted_and_can_be_left_out(tmp_path):
    frame = beams()
    frame.loc[3, "width"] = np.nan
    frame.loc[5, "idle"] = np.inf
    frame.loc[7, "metal"] = None
    frame.to_csv(tmp_path / "b.csv", index=False)
    words = ("train", tmp_path / "b.csv", "--target", "load", "--drop", "grade", "--out", tmp_path / "r", "--work", 3)
    kept = command(*words)
    assert kept.exit_code == 0
    assert "note: 3 of 80 rows" in kept.output
    assert "--drop-incomplete" in kept.output
    assert command(*words, "--drop-incomplete", "--overwrite").exit_code == 0
    assert json.loads((tmp_path / "r" / "metrics.json").read_text())["rows"]["train"] == 62


def test_another_run_is_not_written_over(trained):
    folder, _ = trained
    done = command("train", folder / "beams.csv", "--target", "load", "--out", folder / "run")
    assert done.exit_code == 1
    assert "--overwrite" in done.output


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_separator_is_taken_from_the_first_line(separator, tmp_path):
    beams().to_csv(tmp_path / "b.csv", index=False, sep=separator)
    assert list(read_table(tmp_path / "b.csv").columns) == ["width", "metal", "idle", "load", "grade"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read"),
        ("a,b\n", "no rows"),
        ("a,a\n1,2\n", "several columns|cannot|a"),
        ('a,b\n1,"2\n', "b.csv cannot be read as a table: .*string"),
        (None, "there is no file"),
    ],
)
def test_a_table_that_is_none_is_refused(content, message, tmp_path):
    if content is not None:
        (tmp_path / "b.csv").write_text(content)
    done = command("train", tmp_path / "b.csv", "--target", "b", "--out", tmp_path / "r")
    assert done.exit_code == 1
    assert re.search(message, done.output)


def test_what_the_model_does_not_know_is_refused(trained, tmp_path):
    folder, _ = trained
    model = folder / "run" / "model.safetensors"
    for frame, message in [
        (beams().drop(columns="width"), "lacks the column 'width'"),
        (beams().assign(width="wide"), "no number"),
    ]:
        frame.to_csv(tmp_path / "n.csv", index=False)
        done = command("predict", model, tmp_path / "n.csv")
        assert done.exit_code == 1
        assert message in done.output


def test_a_category_that_the_model_does_not_know_is_predicted_and_said(trained, tmp_path):
    folder, _ = trained
    beams().assign(metal="gold").to_csv(tmp_path / "n.csv", index=False)
    done = command("predict", folder / "run" / "model.safetensors", tmp_path / "n.csv")
    assert done.exit_code == 0, done.output
    assert done.output.count("note: column 'metal' holds 'gold', which was not in training (80 rows") == 1


def test_other_files_are_not_taken_for_a_model(tmp_path):
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(2)}, tmp_path / "weights.safetensors")
    (tmp_path / "text.safetensors").write_text("nothing")
    beams().to_csv(tmp_path / "n.csv", index=False)
    for name, message in [
        ("weights", "no model of a table"),
        ("text", "no safetensors file"),
        ("none", "there is no file"),
    ]:
        done = command("predict", tmp_path / f"{name}.safetensors", tmp_path / "n.csv")
        assert done.exit_code == 1
        assert message in done.output


def test_importance_is_the_growth_of_the_error():
    X = np.random.default_rng(0).normal(size=(200, 3))
    grown = importance(
        lambda Z: float(((Z["b"] - X[:, 1]) ** 2).mean()), pandas.DataFrame(X, columns=["a", "b", "c"]), seed=0
    )
    assert grown["a"] == grown["c"] == 0
    assert next(iter(grown)) == "b"


def test_coverage_counts_observations_within_deviations():
    found = coverage(np.array([0.0, 1.5, 3.0, -0.5]), np.zeros(4), np.ones(4))
    assert found == {"within_1_std": 0.5, "within_2_std": 0.75}
