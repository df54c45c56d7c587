"""Points: in the right places, spread evenly, different on demand."""

from __future__ import annotations

import math

import pytest
import torch

from gnvpro import pde

BOX = pde.points.Box([-1.0, 0.0, 2.0], [1.0, 0.5, 3.0])


def test_points_inside_a_box_are_inside_and_even() -> None:
    points = BOX.inside(256).points
    assert bool(((points >= BOX.low) & (points <= BOX.high)).all())
    torch.testing.assert_close(points.mean(0), (BOX.low + BOX.high) / 2, rtol=0, atol=0.01)


def test_every_face_has_its_share_and_is_covered() -> None:
    """The points of one Sobol sequence on one face of four would lie in one quarter of it."""
    square = pde.points.Box([0, 0], [1, 1])
    points = square.boundary(64).points
    for axis in range(2):
        for side in (0.0, 1.0):
            face = points[points[:, axis] == side]
            assert len(face) == 16
            others = face[:, 1 - axis]
            assert torch.histc(others, 4, 0.0, 1.0).tolist() == [4.0, 4.0, 4.0, 4.0]


def test_shares_add_up() -> None:
    assert len(BOX.boundary(31)) == 31
    assert len(BOX.boundary(2)) == 2


def test_normals_point_outward() -> None:
    points = BOX.boundary(30).points
    normals = BOX.normal(points)
    torch.testing.assert_close(normals.norm(dim=1), torch.ones(30, dtype=torch.float64))
    outside = points + 1e-3 * normals
    assert bool(((outside < BOX.low) | (outside > BOX.high)).any(1).all())


@pytest.mark.parametrize("dimension", [1, 2, 3, 5])
def test_a_ball_is_filled_evenly(dimension: int) -> None:
    ball = pde.points.Ball([1.0] * dimension, 2.0)
    inside, boundary = ball.inside(2000).points, ball.boundary(500).points
    radii = (inside - 1).norm(dim=1) / 2
    assert float(radii.max()) <= 1 + 1e-12
    assert float((radii**dimension).mean()) == pytest.approx(0.5, abs=0.02)  # volume, not radius, is uniform
    torch.testing.assert_close((boundary - 1).norm(dim=1), torch.full((500,), 2.0, dtype=torch.float64))
    torch.testing.assert_close(ball.normal(boundary), (boundary - 1) / 2)


def test_a_grid_has_its_corners() -> None:
    points = pde.points.Box([0, 0], [1, 2]).grid([3, 5]).points
    assert points.shape == (15, 2)
    assert points[0].tolist() == [0.0, 0.0]
    assert points[-1].tolist() == [1.0, 2.0]


def test_fresh_points_are_others_and_more_points_keep_the_first() -> None:
    made = BOX.inside(32, seed=4)
    assert not torch.isin(made.fresh(32, 5), made.points).any()
    torch.testing.assert_close(made.grown(64).points[:32], made.points)


def test_a_domain_told_by_a_function() -> None:
    ell = pde.points.within(pde.points.Box([-1, -1], [1, 1]), lambda x: ~((x[:, 0] > 0) & (x[:, 1] > 0)), 200)
    assert len(ell) == 200
    assert not bool(((ell.points[:, 0] > 0) & (ell.points[:, 1] > 0)).any())


def test_uniform_points_are_drawn_by_their_seed() -> None:
    assert torch.equal(BOX.inside(5, 1, "uniform").points, BOX.inside(5, 1, "uniform").points)
    assert not torch.equal(BOX.inside(5, 1, "uniform").points, BOX.inside(5, 2, "uniform").points)


def test_given_points_have_no_others() -> None:
    cloud = pde.points.Cloud(torch.rand(4, 2))
    with pytest.raises(ValueError, match="no fresh ones"):
        cloud.fresh(3, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pde.points.Box([0, 1], [1, 1]), "low < high"),
        (lambda: pde.points.Ball([0, 0], -1.0), "positive radius"),
        (lambda: BOX.face(3, "low", 5), "an axis below 3"),
        (lambda: BOX.face(0, "left", 5), "side"),
        (lambda: BOX.inside(0), "number of points must be at least 1"),
        (lambda: BOX.inside(3, seed=-1), "seed of points must be at least 0"),
        (lambda: pde.points.Box([0, 0], [math.inf, 1]), "a box ends somewhere"),
        (lambda: BOX.boundary(5, faces=[(0, "left")]), "side"),
        (lambda: BOX.boundary(5, faces=[(3, "low")]), "an axis below 3"),
        (lambda: BOX.boundary(5, faces=[]), "faces are empty"),
        (lambda: BOX.grid(0), "points of a grid must be at least 1"),
        (lambda: BOX.grid([3, 3]), "each of its 3 axes"),
        (lambda: BOX.inside(5, how="random"), "sobol"),
        (lambda: pde.points.Cloud([[float("nan"), 0.0]]), "not finite"),
        (lambda: pde.points.Cloud([1.0, 2.0]), "rows of coordinates"),
        (lambda: pde.points.within(BOX, lambda x: x[:, 0] > 5, 3), "smaller box"),
    ],
)
def test_what_means_nothing_is_refused(make, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("belongs", [lambda x: x[:, :1] > 0.5, lambda x: x[:, 0], lambda x: True])
def test_what_tells_a_domain_gives_a_mask(belongs) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(TypeError, match="True or False for each point"):
        pde.points.within(BOX, belongs, 3)
