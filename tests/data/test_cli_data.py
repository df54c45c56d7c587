"""The data commands: what they write and say, and errors in one line."""

import numpy as np
import pytest
from typer.testing import CliRunner

from gnvpro.cli import app
from gnvpro.data import archive, cdr, dcr


def run(*words):
    return CliRunner().invoke(app, ["data", *map(str, words)])


def size_of_png(path):
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(content[16:20]), int.from_bytes(content[20:24])


@pytest.mark.slow
def test_cdr_writes_the_set_it_was_asked_for(tmp_path):
    out = tmp_path / "mine.npz"
    result = run("cdr", "--samples", 4, "--mesh", 21, "--workers", 1, "--data-dir", tmp_path / "cache", "--out", out)
    assert result.exit_code == 0, result.output
    assert "4 samples, 55 inputs -> 72 targets" in result.output
    inputs, targets = archive.read(out)
    assert (inputs == cdr.draw(4, 0)).all()
    assert targets == pytest.approx(cdr.problem.simulate(21, inputs), abs=1e-9)


def test_dcr_keeps_the_set_in_the_data_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("GNVPRO_DATA", str(tmp_path))
    result = run("dcr", "--samples", 3, "--mesh", 24, "--workers", 1, "--draw-seed", 5)
    assert result.exit_code == 0, result.output
    inputs, targets = archive.read(tmp_path / "dcr" / "dcr-mesh24-samples3-seed5.npz")
    assert (inputs == dcr.draw(3, 5)).all()
    assert targets.shape == (3, 882)


def test_cdr_compares_the_standard_set_with_the_shipped_one(tmp_path, monkeypatch):
    inputs, targets = archive.read(cdr.SHIPPED)
    moved = targets.copy()
    moved[700, 3] += 2e-9
    monkeypatch.setattr(cdr, "simulated", lambda *_a, **_k: (cdr.SHIPPED, inputs, moved))
    assert "largest difference from the shipped set: 2.0e-09" in run("cdr").output


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "mesh"), [("cdr", 21), ("dcr", 24)])
def test_plot_draws_a_figure_and_makes_no_set(problem, mesh, tmp_path, monkeypatch):
    monkeypatch.setenv("GNVPRO_DATA", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    result = run(problem, "--plot", "--mesh", mesh)
    assert result.exit_code == 0, result.output
    width, height = size_of_png(tmp_path / f"{problem}.png")
    assert width > 2000
    assert height > 600
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
def test_cdr_figure_shows_what_was_simulated():
    from gnvpro.data.set_figures import cdr_figure

    flow, reactions, snapshot, *_ = cdr_figure(21).axes
    assert len(reactions.lines) == 55
    assert len(snapshot.lines) == 6
    assert np.array(flow.lines[0].get_xydata()) == pytest.approx(np.array([[0.2, 0.2], [0.6, 0.8], [0.3, 0.6]]))
    *_, state = cdr.problem.problem(21).states(cdr.draw(1, 0))
    assert np.asarray(snapshot.images[0].get_array()) == pytest.approx(state[0].numpy().T)


@pytest.mark.slow
def test_dcr_figure_shows_what_was_simulated():
    from gnvpro.data.set_figures import dcr_figure

    images = [np.asarray(axis.images[0].get_array()) for axis in dcr_figure(24, (0.7, 0.6, 0.5)).axes if axis.images]
    data = dcr.problem.simulate(24, np.array([[0.7, 0.6, 0.5]])).reshape(2, 21, 21)
    assert len(images) == 8 + 2
    assert images[8] == pytest.approx(data[0].T)
    assert images[9] == pytest.approx(data[1].T)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("cdr", "--mesh", 20), "gnvpro: mesh must be 21, 31, 41"),
        (("dcr", "--mesh", 20), "gnvpro: mesh must be 24 times a power of two"),
        (("dcr", "--mesh", 20, "--plot"), "gnvpro: mesh must be 24 times a power of two"),
        (("cdr", "--samples", 0), "gnvpro: samples must be at least 1, got 0"),
        (("dcr", "--samples", -3), "gnvpro: samples must be at least 1, got -3"),
        (("dcr", "--workers", 0), "gnvpro: workers must be at least 1, got 0"),
    ],
)
def test_mistakes_are_told_in_one_line(words, message, tmp_path):
    result = run(*words, "--data-dir", tmp_path)
    assert result.exit_code == 1
    assert result.output.startswith(message)
    assert len(result.output.strip().splitlines()) == 1


def test_a_place_that_cannot_be_written_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = run("dcr", "--samples", 2, "--mesh", 24, "--workers", 1, "--data-dir", tmp_path / "file")
    assert result.exit_code == 1
    assert result.output.startswith("gnvpro: cannot write")
    assert "Traceback" not in result.output


def test_ctrl_c_ends_with_its_customary_status(monkeypatch):
    def interrupt(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(dcr, "simulated", interrupt)
    assert run("dcr").exit_code == 130
