"""Simulated tables with the character of engineering data, to choose defaults on.

arm         8,000 rows   8 inputs   distance of an arm's hand from a point, some noise
turbine    12,000 rows  15 inputs   a decay coefficient in a narrow range; constant, equal and collinear columns, no noise
fold       45,000 rows   9 inputs   heavy noise that grows with the target, long tails, sharp changes
hull          300 rows   6 inputs   few levels per input, resistance grows exponentially with speed
building      770 rows   8 inputs   few levels, steps between them
mixture     1,000 rows   8 inputs   many zeros, products and ratios, a logarithm of age
tasting     1,600 rows  11 inputs   a score of six levels, mostly noise
plant       9,500 rows   4 inputs   nearly linear, some noise with outliers
suburb        500 rows  13 inputs   skewed inputs, a target that is cut off, outliers
sine          500 rows   2 inputs   two periods along one of them, little noise
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import RandomState

Table = tuple[np.ndarray, np.ndarray]


def arm(random: RandomState) -> Table:
    angles = random.uniform(-np.pi / 2, np.pi / 2, (8000, 8))
    lengths, twists = 0.6 + 0.4 * np.cos(np.arange(8)), np.where(np.arange(8) % 2, np.pi / 2, 0.3)
    hand, frame = np.zeros((8000, 3)), np.tile(np.eye(3), (8000, 1, 1))
    for k in range(8):
        c, s = np.cos(angles[:, k] / 2), np.sin(angles[:, k] / 2)
        zero, one = np.zeros_like(c), np.ones_like(c)
        turn = np.stack([c, -s, zero, s, c, zero, zero, zero, one], 1).reshape(-1, 3, 3)
        ct, st = np.cos(twists[k]), np.sin(twists[k])
        frame = frame @ turn @ np.array([[1, 0, 0], [0, ct, -st], [0, st, ct]])
        hand += lengths[k] * frame[:, :, 0]
    distance = np.linalg.norm(hand - np.array([1.0, 0.5, 0.2]), axis=1)
    return angles, distance + 0.2 * distance.std() * random.standard_normal(8000)


def turbine(random: RandomState) -> Table:
    n = 12_000
    lever, decay = random.randint(1, 10, n) / 9, 1 - 0.05 * random.randint(0, 51, n) / 50
    other = 1 - 0.025 * random.randint(0, 26, n) / 25
    speed, power = 27 * lever, 72_000 * lever**2.8 * (1.3 - 0.3 * other)
    exhaust = 480 + 600 * lever**1.5 / decay + 40 * (1 - other) * lever
    pressure = 1 + 3 * lever**1.2 * decay + 0.5 * other
    flow = 0.1 + 1.8 * lever**2 / (decay * other)
    columns = [lever * 9.3, speed, power, power / speed, 1300 + 2300 * lever**0.7, 6500 + 3000 * lever**1.1 * decay]
    columns += [power / 110, power / 110, exhaust, np.full(n, 288.0), 540 + 250 * lever * (1.02 - decay) + 100 * lever]
    columns += [pressure, np.full(n, 0.998), 1.019 + 0.03 * lever, flow]
    return np.round(np.stack(columns, 1), 3), decay


def fold(random: RandomState) -> Table:
    n = 45_000
    size = np.exp(9.1 + 0.4 * random.standard_normal(n))
    ratio = 0.3 + 0.06 * random.standard_normal(n)
    columns = [size, size * ratio, ratio, size * 0.01 * (1 + 0.2 * random.standard_normal(n))]
    columns += [1.4e2 * size * (1 + 0.05 * random.standard_normal(n)), np.exp(5 + 0.5 * random.standard_normal(n))]
    columns += [size * 0.4 * (1 + 0.1 * random.standard_normal(n)), random.poisson(40 * random.gamma(1, 1, n) + 1)]
    columns += [38 - size / 2000 + 2 * random.standard_normal(n)]
    X = np.stack(columns, 1)
    Z = (X - X.mean(0)) / X.std(0)
    mean = (
        4 * np.tanh(Z[:, 2] + 0.5 * Z[:, 7])
        + 2 * np.sin(2 * Z[:, 5]) * Z[:, 2]
        + 2 * (Z[:, 7] > 0.3) * np.tanh(Z[:, 0])
    )
    mean += 3 * np.exp(-((Z[:, 3] - Z[:, 0]) ** 2) / 0.02) + np.abs(Z[:, 8] - Z[:, 6])
    return X, np.maximum(mean + 6 + (2.5 + 0.5 * np.tanh(mean)) * random.standard_normal(n), 0)


def hull(random: RandomState) -> Table:
    shapes = np.stack([random.choice(values, 22) for values in LEVELS_OF_A_HULL], 1)
    speed = np.linspace(0.125, 0.45, 14)
    X = np.concatenate([np.column_stack([np.tile(shape, (14, 1)), speed]) for shape in shapes])
    wave = np.exp(22 * X[:, 5] - 4) * (1 + 0.3 * (X[:, 1] - 0.56) / 0.05 - 0.1 * (X[:, 2] - 4.8)) / 10
    wave *= 1 - 0.05 * X[:, 0] / 2.5 + 0.1 * np.cos(20 * X[:, 5]) * (X[:, 4] - 3.2)
    return X, 8 * X[:, 5] ** 2 + np.abs(wave) + 0.05 * random.standard_normal(len(X))


LEVELS_OF_A_HULL = [
    [-5.0, -2.4, -2.3, 0.0],
    [0.53, 0.546, 0.565, 0.6],
    [4.34, 4.77, 5.1],
    [2.81, 3.5, 3.9, 5.35],
    [2.73, 3.15, 3.3, 3.6],
]


def building(random: RandomState) -> Table:
    compact = random.choice(np.linspace(0.62, 0.98, 12), 770)
    height = np.where(compact > 0.74, 7.0, 3.5)
    surface, wall = 500 / compact, random.choice([245.0, 294, 318, 343, 416], 770)
    facing, glass, spread = (
        random.randint(2, 6, 770),
        random.choice([0, 0.1, 0.25, 0.4], 770),
        random.randint(0, 6, 770),
    )
    roof = (surface - wall) / 2
    load = 8 + 0.03 * wall + 12 * (height > 5) + 25 * glass * (1 + 0.3 * (height > 5)) * (1 + 0.02 * facing)
    load += (
        3 * np.sin(12 * compact)
        + 0.01 * (roof - 150) * (height > 5)
        + 0.5 * (spread > 0)
        + 0.3 * (spread == 1) * facing
    )
    return np.stack(
        [compact, surface, wall, roof, height, facing, glass, spread], 1
    ), load + 0.3 * random.standard_normal(770)


def mixture(random: RandomState) -> Table:
    n = 1000
    cement = random.uniform(100, 540, n)
    slag = np.where(random.rand(n) < 0.45, 0, random.uniform(10, 360, n))
    ash = np.where(random.rand(n) < 0.55, 0, random.uniform(60, 200, n))
    agent = np.where(random.rand(n) < 0.37, 0, random.gamma(3, 2.5, n))
    water = 190 - 2 * agent + 12 * random.standard_normal(n)
    coarse, fine = 970 + 78 * random.standard_normal(n), 770 + 80 * random.standard_normal(n)
    age = random.choice(
        [1, 3, 7, 14, 28, 56, 90, 180, 365], n, p=[0.02, 0.13, 0.12, 0.06, 0.42, 0.09, 0.08, 0.05, 0.03]
    )
    binder = cement + 0.8 * slag + 0.5 * ash
    strength = 14 * (binder / water) ** 1.3 * (0.25 + 0.22 * np.log(age + 1)) * (1 + 0.01 * agent)
    strength *= 1 - 0.15 * np.tanh((coarse - 970) / 150) - 0.1 * np.tanh((fine - 770) / 100)
    return np.stack([cement, slag, ash, water, agent, coarse, fine, age], 1), strength + 4 * random.standard_normal(n)


def tasting(random: RandomState) -> Table:
    Z = random.standard_normal((1600, 11)) @ (np.eye(11) + 0.3 * random.standard_normal((11, 11)))
    taste = (
        0.35 * np.tanh(Z[:, 0]) - 0.3 * Z[:, 1] / 2 + 0.25 * np.minimum(Z[:, 2], 0.8) - 0.15 * Z[:, 3] * (Z[:, 4] > 0)
    )
    X = np.concatenate([np.exp(0.5 * Z[:, :6]), 3 + 0.2 * Z[:, 6:]], 1)
    return X, np.clip(np.round(5.6 + taste + 0.6 * random.standard_normal(1600)), 3, 8)


def plant(random: RandomState) -> Table:
    n = 9500
    warmth = np.where(random.rand(n) < 0.5, 13 + 5 * random.standard_normal(n), 25 + 4 * random.standard_normal(n))
    vacuum = 35 + 1.4 * warmth + 7 * random.standard_normal(n)
    pressure, moisture = (
        1013 + 6 * random.standard_normal(n),
        np.clip(90 - 0.8 * warmth + 12 * random.standard_normal(n), 25, 100),
    )
    power = 497 - 1.7 * warmth - 0.25 * vacuum + 0.08 * (pressure - 1013) - 0.15 * moisture * (warmth > 15) * 0.5
    power += 4 * np.sin(vacuum / 5) + 2 * np.tanh((warmth - 20) / 3) + 3.2 * random.standard_t(5, n)
    return np.stack([warmth, vacuum, pressure, moisture], 1), power


def suburb(random: RandomState) -> Table:
    n = 500
    wealth = random.standard_normal(n)
    crime = np.exp(-1 - 1.8 * wealth + random.standard_normal(n))
    zoned = np.where(random.rand(n) < 0.73, 0, random.uniform(12, 100, n))
    rooms = 6.3 + 0.5 * wealth + 0.4 * random.standard_normal(n)
    poor = np.exp(2.3 - 0.45 * wealth + 0.3 * random.standard_normal(n))
    tax = np.where(crime > 3, 666, 200 + 100 * random.rand(n))
    river, air, old = random.rand(n) < 0.07, random.uniform(0.4, 0.9, n), random.uniform(3, 100, n)
    far, roads = np.exp(1.2 + 0.5 * random.standard_normal(n)), random.randint(1, 9, n)
    pupils = random.uniform(12, 22, n)
    price = 30 + 10 * np.maximum(rooms - 6, 0) ** 1.5 - 6 * np.log(poor / 10) - 0.02 * tax + 0.4 * (18 - pupils)
    price += 3 * river - 8 * air - 2 * np.log(far)
    cut = np.clip(396 - 30 * random.gamma(0.3, 1, n) * crime, 0, 397)
    X = np.column_stack([crime, zoned, rooms, poor, tax, cut, 10 - wealth, river, air, old, far, roads, pupils])
    return X, np.minimum(price + 2 * random.standard_t(3, n), 50)


def sine(random: RandomState) -> Table:
    X = random.uniform(-1, 1, (500, 2))
    return X, np.sin(6 * X[:, 0]) + 0.05 * random.standard_normal(500)


@dataclass(frozen=True)
class SimulatedTable:
    """A simulated table."""

    draw: Callable[[RandomState], Table]
    classification: bool = False

    @property
    def name(self) -> str:
        """Name of the simulated system."""
        return self.draw.__name__

    def load(self) -> Table:
        """Inputs and targets."""
        X, y = self.draw(RandomState(0))
        return X, y


SIMULATED = [
    SimulatedTable(draw) for draw in (hull, suburb, building, mixture, tasting, arm, plant, turbine, fold, sine)
]
