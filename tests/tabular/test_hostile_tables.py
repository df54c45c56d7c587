"""Real-world tables: doubtful cells raise errors before training, and the report lists what was read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas
import pytest
from click.testing import Result
from typer.testing import CliRunner

from gnvpro.cli import app
from gnvpro.tabular.cells import read_cells
from gnvpro.tabular.order import Reading

N = 40
X = np.linspace(0, 1, N)


def command(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def written(folder: Path, lines: list[str], head: str = "a,y") -> Path:
    path = folder / "table.csv"
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


def train(path: Path, *words: object, target: str = "y") -> Result:
    return command("train", path, "--target", target, "--out", path.parent / "run", "--work", 3, *words)


def refused(done: Result, folder: Path) -> str:
    """The one line of the error; nothing was written, and training did not begin."""
    assert done.exit_code == 1, done.output
    assert "training on" not in done.output
    assert not (folder / "run").exists()
    last = done.output.strip().splitlines()[-1]
    assert last.startswith("gnvpro: ")
    return last


def pairs(a: list[object] | None = None) -> list[str]:
    return [f"{x:g},{3 * x:g}" if a is None else f"{a[k]},{3 * x:g}" for k, x in enumerate(X)]


def changed(values: dict[int, str]) -> list[str]:
    return pairs([values.get(k, f"{x:g}") for k, x in enumerate(X)])


REFUSED = {
    "every row has one cell more": ([f"{k},{p}" for k, p in enumerate(pairs())], (), "line 2 .* 3 cells.* 2 columns"),
    "one row has one cell more": ([*pairs(), "1,2,3"], (), f"line {N + 2} .* 3 cells"),
    "one row has one cell less": ([*pairs(), "1"], (), f"line {N + 2} .* 1 cells"),
    "a question mark among numbers": (changed({3: "?"}), (), r"'\?' in row 4.*--missing '\?'.*--categories a"),
    "decimal commas": (pairs([f'"{x:.3f}"'.replace(".", ",") for x in X]), (), "decimal comma.*--decimal ,"),
    "one decimal comma": (changed({5: '"0,5"'}), (), "decimal comma.*--decimal ,"),
    "an empty target": ([*pairs(), "1,"], (), r"1 of 41 rows .* \(columns 'y' 1\).*--drop-incomplete"),
    "a target given twice": (pairs(), ("--target", "y"), "--target 'y' is given twice"),
    "a target of text": ([f"{x:g},v{k % 3}" for k, x in enumerate(X)], (), "'v0', which is no number.*--classify"),
    "classes of fractions": (pairs(), ("--classify",), "no classes; leave --classify out"),
    "one class": ([f"{x:g},only" for x in X], ("--classify",), "'only' in every row"),
    "a class per row": ([f"{x:g},c{k}" for k, x in enumerate(X)], ("--classify",), "40 classes in 40 rows"),
    "a large seed": (pairs(), ("--seed", 1099511627776), "--seed must be at most 4294967295"),
    "a negative width": (pairs(), ("--hidden", -3), "--hidden must be at least 1, got -3"),
    "a category that is not there": (pairs(), ("--categories", "b"), r"no column 'b' \(--categories\)"),
    "a decimal sign of two": (pairs(), ("--decimal", ".,"), "--decimal='.,' is not known"),
    "only doubtful dates": (
        [f"1/{1 + k % 12}/2024,{x:g}" for k, x in enumerate(X)],
        (),
        "no column besides 'y'.*dates",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_doubtful_or_wrong_is_said_before_training(what: str, tmp_path: Path) -> None:
    lines, words, message = REFUSED[what]
    assert re.search(message, refused(train(written(tmp_path, lines), *words), tmp_path))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [f"{x},{x},{3 * x}" for x in X], "y,a,y")
    assert "columns 1 and 3" in refused(train(path), tmp_path)


def test_a_table_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes("größe,y\n1,2\n".encode("latin-1"))
    assert "not UTF-8" in refused(train(path), tmp_path)


READ = {
    "numbers": (["1", "2.5", "-3e2"], {}, "number", 0),
    "numbers and NA": (["1", "NA", ""], {}, "number", 2),
    "numbers and a marker": (["1", "?", "3"], {"missing": ("?",)}, "number", 1),
    "decimal commas": (["1,5", "2", "-3,25e1"], {"decimal": ","}, "number", 0),
    "an infinite number": (["1", "inf", "2"], {}, "number", 1),
    "country codes": (["NA", "DE", "FR"], {}, "category", 0),
    "codes by name": (["1", "2", "2"], {"categories": ("c",)}, "category", 0),
    "codes with one letter": (["1", "2", "2a"], {"categories": ("c",)}, "category", 0),
    "true and false": (["True", "False", ""], {}, "category", 1),
    "dates": (["2024-01-31", "2024-02-01 10:00", "2024-2-3"], {}, "date", 0),
    "German dates": (["31.1.2024", "01.02.2024", ""], {}, "date", 1),
    "nothing": (["", "", ""], {}, "empty", 3),
}


@pytest.mark.parametrize("what", READ)
def test_a_column_is_read_as_what_it_holds(what: str) -> None:
    text, settings, kind, missing = READ[what]
    cells = read_cells("c", pandas.Series(text), Reading(**settings), "table.csv")
    assert (cells.kind, cells.missing.sum()) == (kind, missing)


def test_decimal_commas_are_read_as_numbers_if_asked_for() -> None:
    cells = read_cells("c", pandas.Series(["1,5", "-2"]), Reading(decimal=","), "table.csv")
    assert cells.values.tolist() == [1.5, -2.0]
    with pytest.raises(ValueError, match=r"holds '1\.5' in row 2"):
        read_cells("c", pandas.Series(["1,5", "1.5"]), Reading(decimal=","), "table.csv")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A table with a column of every kind, trained on."""
    folder = tmp_path_factory.mktemp("mixed")
    rows = [
        f"{k},{x:g},{('DE', 'NA', 'FR')[k % 3]},{('3', '4')[k % 2]},2024-01-{1 + k % 28:02d},text {k},,"
        f"{'?' if k == 7 else f'{x * x:g}'},{3 * x + (k % 2):g}"
        for k, x in enumerate(X)
    ]
    path = written(folder, rows, ",size,country,doors,sold,remark,empty,area,y")
    done = train(path, "--missing", "?", "--drop-incomplete", "--categories", "doors")
    assert done.exit_code == 0, done.output
    return folder, done.output


def test_the_terminal_says_how_each_column_was_read(mixed: tuple[Path, str]) -> None:
    _, output = mixed
    lines = [re.sub(r"[│┃ ]+", " ", line).strip() for line in output.splitlines()]
    for name, role, how in [
        ("Unnamed: 0", "left out", "it has no name"),
        ("size", "input", "number, from 0 to 1"),
        ("country", "input", "category of 3: DE, FR, NA; is NA one of them?"),
        ("doors", "input", "category of 2: 3, 4"),
        ("sold", "input", "date, from 2024-01-01 00:00:00 to 2024-01-28 00:00:00"),
        ("remark", "left out", "text with 40 different values"),
        ("empty", "left out", "all cells are empty"),
        ("area", "input", "number, 1 missing"),
        ("y", "target", "number"),
    ]:
        assert any(line.startswith(f"{name} {role} {how}") for line in lines), (name, output)


def test_rows_that_are_left_out_are_counted(mixed: tuple[Path, str]) -> None:
    folder, output = mixed
    assert "left out: 1 of 40 rows of table.csv have empty or infinite cells (columns 'area' 1)" in output
    assert json.loads((folder / "run" / "metrics.json").read_text())["rows"] == {"train": 31, "test": 8}
    held_out = pandas.read_csv(folder / "run" / "predictions.csv")
    assert 7 not in set(held_out["row"])
    assert np.allclose(held_out["y"], [3 * X[k] + (k % 2) for k in held_out["row"]], atol=1e-4)


def test_the_terminal_and_the_report_count_the_same_inputs(mixed: tuple[Path, str]) -> None:
    folder, output = mixed
    assert "5 columns" in output
    assert "5 columns (10 inputs" in (folder / "run" / "report.html").read_text()
    assert "5 columns (10 inputs" in (folder / "run" / "model.md").read_text()


def test_a_table_is_predicted_as_the_training_table_was_read(mixed: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = mixed
    head = "size,country,doors,area,sold\n"
    (tmp_path / "new.csv").write_text(head + "0.5,NA,3,0.25,2024-01-03\n0.6,DE,4,0.36,2024-02-03\n")
    model = folder / "run" / "model.safetensors"
    done = command("predict", model, tmp_path / "new.csv")
    assert done.exit_code == 0, done.output
    (tmp_path / "new.csv").write_text(head + "0.5,NA,3,?,2024-01-03\n")
    done = command("predict", model, tmp_path / "new.csv")
    assert done.exit_code == 0
    assert "note: column 'area' has 1 missing values and had none in training" in done.output


def test_empty_cells_and_dates_are_learnt_from(tmp_path: Path) -> None:
    rows = [f"{'' if k % 5 == 0 else f'{x:g}'},{1 + k % 28}.1.2024,{3 * x + k % 28:g}" for k, x in enumerate(X)]
    done = train(written(tmp_path, rows, "a,sold,y"), "--test", 0.5)
    assert done.exit_code == 0, done.output
    assert (
        "note: 8 of 40 rows of table.csv have empty or infinite cells (columns 'a' 8); the model learns" in done.output
    )
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["rows"] == {"train": 20, "test": 20}
    assert metrics["test"]["rmse"] < 0.5 * metrics["baselines"]["mean"]["rmse"]
    new = tmp_path / "new.csv"
    new.write_text("a,sold\n,2024-01-05\n0.5,31.1.2024\n")
    done = command("predict", tmp_path / "run" / "model.safetensors", new)
    assert done.exit_code == 0, done.output
    assert len(done.stdout.strip().splitlines()) == 3


NAMES = {
    "row": ("row", ()),
    "what a prediction is called": ("predicted y", ()),
    "a formula": (r"$\frac{$", ()),
    "a tag": ("<img src=x onerror=alert(1)>", ()),
    "a pipe and a backtick": ("a|b`c", ()),
    "very long": ("n" * 300, ()),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", NAMES)
def test_a_target_and_an_input_may_have_any_name(what: str, tmp_path: Path) -> None:
    name, words = NAMES[what]
    frame = pandas.DataFrame({name: 3 * X, f"in {name}": X, f"kind {name}": ["<b>u</b>", "$v$"] * (N // 2)})
    frame.to_csv(tmp_path / "table.csv", index=False)
    done = train(tmp_path / "table.csv", *words, target=name)
    assert done.exit_code == 0, done.output
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"model.safetensors", "model.md", "metrics.json", "predictions.csv", "report.html"} <= files
    for file in ("model.md", "report.html"):
        text = (tmp_path / "run" / file).read_text()
        assert "<img src=x" not in text
        assert "<b>u" not in text
    done = command(
        "predict", tmp_path / "run" / "model.safetensors", tmp_path / "table.csv", "--out", tmp_path / "p.csv"
    )
    assert done.exit_code == 0, done.output
    assert len(set(pandas.read_csv(tmp_path / "p.csv", nrows=0).columns)) == 5


@pytest.mark.slow
def test_a_class_of_one_row_is_trained_on_whatever_the_seed(tmp_path: Path) -> None:
    labels = ["u", "v"] * (N // 2) + ["rare"]
    path = written(tmp_path, [f"{k / N},{label}" for k, label in enumerate(labels)])
    for seed in range(4):
        done = train(path, "--classify", "--seed", seed, "--overwrite", "--test", 0.5)
        assert done.exit_code == 0, done.output
        held_out = pandas.read_csv(tmp_path / "run" / "predictions.csv")
        assert "rare" not in set(held_out["y"])
        assert "probability of rare" in held_out


@pytest.mark.slow
def test_a_report_that_cannot_be_written_costs_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gnvpro.tabular import table_run as run

    def fail(*given: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(run, "write_predictions", fail)
    path = written(tmp_path, pairs())
    done = train(path)
    assert done.exit_code == 1
    last = done.output.strip().splitlines()[-1]
    assert "predictions.csv could not be written: No space left on device" in last
    assert {"model.safetensors", "model.md", "metrics.json"} <= {p.name for p in (tmp_path / "run").iterdir()}
    assert command("predict", tmp_path / "run" / "model.safetensors", path).exit_code == 0


def test_training_prints_at_most_a_screen_unless_asked_for_more(tmp_path: Path) -> None:
    path = written(tmp_path, [f"{x:g}," * 60 + f"{3 * x:g}" for x in X], ",".join([*(f"c{k}" for k in range(60)), "y"]))
    done = train(path)
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) <= 45
    assert "and 48 more" in done.output
    more = train(path, "--verbose", "--overwrite", "--work", 60)
    assert len(more.output.splitlines()) > len(done.output.splitlines())
