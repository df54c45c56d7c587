"""The ellipse set: sizes, classes on their sides of the ellipse, drawn by the seed."""

import pytest
import torch

from gnvpro.data import ellipse


def test_sizes_and_classes():
    data = ellipse.load()
    for (inputs, labels), size in zip((data.train, data.validation, data.test), ellipse.SIZES, strict=True):
        assert inputs.shape == (size, 2)
        assert inputs.dtype == torch.float64
        assert labels.bincount().tolist() == [size // 2, size // 2]


def test_labels_tell_the_side_of_the_ellipse():
    inputs, labels = ellipse.load((400, 10, 10)).train
    radius = (inputs / torch.tensor([1.0, 0.4])).norm(dim=1)
    assert ((radius > 1) == (labels == 1)).all()
    assert radius.max() <= 2


def test_a_seed_draws_the_same_set_and_another_a_different_one():
    first, again, other = (ellipse.load((10, 10, 10), seed=seed).train[0] for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_too_few_samples_are_refused():
    with pytest.raises(ValueError, match="at least 2"):
        ellipse.load((1, 10, 10))
