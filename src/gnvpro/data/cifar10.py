"""CIFAR-10: 60,000 colour images of 32 x 32 pixels in ten classes; 40,000 / 10,000 / 10,000.

Read from the data directory or its folder `cifar10`, in either official layout: cifar-10-batches-bin (a record is a
label byte and 3 x 1024 bytes of red, green and blue) or cifar-10-batches-py. If neither is found, the binary version is
downloaded from its official address, checked and unpacked. A seed draws the 10,000 validation images from the official
50,000 training images; the test images are the official ones. Every image is standardised over its 3072 values; float32.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import Split, data_directory

Bytes = NDArray[np.uint8]

ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
BINARY, PICKLED = "cifar-10-batches-bin", "cifar-10-batches-py"
TRAIN = tuple(f"data_batch_{k}" for k in range(1, 6))
TEST = "test_batch"
RECORDS, VALUES = 10_000, 3 * 32 * 32  # per file, per image
N_VALIDATION = 10_000
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load(*, seed: int = 0, data_dir: str | os.PathLike[str] | None = None, download: bool = True) -> Split:
    """Standardised images (n, 3, 32, 32) and labels; the seed draws the validation images.

    Args:
        seed: seed of the validation images.
        data_dir: the data directory (see `gnvpro.data`).
        download: whether to download the files if they are missing.

    Returns:
        The sets, with inputs (samples, 3, 32, 32) and labels 0 to 9 (samples,).

    Raises:
        FileNotFoundError: the files are missing, and `download` is False.

    >>> load(data_dir="no-such-folder", download=False)  # the message names the files and their folder
    Traceback (most recent call last):
        ...
    FileNotFoundError: ...
    """
    folder = find(data_dir, download)
    images, labels = read(folder, TRAIN)
    order = np.random.default_rng(seed).permutation(len(images))
    train, validation = np.split(order, [len(images) - len(images) * N_VALIDATION // 50_000])
    test_images, test_labels = read(folder, (TEST,))
    return Split(
        (standardised(images[train]), torch.from_numpy(labels[train])),
        (standardised(images[validation]), torch.from_numpy(labels[validation])),
        (standardised(test_images), torch.from_numpy(test_labels)),
    )


def standardised(images: Bytes) -> Tensor:
    """Images (n, 3, 32, 32), each with mean 0 and standard deviation 1 over its values; a uniform image is 0."""
    result = torch.empty(len(images), 3, 32, 32)
    flat = result.view(len(images), -1)
    for rows in torch.arange(len(images)).split(5000):  # the float64 copies stay small
        part = torch.from_numpy(images[rows.numpy()]).double()
        centred = part - part.mean(dim=1, keepdim=True)
        flat[rows] = (centred / centred.square().mean(dim=1, keepdim=True).sqrt().clamp(min=1 / 255)).float()
    return result


def find(data_dir: str | os.PathLike[str] | None = None, download: bool = True) -> Path:
    """The folder that holds one of the official layouts; downloaded if there is none."""
    root = data_directory(data_dir)
    for folder in (root / "cifar10" / BINARY, root / BINARY, root / "cifar10" / PICKLED, root / PICKLED):
        if folder.is_dir():
            return folder
    if not download:
        raise FileNotFoundError(f"CIFAR-10 is not in {root}; {_advice(root)}")
    return fetch(root / "cifar10")


def fetch(target: Path, address: str = ADDRESS, md5: str = MD5) -> Path:
    """Download, check and unpack the binary version; returns its folder."""
    part = target / "cifar-10-binary.tar.gz.part"
    try:
        target.mkdir(parents=True, exist_ok=True)
        digest = hashlib.md5(usedforsecurity=False)
        with urllib.request.urlopen(address, timeout=30) as reply, open(part, "wb") as file:
            while block := reply.read(1 << 20):
                digest.update(block)
                file.write(block)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(
            f"CIFAR-10 is not in {target.parent} and could not be downloaded from {address} ({error}); "
            + _advice(target.parent)
        ) from error
    try:
        if digest.hexdigest() != md5:
            raise ValueError(
                f"what {address} sent has MD5 {digest.hexdigest()}, not {md5}; try again, or {_advice(target.parent)}"
            )
        with tarfile.open(part) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has none
            archive.extractall(target)
    finally:
        part.unlink(missing_ok=True)
    return target / BINARY


def read(folder: Path, names: tuple[str, ...]) -> tuple[Bytes, NDArray[np.int64]]:
    """Images (n, 3072) and labels from the named files of a layout."""
    parts = [_read_binary(folder, name) if folder.name == BINARY else _read_pickled(folder, name) for name in names]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _read_binary(folder: Path, name: str) -> tuple[Bytes, NDArray[np.int64]]:
    path = _existing(folder / f"{name}.bin")
    content = np.fromfile(path, dtype=np.uint8)
    if content.size % (VALUES + 1):
        raise ValueError(f"{path} is cut: {content.size} bytes are not a multiple of {VALUES + 1}; get it again")
    records = content.reshape(-1, VALUES + 1)
    return _checked(path, records[:, 1:], records[:, 0].astype(np.int64))


class _Plain(pickle.Unpickler):
    """Reads arrays, lists and strings, and rejects anything that could run code."""

    allowed = frozenset({"_reconstruct", "ndarray", "dtype", "encode"})

    def find_class(self, module: str, name: str) -> Any:
        if name in self.allowed and module.partition(".")[0] in ("numpy", "_codecs"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _read_pickled(folder: Path, name: str) -> tuple[Bytes, NDArray[np.int64]]:
    path = _existing(folder / name)
    try:
        with open(path, "rb") as file:
            content = _Plain(file, encoding="bytes").load()
        images, labels = np.asarray(content[b"data"]), np.asarray(content[b"labels"], dtype=np.int64)
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"{path} is damaged or not a batch of CIFAR-10 ({error}); get it again") from error
    return _checked(path, images, labels)


def _checked(path: Path, images: Bytes, labels: NDArray[np.int64]) -> tuple[Bytes, NDArray[np.int64]]:
    if images.shape != (RECORDS, VALUES) or images.dtype != np.uint8 or labels.shape != (RECORDS,):
        raise ValueError(
            f"{path} should hold {RECORDS} images of {VALUES} bytes, got {images.shape} {images.dtype} and "
            f"{labels.shape} labels; get it again"
        )
    if labels.min() < 0 or labels.max() >= len(CLASSES):
        raise ValueError(f"{path} holds labels outside 0 to {len(CLASSES) - 1}; get it again")
    return images, labels


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; the layout should hold {', '.join((*TRAIN, TEST))}")
    return path


def _advice(root: Path) -> str:
    return (
        f"unpack the official cifar-10-binary.tar.gz (or cifar-10-python.tar.gz) so that {root / 'cifar10' / BINARY} "
        f"(or {PICKLED}) exists, or name another directory that holds it with data_dir, --data-dir or GNVPRO_DATA"
    )
