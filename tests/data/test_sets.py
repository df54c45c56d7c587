"""Results of load(): sizes, seeds, disjoint sets, the removed mean, the places of files, and clear errors."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gnvpro.data import Split, archive, cdr, data_directory, dcr, split

REPOSITORY = Path(__file__).parents[2]
AUTHORS_DIRECTORY = Path(os.environ.get("GNVPRO_DATA") or REPOSITORY.parent / "shared" / "data")


def rows(pairs):
    return {tuple(row) for inputs, _ in pairs for row in inputs.tolist()}


def all_three(s):
    return (s.train, s.validation, s.test)


def test_split_is_disjoint_complete_seeded_and_keeps_rows_together():
    inputs = torch.arange(40.0, dtype=torch.float64)[:, None]
    first, again, other = (split(inputs, 2 * inputs, (8, 1, 1), seed) for seed in (1, 1, 2))
    assert [len(y) for y, _ in all_three(first)] == [32, 4, 4]
    assert sorted(torch.cat([y for y, _ in all_three(first)])[:, 0].tolist()) == list(range(40))
    assert all(torch.equal(c, 2 * y) for y, c in all_three(first))
    assert torch.equal(first.train[0], again.train[0])
    assert not torch.equal(first.train[0], other.train[0])


def test_rounding_goes_to_the_training_set():
    inputs = torch.zeros(47, 1)
    assert [len(y) for y, _ in all_three(split(inputs, inputs, (8, 1, 1), 0))] == [39, 4, 4]


def test_split_refuses_too_few_samples_and_unequal_rows():
    with pytest.raises(ValueError, match="samples must be at least 10 to fill all three sets, got 9"):
        split(torch.zeros(9, 1), torch.zeros(9, 1), (8, 1, 1), 0)
    with pytest.raises(ValueError, match="equally many rows, got 12 and 11"):
        split(torch.zeros(12, 1), torch.zeros(11, 1), (8, 1, 1), 0)


def test_data_directory_argument_beats_environment_beats_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GNVPRO_DATA", "from-environment")
    assert data_directory(tmp_path) == tmp_path
    assert data_directory() == Path("from-environment")
    monkeypatch.delenv("GNVPRO_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_directory() == tmp_path / "gnvpro"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert data_directory() == Path.home() / ".cache" / "gnvpro"


def test_shipped_cdr_needs_nothing_and_has_the_papers_sizes():
    data = cdr.load()
    assert isinstance(data, Split)
    assert [tuple(y.shape) for y, _ in all_three(data)] == [(400, 55), (200, 55), (200, 55)]
    assert [tuple(c.shape) for _, c in all_three(data)] == [(400, 72), (200, 72), (200, 72)]
    assert all(t.dtype == torch.float64 and t.isfinite().all() for pair in all_three(data) for t in pair)
    assert len(rows(all_three(data))) == 800
    assert torch.cat([y.sum(1) for y, _ in all_three(data)]) == pytest.approx(torch.ones(800), abs=1e-12)
    assert rows([data.train]) != rows([cdr.load(seed=1).train])


def test_shipped_cdr_is_small():
    assert cdr.SHIPPED.stat().st_size < 1_000_000


@pytest.mark.slow
def test_shipped_cdr_equals_a_fresh_solution():
    inputs, targets = archive.read(cdr.SHIPPED)
    assert inputs == pytest.approx(cdr.draw(800, 0), abs=1e-15)
    for sample in (0, 799):
        fresh = cdr.problem.simulate(cdr.MESH, inputs[[sample]])
        assert np.abs(fresh - targets[[sample]]).max() < 1e-8


def test_drawn_inputs_have_the_papers_ranges_and_fewer_are_the_first_of_more():
    y = dcr.draw(5000, 3)
    assert y.min(axis=0) == pytest.approx([0.0, 0.25, 0.0], abs=5e-3)
    assert y.max(axis=0) == pytest.approx([1.0, 3.0, np.pi], abs=5e-3)
    assert y.mean(axis=0) == pytest.approx([0.5, 1.625, np.pi / 2], abs=0.05)
    assert (dcr.draw(20, 3) == y[:20]).all()
    k = cdr.draw(500, 3)
    assert k.sum(axis=1) == pytest.approx(np.ones(500))
    assert k.mean() == pytest.approx(1 / 55)
    assert k.std() == pytest.approx(0.0105, abs=2e-4)  # as in the authors' own inputs
    assert (cdr.draw(20, 3) == k[:20]).all()


@pytest.mark.slow
def test_dcr_removes_the_training_mean_from_all_three_sets(tmp_path):
    data = dcr.load(20, 24, data_dir=tmp_path, workers=1, progress=False)
    assert [tuple(y.shape) for y, _ in all_three(data)] == [(16, 3), (2, 3), (2, 3)]
    assert [tuple(c.shape) for _, c in all_three(data)] == [(16, 882), (2, 882), (2, 882)]
    assert data.train[1].mean(0).abs().max() < 1e-14
    _, inputs, targets = dcr.simulated(20, 24, data_dir=tmp_path, progress=False)
    raw = {tuple(y): c for y, c in zip(inputs.tolist(), targets, strict=True)}
    mean = np.mean([raw[tuple(y)] for y in data.train[0].tolist()], axis=0)
    for y, c in zip(data.test[0].tolist(), data.test[1].numpy(), strict=True):
        assert c == pytest.approx(raw[tuple(y)] - mean, abs=1e-14)
    assert len(rows(all_three(data))) == 20


@pytest.mark.slow
def test_simulated_cdr_of_another_size_is_split_in_proportion(tmp_path):
    data = cdr.load("simulated", samples=8, mesh=21, data_dir=tmp_path, workers=1, progress=False)
    assert [tuple(c.shape) for _, c in all_three(data)] == [(4, 72), (2, 72), (2, 72)]


@pytest.mark.skipif(
    not (AUTHORS_DIRECTORY / cdr.AUTHORS).is_file(),
    reason="the authors' cdr/CDR_Data.mat is not in GNVPRO_DATA nor in the shared data beside the repository",
)
def test_authors_set_is_read_with_samples_as_rows():
    data = cdr.load("authors", data_dir=AUTHORS_DIRECTORY)
    assert [len(y) for y, _ in all_three(data)] == [400, 200, 200]
    inputs, targets = cdr.read_authors(AUTHORS_DIRECTORY / cdr.AUTHORS)
    assert inputs[0, :2] == pytest.approx([1.77782e-02, 4.96693e-03])
    assert targets[0, :2] == pytest.approx([21.7473, 20.199])
    assert inputs.sum(axis=1) == pytest.approx(np.ones(800), abs=1e-5)


def test_missing_or_wrong_authors_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"CDR_Data.mat is not at .*data_dir or GNVPRO_DATA"):
        cdr.load("authors", data_dir=tmp_path)
    file = tmp_path / cdr.AUTHORS
    file.parent.mkdir()
    file.write_bytes(b"not a MAT file")
    with pytest.raises(ValueError, match="damaged or not the authors' file"):
        cdr.load("authors", data_dir=tmp_path)
    from scipy.io import savemat

    savemat(file, {"Y": np.zeros((55, 4)), "C": np.zeros((71, 4))})
    with pytest.raises(ValueError, match=r"C \(72, samples\), got \(55, 4\), \(71, 4\)"):
        cdr.load("authors", data_dir=tmp_path)


def test_unknown_source_and_settings_without_effect_are_refused():
    with pytest.raises(ValueError, match="source must be 'shipped', 'authors' or 'simulated', got 'zenodo'"):
        cdr.load("zenodo")
    with pytest.raises(ValueError, match="need source='simulated', got source='shipped'"):
        cdr.load(samples=100)


@pytest.mark.parametrize("samples", [0, -5, 9])
def test_dcr_refuses_too_few_samples(samples, tmp_path):
    with pytest.raises(ValueError, match=f"samples must be at least 10.*got {samples}"):
        dcr.load(samples, 24, data_dir=tmp_path)


@pytest.mark.parametrize("module", [cdr, dcr])
@pytest.mark.parametrize(
    ("samples", "mesh", "seed", "workers", "error", "message"),
    [
        (0, None, 0, 1, ValueError, "samples must be at least 1, got 0"),
        (2.5, None, 0, 1, TypeError, "samples must be a whole number, got 2.5"),
        (20, None, -1, 1, ValueError, "draw_seed must be at least 0, got -1"),
        (20, None, 0, 0, ValueError, "workers must be at least 1, got 0"),
        (20, 4, 0, 1, ValueError, "mesh must be"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    module, samples, mesh, seed, workers, error, message, tmp_path
):
    with pytest.raises(error, match=message):
        module.simulated(samples, mesh or module.MESH, draw_seed=seed, data_dir=tmp_path, workers=workers)
    assert not list(tmp_path.iterdir())


def test_missing_library_is_asked_for_by_the_name_of_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyamg", None)
    monkeypatch.setitem(sys.modules, "pyamg.amg_core", None)
    with pytest.raises(ImportError, match=r"pyamg is not installed.*pip install 'pyamg>=.*gnvpro\[pde\]"):
        dcr.load(10, 24, data_dir=tmp_path, workers=1, progress=False)
