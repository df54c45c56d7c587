"""Arrays on disk: what counts as one, what is read of it, and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from gnvpro.samples import arrays
from gnvpro.samples.arrays import Arrays, is_on_disk
from gnvpro.samples.sample_digest import SampleDigest
from gnvpro.samples.source import Part, rechunked
from gnvpro.samples.sources import as_stream
from streamed import on_disk


class Dataset5:
    """An array like a dataset of h5py: sliced by slices and by increasing lists of numbers; it records what was read."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.read = values, 0
        self.shape, self.dtype = values.shape, values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> np.ndarray:
        if isinstance(key, np.ndarray) and (np.diff(key) <= 0).any():
            raise TypeError("Indexing elements must be in increasing order")
        part = self.values[key]
        self.read = max(self.read, len(part))
        return part


class OnlySlices(Dataset5):
    """Without fancy indexing."""

    def __getitem__(self, key: Any) -> np.ndarray:
        if not isinstance(key, slice):
            raise IndexError("only slices")
        return super().__getitem__(key)


class NoLength:
    """An array of zarr: a shape, but no length."""

    def __init__(self, values: np.ndarray) -> None:
        self.values, self.shape, self.read = values, values.shape, 0

    def __getitem__(self, key: Any) -> np.ndarray:
        part = self.values[key]
        self.read = max(self.read, len(part))
        return part


X = np.arange(60.0).reshape(20, 3)
Y = np.arange(20)


def resident(file: Path) -> int:
    """Kilobytes of a mapped file that this process holds."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    return sum(
        int(next(line for line in lines if line.startswith("Rss")).split()[1]) for line in lines if str(file) in line
    )


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's account of mapped pages")
@pytest.mark.parametrize("at_a_time", ["slices", "single samples"])
@pytest.mark.slow
def test_pages_of_a_memory_map_do_not_add_up(at_a_time: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays.Pages, "most", 1e6)
    np.save(tmp_path / "x.npy", np.ones((10_000, 100)))
    x = np.load(tmp_path / "x.npy", mmap_mode="r")
    source = Arrays.of("inputs", x, np.ones(10_000))
    parts = map(source.take, torch.randperm(10_000).split(100)) if at_a_time == "single samples" else source.chunks(100)
    most = max(resident(tmp_path / "x.npy") for _ in parts)
    assert most <= 1000  # of 8000
    x.sum()
    assert resident(tmp_path / "x.npy") > 1000  # read by somebody else


def test_what_is_read_slice_by_slice(tmp_path):
    assert is_on_disk(on_disk(tmp_path, "x", torch.ones(3, 2)))
    assert is_on_disk(Dataset5(X))
    for held in (X, torch.ones(2), [1, 2], (1, 2), {"a": 1}, pd.DataFrame(X), pd.Series(Y), 3.0, None, "text"):
        assert not is_on_disk(held)
    assert as_stream("", X, Y, None) is None
    assert as_stream("", X, on_disk(tmp_path, "y", torch.ones(20)), None) is not None


class Group:
    """A group of zarr: arrays by name, but no mapping."""

    def keys(self) -> list[str]:
        return ["x"]

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: str) -> np.ndarray:
        return X


def test_a_group_of_arrays_is_refused_by_name():
    with pytest.raises(TypeError, match="inputs is a Group, which holds several arrays"):
        Arrays.of("inputs", Group(), Y)


@pytest.mark.parametrize("kind", [Dataset5, OnlySlices, NoLength])
def test_samples_in_order_and_by_number(kind):
    source = Arrays.of("inputs", kind(X), Y)
    parts = list(source.chunks(7))
    assert [len(part) for part in parts] == [7, 7, 6]
    assert np.array_equal(torch.cat([part.inputs for part in parts]).numpy(), X)
    wanted = torch.tensor([4, 19, 0, 4, 11])
    taken = source.take(wanted)
    assert np.array_equal(taken.inputs.numpy(), X[wanted])
    assert np.array_equal(taken.targets.numpy(), Y[wanted])
    assert source.positional[0].array.read <= 7, "never read whole"


def test_a_memory_map_is_left_as_it_is(tmp_path):
    disk = on_disk(tmp_path, "x", torch.from_numpy(X))
    part = Arrays.of("inputs", disk, Y).first(4)
    part.inputs[:] = -1.0
    assert np.array_equal(np.asarray(disk), X)


def test_private_changes_to_a_memory_map_survive(tmp_path):
    on_disk(tmp_path, "x", torch.from_numpy(X))
    private = np.load(tmp_path / "x.npy", mmap_mode="c")
    private[0] = 7.0
    source = Arrays.of("inputs", private, Y)
    for _ in range(2):
        assert float(next(source.chunks(5)).inputs[0, 0]) == 7.0


def test_parts_of_any_size_become_chunks():
    parts = [Part(torch.arange(n) + 100 * n) for n in (1, 5, 2, 9, 3)]
    whole = torch.cat([part.inputs for part in parts])
    for rows in (1, 4, 7, 20, 100):
        chunks = [part.inputs for part in rechunked(iter(parts), rows)]
        assert all(len(chunk) == rows for chunk in chunks[:-1])
        assert torch.equal(torch.cat(chunks), whole)


def digest(x: torch.Tensor, y: torch.Tensor, rows: int) -> SampleDigest:
    total = SampleDigest()
    for part in rechunked(iter([Part(x, y)]), rows):
        total.add(part)
    return total


def test_a_digest_knows_the_samples_and_not_their_order():
    x, y = torch.randn(50, 2, 4, 4, dtype=torch.float64), torch.randn(50, 1, dtype=torch.float64)
    first, order = digest(x, y, 50), torch.randperm(50)
    assert first.differs(digest(x, y, 7)) is None
    assert first.differs(digest(x[order], y[order], 3)) is None
    assert "50 samples, then 49" in (first.differs(digest(x[1:], y[1:], 7)) or "")
    twice = torch.cat([torch.arange(49), torch.tensor([0])])
    changes = [(x.flip(3), y), (x[order], y), (x, y[order]), (x[twice], y[twice]), (x + 1e-12, y)]
    for other in changes:
        assert "other content" in (first.differs(digest(*other, 7)) or "")
