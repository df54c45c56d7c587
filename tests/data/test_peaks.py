"""The peaks set: MATLAB's function, five bands of equal height, as many points of each."""

import pytest
import torch

from gnvpro.data import peaks


def test_heights_are_those_of_matlab():
    points = torch.tensor([[0.0, 0.0], [1.0, 1.0], [-3.0, 3.0]], dtype=torch.float64)
    assert peaks.height(points).tolist() == pytest.approx([0.9810118431238462, 2.4337903486, 3.2235402e-05], rel=1e-5)


def test_the_lowest_and_highest_values_are_those_on_the_square():
    grid = torch.linspace(-3, 3, 1201, dtype=torch.float64)
    values = peaks.height(torch.cartesian_prod(grid, grid))
    assert values.min() == pytest.approx(peaks.LOWEST, abs=1e-4)
    assert values.max() == pytest.approx(peaks.HIGHEST, abs=1e-4)


def test_every_band_has_as_many_points_and_equal_height():
    data = peaks.load((500, 50, 50), seed=1)
    inputs, labels = data.train
    assert labels.bincount().tolist() == [100] * 5
    assert inputs.abs().max() <= 3
    edges = torch.linspace(peaks.LOWEST, peaks.HIGHEST, 6, dtype=torch.float64)
    height = peaks.height(inputs)
    assert (height >= edges[labels] - 1e-9).all()
    assert (height <= edges[labels + 1] + 1e-9).all()


def test_a_seed_draws_the_same_set():
    assert torch.equal(peaks.load((50, 50, 50), seed=2).test[0], peaks.load((50, 50, 50), seed=2).test[0])


@pytest.mark.parametrize("samples", [0, 4, 12])
def test_sizes_that_cannot_be_balanced_are_refused(samples):
    with pytest.raises(ValueError, match="multiple of 5"):
        peaks.load((samples, 50, 50))
