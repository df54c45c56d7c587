"""The report: its numbers equal metrics.json, it is self-contained, and a browser draws it."""

import html
import json
import re
import shutil
import subprocess
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gnvpro.cli import app
from gnvpro.experiments.catalogue import EXPERIMENTS
from gnvpro.experiments.classification_figures import confusion_matrix
from gnvpro.experiments.experiment_run import Order, run
from gnvpro.experiments.numbers import score, seconds
from gnvpro.experiments.paper_numbers import PAPER
from gnvpro.experiments.report import sources, write_report
from gnvpro.experiments.saved import find
from small_experiments import make_small

SETS = ("train", "validation", "test")


pytestmark = pytest.mark.slow  # they share one run of every experiment


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A directory with runs of every experiment, several seeds of one, and tuned ones."""
    out = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_small(monkeypatch)
        for name in EXPERIMENTS:
            methods = ["gnvpro"] if name in ("cifar10", "peaks") else ["gnvpro", "gauss-newton"]
            run(Order(name, methods, work=18, out=out))
        run(Order("cdr", ["gnvpro"], [1], work=18, out=out))
        run(Order("cdr", ["gnvpro"], work=18, out=out / "paper", paper=True))
        for penalty in (1e-2, 1e-6):
            run(Order("indian-pines", ["gnvpro"], work=18, out=out, head_penalty=penalty))
    return out


@pytest.fixture(scope="module")
def page(runs):
    path, problems = write_report(runs, runs / "report")
    assert problems == []
    return path


def saved(runs):
    return {path.parent: json.loads(path.read_text()) for path in runs.rglob("metrics.json")}


def data_in(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def rows_of(text, experiment):
    part = re.search(rf'<section id="{experiment}">(.*?)</section>', text, re.DOTALL)[1]
    table = re.search(r"<tbody>(.*?)</tbody>", part, re.DOTALL)[1]
    rows = []
    for row in re.findall(r"<tr(.*?)</tr>", table, re.DOTALL):
        cells = re.findall(r"<t[hd]>(.*?)</t[hd]>", row, re.DOTALL)
        rows.append([html.unescape(re.sub(r"<[^>]*>", " ", cell)).strip() for cell in cells])
    return rows


def test_the_table_holds_the_numbers_of_every_run(runs, page):
    text = page.read_text()
    for folder, metrics in saved(runs).items():
        config = json.loads((folder / "config.json").read_text())
        wanted = [score(metrics[name]) for name in SETS] + [f"{metrics['work']:.0f}", seconds(metrics["seconds"])]
        found = [
            row[3:8]
            for row in rows_of(text, metrics["experiment"])
            if row[2] == str(config["seed"]) and row[1].startswith(config["settings"])
        ]
        assert wanted in found


def test_the_data_of_the_page_are_the_metrics_to_the_last_digit(runs, page):
    data = data_in(page.read_text())
    assert list(data) == list(EXPERIMENTS)
    kept = [curve["metrics"] for curves in data.values() for curve in curves]
    standard = [
        m for folder, m in saved(runs).items() if not json.loads((folder / "config.json").read_text())["variant"]
    ]
    assert sorted(kept, key=json.dumps) == sorted(standard, key=json.dumps)


def test_the_papers_numbers_stand_beside_ours(page):
    text = page.read_text()
    rows = rows_of(text, "cdr")
    papers = {row[0]: row[3:7] for row in rows if row[1] == "the paper"}
    assert papers["GNvpro"] == ["0.0045 ± 0.0021", "0.0057 ± 0.0033", "0.0060 ± 0.0032", "600"]
    assert len(papers) == len(PAPER["cdr"])
    assert any("72.95%" in row for row in rows_of(text, "cifar10"))


def test_the_seeds_of_one_source_are_told_together():
    told = ["authors, split by seed 10", "authors, split by seed 2", "generated, seed 4", "own file"]
    runs = [SimpleNamespace(metrics={"data": text}) for text in told]
    assert sources(runs) == "authors, split by seeds 2, 10; generated, seed 4; own file"


def test_the_page_needs_nothing_but_itself(page):
    text = page.read_text()
    assert set(re.findall(r'(?:src|href)="([^"#]{0,22})', text)) <= {"data:image/png;base64,", ""}
    addresses = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert "url(" not in text
    assert "<!--" not in text
    assert "/*S" not in text


@pytest.mark.parametrize(
    "name",
    [
        "ellipse-features",
        "cdr-surrogate",
        "dcr-surrogate",
        "dcr-local",
        "indian-pines-classes",
        "indian-pines-maps",
        "indian-pines-confusion",
        "indian-pines-tuning",
        "cifar10-confusion",
        "cifar10-examples",
        "peaks-taylor",
        *(f"{name}-convergence" for name in EXPERIMENTS),
    ],
)
def test_figures_are_written_for_screen_and_print(page, name):
    assert (page.parent / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert (page.parent / f"{name}.pdf").read_bytes()[:5] == b"%PDF-"


def test_confusion_columns_are_shares_of_the_true_class():
    import numpy as np

    truth, predicted = np.array([0, 0, 0, 0, 1]), np.array([0, 0, 0, 2, 1])
    matrix = confusion_matrix(truth, predicted, 3)
    assert matrix.tolist() == [[0.75, 0, 0], [0, 1, 0], [0.25, 0, 0]]


# -- directories that are not whole


def report(*words):
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_an_empty_directory_is_an_error(tmp_path):
    result = report(tmp_path)
    assert result.exit_code == 1
    assert "holds no finished run" in result.output
    assert "there is no directory" in report(tmp_path / "nowhere").output


def copy_of(runs, tmp_path):
    for method in ("gnvpro", "gauss-newton"):
        shutil.copytree(runs / "ellipse" / f"{method}-seed0", tmp_path / "ellipse" / f"{method}-seed0")
    return tmp_path / "ellipse" / "gnvpro-seed0"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.json", None, "it is not finished: metrics.json is missing"),
        ("metrics.json", "{", "metrics.json is damaged"),
        ("metrics.json", "{}", "lacks data"),
        ("config.json", '{"experiment": "cdr"}', "lacks loss"),
        ("history.csv", "", "history.csv is empty"),
        ("history.csv", "a,b\n1,2\n", "history.csv is empty or not a history"),
    ],
)
def test_what_is_not_whole_is_named_and_the_rest_found(runs, tmp_path, file, content, message):
    folder = copy_of(runs, tmp_path)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    whole, problems = find(tmp_path)
    assert [found.method for found in whole] == ["gauss-newton"]
    assert [problem for problem in problems if problem.startswith("ellipse/gnvpro-seed0: ") and message in problem]


def test_the_page_and_the_command_name_what_was_left_out(runs, tmp_path):
    (copy_of(runs, tmp_path) / "metrics.json").unlink()
    result = report(tmp_path)
    assert result.exit_code == 0, result.output
    assert "left out: ellipse/gnvpro-seed0: it is not finished" in result.output
    text = (tmp_path / "report" / "index.html").read_text()
    assert [row[0] for row in rows_of(text, "ellipse")] == ["Gauss-Newton"]
    assert "ellipse/gnvpro-seed0" in text


def test_figures_that_lack_their_arrays_are_left_out(runs, tmp_path):
    folder = copy_of(runs, tmp_path)
    for name in ("gnvpro", "gauss-newton"):
        (folder.parent / f"{name}-seed0" / "snapshots.npz").unlink()
    assert report(tmp_path).exit_code == 0
    assert not (tmp_path / "report" / "ellipse-features.png").exists()
    assert (tmp_path / "report" / "ellipse-convergence.png").exists()


def test_a_figure_whose_arrays_are_cut_is_named(runs, tmp_path):
    path = copy_of(runs, tmp_path) / "snapshots.npz"
    path.write_bytes(path.read_bytes()[:100])
    _, problems = write_report(tmp_path, tmp_path / "report")
    assert len(problems) == 1
    assert problems[0].startswith("figures of ellipse/gnvpro-seed0: snapshots.npz is damaged")


# -- in a browser


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ACT = """<script>
window.addEventListener("load", () => {
  const plots = document.querySelector('.plots[data-experiment="cdr"]');
  const find = (text) => [...plots.querySelectorAll("label")].find((l) => l.textContent.includes(text)).querySelector("input");
  const count = () => plots.querySelectorAll("polyline").length;
  const said = { before: count() };
  find("validation").click();
  said.training = count();
  find("Gauss-Newton").click();
  said.without = count();
  find("seconds").click();
  said.axis = [...plots.querySelectorAll("text")].map((t) => t.textContent);
  const chart = plots.querySelector("svg"), box = chart.getBoundingClientRect();
  const at = { clientX: box.left + 0.9 * box.width, clientY: box.top + 0.5 * box.height, bubbles: true };
  chart.dispatchEvent(new PointerEvent("pointermove", at));
  said.tip = plots.querySelector(".tip").textContent;
  said.visible = plots.querySelector(".tip").style.visibility;
  find("log").click();
  said.linear = count();
  const note = document.createElement("pre");
  note.id = "said";
  note.textContent = JSON.stringify(said);
  document.body.append(note);
});
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not installed")
def test_a_browser_draws_the_curves_and_answers_the_controls(runs, page, tmp_path):
    acted = tmp_path / "acted.html"
    acted.write_text(page.read_text().replace("</body>", ACT))
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, "--virtual-time-budget=5000", "--dump-dom", acted.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = json.loads(html.unescape(re.search(r'<pre id="said">(.*?)</pre>', done.stdout)[1]))
    n = len(data_in(page.read_text())["cdr"])
    assert said["before"] == 2 * n  # training and validation of every run
    assert said["training"] == n
    assert said["without"] == n - 1
    assert "seconds" in said["axis"]
    assert "work units" not in said["axis"]
    assert said["visible"] == "visible"
    assert re.search(r"GNvpro, (paper|recommended), seed \d, training: [0-9.e-]+", said["tip"])
    assert said["linear"] == n - 1
