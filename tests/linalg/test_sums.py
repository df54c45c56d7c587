"""Sums over samples go through one object: one that counts sees every sum of an evaluation and of its derivatives."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import Tensor

from cases import made
from checks import relative
from gnvpro.linalg.sums import SampleSum
from gnvpro.processes import Processes


class Doubled(Processes):
    """A stand-in for two processes with equal samples."""

    def __init__(self) -> None:
        super().__init__()
        self.alone, self.seen = False, list[int]()

    def total(self, part: Tensor) -> Tensor:
        self.seen.append(part.numel())
        return 2 * part

    def triangle(self, R: Tensor, projected: Tensor) -> tuple[Tensor, Tensor]:
        self.seen.append(R.numel())
        return 2**0.5 * R, 2**0.5 * projected


@pytest.mark.parametrize(
    "name",
    ["mlp, least squares", "mlp, multinomial", "mlp, logistic", "autodiff, least squares", "neural ode, logistic"],
)
def test_half_of_the_samples_and_a_sum_that_doubles_is_the_whole(name):
    """Two processes with the same samples: each sees half of the weights, and all that is added up is what one would see."""
    m = made(name)
    whole = m.problem
    half = whole._with(misfit=replace(whole.misfit, weights=whole.misfit.weights / 2, over=SampleSum(Doubled())))
    here, there = whole.reduced.at(m.theta), half.reduced.at(m.theta)
    assert relative(there.W, here.W) <= 1e-10
    assert there.value == pytest.approx(here.value, rel=1e-12)
    assert relative(there.gradient(), here.gradient()) <= 1e-9
    v = m.direction(m.theta)
    assert relative(there.curvature().mv(v), here.curvature().mv(v)) <= 1e-8
    full_here, full_there = (p.full.at(p.full.join(m.theta, m.some_W())) for p in (whole, half))
    assert relative(full_there.gradient(), full_here.gradient()) <= 1e-12
    assert max(half.misfit.over.processes.seen) <= m.theta.numel() * 10, (
        "what is added up does not grow with the samples"
    )
