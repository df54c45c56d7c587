"""Run directories that somebody else made: whatever is in them, the others are reported, and nothing is executed or written."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
import zipfile

import numpy as np
import pytest
from typer.testing import CliRunner

from gnvpro.cli import app
from gnvpro.experiments.experiment_run import Order, run
from gnvpro.experiments.report import write_report
from gnvpro.experiments.saved import find
from small_experiments import make_small

EVIL = '</script><script>alert("x")</script><img src=x onerror=alert(1)>'


pytestmark = pytest.mark.slow  # each makes a report


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_small(monkeypatch)
        run(Order("ellipse", ["gnvpro", "gauss-newton"], work=18, out=out))
        run(Order("cdr", ["gnvpro"], work=18, out=out))
    return out


@pytest.fixture
def runs(made, tmp_path):
    shutil.copytree(made, tmp_path / "runs")
    return tmp_path / "runs"


def change(folder, file, **values):
    content = json.loads((folder / file).read_text())
    for path, value in values.items():
        *outer, last = path.split("__")
        part = content
        for key in outer:
            part = part[key]
        part[last] = value
    (folder / file).write_text(json.dumps(content))


def data_of(text):
    return re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1]


@pytest.mark.parametrize("mark", ["/*DATA*/", "<!--SECTIONS-->"])
def test_markup_in_what_the_page_shows_stays_text(runs, mark):
    folder = runs / "ellipse" / "gnvpro-seed0"
    change(folder, "metrics.json", data=f"{mark} {EVIL}", status=EVIL)
    (runs / "ellipse" / "gauss-newton-seed0").rename(runs / "ellipse" / "a<b onmouseover=alert(1)>")
    page, problems = write_report(runs, runs / "report")
    assert problems == []
    text = page.read_text()
    assert text.count("<script") == 2  # the page's own: its data and its program
    assert text.count("</script") == 2
    assert "<img src=x" not in text
    assert "<b onmouse" not in text
    assert "<" not in data_of(text)
    assert json.loads(data_of(text))["ellipse"][0]["metrics"]["status"] == EVIL


BAD = {
    "seed: a text": ("config.json", {"seed": "1"}),
    "seed: a truth value": ("config.json", {"seed": True}),
    "seed: negative": ("config.json", {"seed": -1}),
    "settings: a number": ("config.json", {"settings": 3}),
    "settings: a list": ("config.json", {"settings": ["paper"]}),
    "settings: a mark": ("config.json", {"settings": "/*DATA*/"}),
    "settings: markup": ("config.json", {"settings": EVIL}),
    "settings: a formula": ("config.json", {"settings": "$\\frac{$"}),
    "experiment: a list": ("config.json", {"experiment": ["cdr"]}),
    "experiment: a path": ("config.json", {"experiment": "../../etc"}),
    "experiment: another": ("config.json", {"experiment": "cdr"}),
    "method: an object": ("config.json", {"method": {}}),
    "variant: a text": ("config.json", {"variant": "x"}),
    "variant: texts": ("config.json", {"variant": {"head_penalty": "x"}}),
    "variant: unknown": ("config.json", {"variant": {"../x": 1.0}}),
    "loss: another": ("config.json", {"loss": "least_squares"}),
    "work: a text": ("metrics.json", {"work": "many"}),
    "work: not a number": ("metrics.json", {"work": float("nan")}),
    "seconds: nothing": ("metrics.json", {"seconds": None}),
    "seconds: infinite": ("metrics.json", {"seconds": float("inf")}),
    "inner_seconds: a list": ("metrics.json", {"inner_seconds": [1]}),
    "data: an object": ("metrics.json", {"data": {}}),
    "status: not finite": ("metrics.json", {"status": float("nan")}),
    "test: a list": ("metrics.json", {"test": []}),
    "accuracy: a text": ("metrics.json", {"test__accuracy": "1"}),
    "class accuracy: a list": ("metrics.json", {"test__class_accuracy": []}),
    "class accuracy: texts": ("metrics.json", {"test__class_accuracy": {"0": "x"}}),
    "a huge number": ("metrics.json", {"work": 10**400}),
}


FILES = {
    "nested without end": ("metrics.json", b"[" * 100_000),
    "not JSON": ("config.json", b"\x00\xff\xfe"),
    "a list": ("metrics.json", b"[]"),
    "binary history": ("history.csv", bytes(range(256))),
    "a field without end": (
        "history.csv",
        b'work,seconds,loss,validation_loss,accuracy,validation_accuracy,level\n"' + b"a" * 300_000,
    ),
    "texts in the history": (
        "history.csv",
        b"work,seconds,loss,validation_loss,accuracy,validation_accuracy,level\na,b,c,d,e,f,g\n",
    ),
}


@pytest.mark.parametrize("case", [*BAD, *FILES])
def test_a_run_with_wrong_values_or_files_is_named_and_the_rest_is_found(runs, case):
    spoil(runs / "ellipse" / "gnvpro-seed0", case)
    found, problems = find(runs)
    assert [p.split(": ")[0] for p in problems] == ["ellipse/gnvpro-seed0"]
    assert [(run.experiment, run.method) for run in found] == [("ellipse", "gauss-newton"), ("cdr", "gnvpro")]


def test_the_report_of_the_others_is_made_however_many_are_bad(runs):
    for number, case in enumerate([*BAD, *FILES]):
        shutil.copytree(runs / "ellipse" / "gnvpro-seed0", runs / "bad" / str(number))
        spoil(runs / "bad" / str(number), case)
    page, problems = write_report(runs, runs / "report")
    assert len(problems) == len(BAD) + len(FILES)
    text = page.read_text()
    labels = {name: [run["label"] for run in part] for name, part in json.loads(data_of(text)).items()}
    assert labels == {"ellipse": ["GNvpro", "Gauss-Newton"], "cdr": ["GNvpro"]}
    assert all(f"<li>bad/{number}: " in text for number in range(len(problems)))


def spoil(folder, case):
    file, content = {**BAD, **FILES}[case]
    if isinstance(content, bytes):
        (folder / file).write_bytes(content)
    else:
        change(folder, file, **content)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def pickled():
    array = np.empty(1, dtype=object)
    array[0] = Bomb()
    buffer = io.BytesIO()
    np.savez(buffer, features=array)
    return buffer.getvalue()


def too_large():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        header = np.lib.format.header_data_from_array_1_0(np.zeros(1))
        header["shape"] = (10**12,)
        raw = io.BytesIO()
        np.lib.format.write_array_header_1_0(raw, header)
        archive.writestr("features.npy", raw.getvalue())
    return buffer.getvalue()


ARCHIVES = {
    "empty": b"",
    "not an archive": b"PK\x03\x04 nothing",
    "a pickle": pickle.dumps(Bomb()),
    "objects inside": pickled(),
    "a claim of terabytes": too_large(),
}


@pytest.mark.parametrize("case", ARCHIVES)
def test_damaged_archives_are_named_and_nothing_in_them_is_executed(runs, case, monkeypatch):
    monkeypatch.chdir(runs)
    (runs / "ellipse" / "gnvpro-seed0" / "snapshots.npz").write_bytes(ARCHIVES[case])
    page, problems = write_report(runs, runs / "report")
    assert not (runs / "executed").exists()
    assert len(problems) == 1
    assert "ellipse/gnvpro-seed0: snapshots.npz is damaged" in problems[0]
    assert (runs / "report" / "ellipse-features.png").exists()  # of the other run
    assert 'id="cdr"' in page.read_text()


def test_arrays_of_odd_shapes_cost_one_figure(runs):
    np.savez(runs / "ellipse" / "gnvpro-seed0" / "snapshots.npz", features=np.array("x"))
    page, problems = write_report(runs, runs / "report")
    assert len(problems) == 1
    assert problems[0].startswith("figure ellipse-features of ")
    assert 'id="cdr"' in page.read_text()


def test_a_fifo_is_not_waited_for(runs):
    path = runs / "ellipse" / "gnvpro-seed0" / "config.json"
    path.unlink()
    os.mkfifo(path)
    _, problems = write_report(runs, runs / "report")
    assert problems == ["ellipse/gnvpro-seed0: it is not finished: config.json is missing"]


def test_the_page_is_not_written_through_links(runs, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (runs / "report").mkdir()
    for name in ("index.html", "ellipse-convergence.png", "cdr-convergence.pdf"):
        (runs / "report" / name).symlink_to(victim)
    write_report(runs, runs / "report")
    assert victim.read_text() == "mine"
    assert (runs / "report" / "index.html").read_text().startswith("<!doctype html>")


def test_names_of_directories_do_not_steer_the_terminal(runs):
    folder = runs / "ellipse" / "gnvpro-seed0"
    (folder / "metrics.json").unlink()
    folder.rename(runs / "ellipse" / "\x1b[2Jgone")
    result = CliRunner().invoke(app, ["report", str(runs)])
    assert result.exit_code == 0
    assert "left out: ellipse/?[2Jgone: it is not finished" in result.output
    assert "\x1b" not in result.output
