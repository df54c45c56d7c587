"""CIFAR-10: both official layouts, the download and its checksum, and errors; the real files if present."""

import hashlib
import pickle
import tarfile

import numpy as np
import pytest
import torch

from gnvpro.data import cifar10, data_directory

RECORDS = 20
FETCH = cifar10.fetch


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(cifar10, "RECORDS", RECORDS)


def batch(k):
    generator = np.random.default_rng(k)
    images = generator.integers(0, 256, (RECORDS, 3072)).astype(np.uint8)
    return images, np.arange(RECORDS, dtype=np.uint8) % 10


def write_binary(root):
    folder = root / cifar10.BINARY
    folder.mkdir(parents=True)
    for k, name in enumerate((*cifar10.TRAIN, cifar10.TEST)):
        images, labels = batch(k)
        np.concatenate([labels[:, None], images], axis=1).tofile(folder / f"{name}.bin")
    return folder


def write_pickled(root):
    folder = root / cifar10.PICKLED
    folder.mkdir(parents=True)
    for k, name in enumerate((*cifar10.TRAIN, cifar10.TEST)):
        images, labels = batch(k)
        content = pickle.dumps({b"data": images, b"labels": labels.tolist()}, protocol=2)
        (folder / name).write_bytes(content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    return folder


@pytest.mark.parametrize("where", ["", "cifar10"])
def test_the_binary_layout(tmp_path, where):
    write_binary(tmp_path / where)
    data = cifar10.load(data_dir=tmp_path)
    assert [tuple(part[0].shape) for part in (data.train, data.validation, data.test)] == [
        (80, 3, 32, 32),
        (20, 3, 32, 32),
        (20, 3, 32, 32),
    ]
    assert data.train[0].dtype == torch.float32
    flat = data.train[0].double().flatten(1)
    assert flat.mean(dim=1).abs().max() < 1e-6
    assert flat.std(dim=1, correction=0).numpy() == pytest.approx(1.0, abs=1e-6)
    images, labels = batch(5)
    assert data.test[1].tolist() == labels.tolist()
    raw = images[3].reshape(3, 32, 32).astype(float)  # red, green, blue planes, each row by row
    assert data.test[0][3].numpy() == pytest.approx((raw - raw.mean()) / raw.std(), abs=1e-5)


def test_both_layouts_hold_the_same(tmp_path):
    write_binary(tmp_path / "a")
    write_pickled(tmp_path / "b")
    a, b = (cifar10.load(data_dir=tmp_path / name, seed=1) for name in "ab")
    assert torch.equal(a.train[0], b.train[0])
    assert torch.equal(a.validation[1], b.validation[1])


def test_the_seed_draws_the_validation_images_and_leaves_the_test_images(tmp_path):
    write_binary(tmp_path)
    a, b = (cifar10.load(data_dir=tmp_path, seed=seed) for seed in (0, 1))
    assert not torch.equal(a.validation[0], b.validation[0])
    assert torch.equal(a.test[0], b.test[0])


def test_a_uniform_image_is_zero():
    assert cifar10.standardised(np.full((1, 3072), 7, np.uint8)).abs().max() == 0


def packed(tmp_path):
    folder = write_binary(tmp_path / "source")
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        archive.add(folder, arcname=cifar10.BINARY)
    return tmp_path / "cifar.tar.gz"


def test_a_download_is_checked_and_unpacked(tmp_path):
    path = packed(tmp_path)
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    folder = cifar10.fetch(tmp_path / "cache" / "cifar10", path.as_uri(), md5)
    assert cifar10.find(tmp_path / "cache", download=False) == folder
    assert len(cifar10.load(data_dir=tmp_path / "cache").train[0]) == 80
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_a_download_with_another_checksum_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has MD5"):
        cifar10.fetch(tmp_path / "cache", packed(tmp_path).as_uri())
    assert not list((tmp_path / "cache").iterdir())


def test_offline_the_error_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "fetch", lambda target: FETCH(target, "http://127.0.0.1:9/nothing", ""))
    with pytest.raises(OSError, match=r"could not be downloaded .*cifar-10-binary\.tar\.gz .*cifar-10-batches-bin"):
        cifar10.load(data_dir=tmp_path)


def test_without_download_the_error_says_the_same(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"unpack the official cifar-10-binary\.tar\.gz"):
        cifar10.load(data_dir=tmp_path, download=False)


def test_damaged_files_are_refused(tmp_path):
    folder = write_binary(tmp_path)
    path = folder / "data_batch_2.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ValueError, match="is cut"):
        cifar10.load(data_dir=tmp_path)
    path.write_bytes(whole[: -cifar10.VALUES - 1])
    with pytest.raises(ValueError, match="should hold 20 images"):
        cifar10.load(data_dir=tmp_path)
    path.write_bytes(b"\x0a" + whole[1:])
    with pytest.raises(ValueError, match="labels outside 0 to 9"):
        cifar10.load(data_dir=tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_2\.bin is missing"):
        cifar10.load(data_dir=tmp_path)


class Runs:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_a_pickle_that_would_run_something_is_refused(tmp_path, capsys):
    folder = write_pickled(tmp_path)
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": Runs(), b"labels": []}, protocol=2))
    with pytest.raises(ValueError, match="not a batch of CIFAR-10"):
        cifar10.load(data_dir=tmp_path)
    assert "must not run" not in capsys.readouterr().out


def test_the_real_images(monkeypatch):
    try:
        folder = cifar10.find(download=False)
    except FileNotFoundError:
        pytest.skip(f"CIFAR-10 is not in the data directory {data_directory()}")
    monkeypatch.setattr(cifar10, "RECORDS", 10_000)
    _, labels = cifar10.read(folder, (cifar10.TEST,))
    assert np.bincount(labels).tolist() == [1000] * 10
