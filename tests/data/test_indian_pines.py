"""Indian Pines: the copies read, the checks, and the split by class; the real image if present."""

import sys
import types

import numpy as np
import pytest
import torch
from scipy.io import savemat

from gnvpro.data import data_directory, indian_pines

COUNTS = (46, 1428, 830, 237, 483, 730, 28, 478, 20, 972, 2455, 593, 205, 1265, 386, 93)


def fake_truth():
    truth = np.zeros(145 * 145, np.uint8)
    labels = np.repeat(np.arange(1, 17), COUNTS)
    truth[100 : 100 + len(labels)] = np.random.default_rng(0).permutation(labels)
    return truth.reshape(145, 145)


def fake_cube(bands):
    return np.random.default_rng(1).integers(900, 9000, (145, 145, bands)).astype(np.uint16)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorly", None)
    (tmp_path / "indian_pines").mkdir()
    return tmp_path / "indian_pines"


def write(folder, bands=200, truth=None, key=None):
    name = {200: "Indian_pines_corrected", 220: "Indian_pines"}[bands]
    savemat(folder / f"{name}.mat", {key or name.lower(): fake_cube(bands)})
    savemat(folder / "Indian_pines_gt.mat", {"indian_pines_gt": fake_truth() if truth is None else truth})


def test_split_sizes_are_those_of_the_paper(folder):
    write(folder)
    data = indian_pines.load(data_dir=folder.parent)
    assert [len(part[0]) for part in (data.train, data.validation, data.test)] == [2957, 6560, 732]
    assert data.train[0].shape[1] == 200
    assert data.train[0].mean(dim=1).abs().max() < 1e-12
    assert data.train[0].std(dim=1, correction=0) == pytest.approx(1.0)


def test_every_class_is_split_by_its_own_rule(folder):
    labels = np.repeat(np.arange(16), COUNTS)
    train, validation, test = indian_pines.split_rows(labels, 0)
    assert np.array_equal(np.sort(np.concatenate([train, validation, test])), np.arange(len(labels)))
    for k, n in enumerate(COUNTS):
        m = min(n - 10, 312)
        found = [int((labels[rows] == k).sum()) for rows in (train, validation, test)]
        assert found == [m - m // 5, n - m, m // 5]


def test_the_seed_draws_the_split_and_the_order(folder):
    labels = np.repeat(np.arange(16), COUNTS)
    first, again, other = (indian_pines.split_rows(labels, seed)[0] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(np.sort(first), np.sort(other))
    assert (np.diff(labels[first]) < 0).any()  # shuffled across classes


def test_the_220_bands_are_preferred(folder):
    write(folder, 200)
    write(folder, 220)
    scene = indian_pines.read(folder.parent)
    assert scene.spectra.shape == (10249, 220)
    assert scene.source == "Indian_pines.mat, 220 bands"


def test_pixels_say_where_a_spectrum_is(folder):
    write(folder)
    scene = indian_pines.read(folder.parent)
    assert np.array_equal(fake_truth().ravel()[scene.pixels] - 1, scene.labels)
    raw = fake_cube(200).reshape(-1, 200)[scene.pixels[7]].astype(float)
    assert scene.spectra[7] == pytest.approx((raw - raw.mean()) / raw.std())


def test_tensorlys_copy_is_taken_where_there_is_no_file(tmp_path, monkeypatch):
    datasets = types.ModuleType("tensorly.datasets")
    datasets.load_indian_pines = lambda: {"tensor": fake_cube(200), "ticks": [fake_truth(), list(range(200))]}
    monkeypatch.setitem(sys.modules, "tensorly", types.ModuleType("tensorly"))
    monkeypatch.setitem(sys.modules, "tensorly.datasets", datasets)
    monkeypatch.setattr(indian_pines, "find_spec", lambda name: object())
    assert indian_pines.read(tmp_path).source == "tensorly's copy, 200 bands"


def test_tensorlys_own_copy_has_the_published_classes(tmp_path):
    pytest.importorskip("tensorly", reason="the package tensorly is not installed")
    scene = indian_pines.read(tmp_path)
    published = [46, 1428, 830, 237, 483, 730, 28, 478, 20, 972, 2455, 593, 205, 1265, 386, 93]
    assert np.bincount(scene.labels).tolist() == published
    assert scene.spectra.shape == (10249, 200)


def test_without_any_copy_the_error_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setattr(indian_pines, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"Indian_pines_corrected\.mat .*gnvpro\[indian-pines\]"):
        indian_pines.load(data_dir=tmp_path)


def test_bad_files_are_refused_with_the_reason(folder):
    savemat(folder / "Indian_pines_corrected.mat", {"indian_pines_corrected": fake_cube(200)})
    with pytest.raises(FileNotFoundError, match=r"Indian_pines_gt\.mat is not in"):
        indian_pines.read(folder.parent)
    write(folder, key="something")
    with pytest.raises(ValueError, match="should hold 'indian_pines_corrected', got \\['something'\\]"):
        indian_pines.read(folder.parent)
    write(folder, truth=np.minimum(fake_truth(), 15))
    with pytest.raises(ValueError, match="labels 0 to 16"):
        indian_pines.read(folder.parent)
    write(folder, truth=fake_truth()[:100])
    with pytest.raises(ValueError, match=r"shape \(145, 145\), got \(100, 145\)"):
        indian_pines.read(folder.parent)
    (folder / "Indian_pines_corrected.mat").write_bytes(b"no matlab file at all")
    with pytest.raises(ValueError, match="damaged or not a MATLAB file"):
        indian_pines.read(folder.parent)


def test_the_real_image():
    if not (data_directory() / indian_pines.FOLDER / "Indian_pines_corrected.mat").is_file():
        pytest.skip("Indian_pines_corrected.mat is not in the data directory")
    data = indian_pines.load()
    assert [len(part[0]) for part in (data.train, data.validation, data.test)] == [2957, 6560, 732]
    assert torch.unique(data.test[1]).tolist() == list(range(16))
