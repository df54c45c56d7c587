"""Jacobians in blocks: everything done with outer products is what is done with the rows multiplied out."""

from __future__ import annotations

import pytest
import torch

from checks import F64, relative
from gnvpro.network.derivatives.blocks import Blocks, DenseBlock, OuterBlock

SEEDS, SAMPLES = 3, 20
# (outputs, inputs) of linear layers, "bias" for those that have one, or a number of rows; the first layer has more inputs than
# the square of its outputs
MADE_OF = [
    [(2, 7), (3, 4)],
    [(2, 7), 5, (3, 4)],
    [5, (4, 4), (4, 4)],
    [(2, 7, "bias"), (3, 4, "bias")],
    [(2, 7, "bias"), 5, (3, 4)],
    [(3, 4), 5, (2, 7, "bias")],
    [(1, 9, "bias"), (2, 3, "bias")],
    [(1, 1)],
    [4],
]


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(3)
    return lambda *shape: torch.randn(*shape, dtype=F64, generator=generator)


@pytest.fixture(params=MADE_OF, ids=str)
def blocks(request, draw):
    made = []
    for part in request.param:
        if isinstance(part, int):
            made.append(DenseBlock(draw(part, SEEDS, SAMPLES)))
        else:
            o, i, *bias = part
            weight = OuterBlock(draw(o, SEEDS, SAMPLES), draw(i, SAMPLES))
            made.append(weight.with_bias() if bias else weight)
    return Blocks(tuple(made))


@pytest.fixture
def dense(blocks):
    return torch.cat([block.dense() for block in blocks.blocks])


def test_the_rows_of_a_bias_stand_after_those_of_the_weight(draw):
    weight = OuterBlock(draw(2, SEEDS, SAMPLES), draw(3, SAMPLES))
    assert torch.equal(weight.with_bias().dense(), torch.cat([weight.dense(), weight.g]))


@pytest.mark.parametrize("numbers", [1, 100, 1_000_000])  # one sample at a time, some, all
def test_the_square(blocks, dense, draw, numbers, monkeypatch):
    monkeypatch.setattr("gnvpro.network.derivatives.blocks.MAX_PRODUCT_ENTRIES", numbers)
    q = len(dense)
    before = draw(q, q)
    out = before.clone()
    blocks.add_square(out)
    assert relative((out - before).tril(), (dense.flatten(1) @ dense.flatten(1).T).tril()) <= 1e-14


def test_products_and_couplings(blocks, dense, draw):
    v, y = draw(SAMPLES, SEEDS), draw(SAMPLES, 4)
    left, z = draw(6, SEEDS, SAMPLES), draw(5, SAMPLES)
    assert relative(blocks.times(v), torch.einsum("qmn,nm->q", dense, v)) <= 1e-14
    assert relative(blocks.sum_with(y), torch.einsum("qmn,nk->qmk", dense, y)) <= 1e-14
    assert relative(blocks.sum_weighted_with(left, z), torch.einsum("qmn,kmn,fn->qkf", dense, left, z)) <= 1e-14


def test_other_seeds(blocks, dense, draw):
    R = draw(2, SAMPLES, SEEDS)
    mixed = blocks.reseed(R)
    rows = torch.cat([block.dense() for block in mixed.blocks])
    assert relative(rows, torch.einsum("jnm,qmn->qjn", R, dense)) <= 1e-14
