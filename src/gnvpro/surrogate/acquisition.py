"""The next samples: greedily the points that the posterior rates highest, each one conditioned on those before it.

    accuracy   the variance that a sample at c takes from the box:    sum_r cov(r, c)^2 / (var(c) + noise)
    minimum    the expected improvement on the least value:           std (z Phi(z) + phi(z)),  z = (best - mean) / std
    contour    the doubt on which side of a level a point lies:       std Phi(-|mean - level| / std)

The posterior's covariance does not depend on the values, and a batch is conditioned exactly: after a choice c the covariance
loses its part along c. The mean stays, as if the surrogate were right there. Surrogates of logarithms compare logarithms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import qmc
from torch import Tensor

from gnvpro.surrogate.likelihood import Array
from gnvpro.surrogate.member import Member

GOALS = ("accuracy", "minimum", "contour")
CANDIDATES, REFERENCES, REDRAWS = 1024, 256, 8


@dataclass(frozen=True)
class Pool:
    """Points to choose from, and points of the box that count for the accuracy."""

    candidates: Array
    references: Array


def make_pool(
    low: Array, high: Array, constraint: Callable[[Array], Any] | None, candidates: Array | None, best: Array, seed: int
) -> Pool:
    """Return the candidates that meet the constraint: those given, or points of the box and around the best sample."""
    rng = np.random.default_rng(seed)
    d = len(low)
    references = _allowed(low + (high - low) * qmc.Sobol(d, rng=rng).random(REFERENCES), constraint)
    if candidates is not None:
        allowed = _allowed(candidates, constraint)
        if not len(allowed):
            raise ValueError("no candidate meets the constraint; give others, or loosen it")
        return Pool(allowed, references if len(references) else allowed)
    box = qmc.Sobol(d, rng=rng)
    found = []
    for _ in range(REDRAWS):  # small feasible parts need many draws
        near = best + (high - low) * 0.05 * rng.standard_normal((CANDIDATES // 4, d))
        drawn = np.concatenate([low + (high - low) * box.random(CANDIDATES), np.clip(near, low, high)])
        found.append(_allowed(drawn, constraint))
        if sum(map(len, found)) >= CANDIDATES:
            break
    points = np.concatenate(found)[: 2 * CANDIDATES]
    if not len(points):
        raise ValueError(f"none of {REDRAWS * CANDIDATES} points of the box meets the constraint; pass candidates=")
    return Pool(points, references if len(references) else points[:REFERENCES])


def _allowed(points: Array, constraint: Callable[[Array], Any] | None) -> Array:
    if constraint is None:
        return points
    allowed = np.asarray(constraint(points))
    if allowed.shape != (len(points),) or allowed.dtype != bool:
        raise ValueError(
            f"constraint must return True or False for each of {len(points)} points; got shape {allowed.shape} of "
            f"{allowed.dtype}"
        )
    kept: Array = points[allowed]
    return kept


def choose(members: Sequence[Member], pool: Pool, n: int, goal: str, level: float | None) -> list[int]:
    """Return the indices of n candidates, best first."""
    views = [_View.of(member, pool, goal, level) for member in members]
    chosen: list[int] = []
    for _ in range(min(n, len(pool.candidates))):
        score = torch.stack([view.score() for view in views]).sum(0)
        score[chosen] = -torch.inf
        chosen.append(int(score.argmax()))
        for view in views:
            view.condition(chosen[-1])
    return chosen


class _View:
    """One output's posterior at the pool, in units of its prior deviation."""

    def __init__(self, mean: Tensor, covariance: Tensor, count: int, noise: float, goal: str, aim: float) -> None:
        self.mean, self.covariance, self.count, self.noise = mean, covariance, count, noise
        self.goal, self.aim = goal, aim

    @classmethod
    def of(cls, member: Member, pool: Pool, goal: str, level: float | None) -> _View:
        model = member.model
        points = np.concatenate([pool.candidates, pool.references]) if goal == "accuracy" else pool.candidates
        x = torch.as_tensor(points)
        with torch.no_grad():
            unit = model.units.size * model.eliminated.s.sqrt() * model.inflation
            mean = (model.mean(x)[0] / unit)[:, 0]
            covariance = model.covariance(x, x)
        noise = float(model.eliminated.theta.nugget)
        if goal == "minimum":
            seen = (model.rows.y[model.rows.is_value] * model.units.size + model.units.mean) / unit
            aim = float(seen.min())
        elif goal == "contour":
            assert level is not None
            aim = float((torch.tensor(level).log() if member.log else torch.tensor(level)) / unit)
        else:
            aim = 0.0
        return cls(mean, covariance, len(pool.candidates), noise, goal, aim)

    def score(self) -> Tensor:
        """Rate all candidates."""
        own = self.covariance.diagonal()[: self.count].clamp_min(1e-14)
        if self.goal == "accuracy":
            across = self.covariance[self.count :, : self.count]
            return across.square().sum(0) / (own + self.noise) / self.covariance.diagonal()[self.count :].sum()
        std, mean = own.sqrt(), self.mean[: self.count]
        if self.goal == "contour":
            doubt: Tensor = std * torch.special.ndtr(-(mean - self.aim).abs() / std)
            return doubt
        z = (self.aim - mean) / std
        density = torch.exp(-0.5 * z.square()) / np.sqrt(2 * np.pi)
        improvement: Tensor = std * (z * torch.special.ndtr(z) + density)
        return improvement

    def condition(self, i: int) -> None:
        """Condition on a sample at candidate i."""
        column = self.covariance[:, i]
        variance = column[i].clamp_min(1e-14) + self.noise
        self.aim = min(self.aim, float(self.mean[i])) if self.goal == "minimum" else self.aim
        self.covariance = self.covariance - torch.outer(column, column) / variance
