"""NIST's certified nonlinear regressions as separable fits: ours, scipy's and lmfit's digits from the same starts.

    python -m benchmarks.nist            writes docs/lab/nist.md

The 27 data sets (StRD, public domain) are read from the folder `nist` of the data directory (GNVPRO_DATA). Parameters keep
NIST's names; a coefficient takes the place of the parameters that enter linearly.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnvpro import curves

Columns = Callable[..., Any]


@dataclass(frozen=True)
class Form:
    """A model as columns: which parameters are nonlinear, and which of NIST's each coefficient is."""

    columns: Columns
    nonlinear: tuple[str, ...]
    coefficients: tuple[str | None, ...]  # NIST's names, None: fixed
    fixed: Mapping[str, float] = field(default_factory=dict)
    target: Callable[[np.ndarray], np.ndarray] = lambda y: y
    width: str | None = None  # a parameter whose sign changes nothing if the coefficient's changes too


@dataclass(frozen=True)
class Case:
    """A data set with its certified values."""

    name: str
    x: np.ndarray
    y: np.ndarray
    starts: tuple[dict[str, float], dict[str, float]]
    certified: dict[str, float]
    deviations: dict[str, float]
    rss: float

    @property
    def form(self) -> Form:
        """Its model."""
        return FORMS[self.name]


exp = torch.exp


def exponentials(count: int) -> Columns:
    """Decays, without a constant."""
    names = [f"b{2 * i + 2}" for i in range(count)]
    return lambda x, **b: [exp(-b[name] * x) for name in names]


def gauss(x, b2, b4, b5, b7, b8):  # type: ignore[no-untyped-def]
    """A decay and two peaks."""
    return [exp(-b2 * x), exp(-(((x - b4) / b5) ** 2)), exp(-(((x - b7) / b8) ** 2))]


def enso(x, b4, b7):  # type: ignore[no-untyped-def]
    """A year's cycle and two others."""
    turn = 2 * math.pi * x
    waves = [f(turn / period) for period in (12.0, b4, b7) for f in (torch.cos, torch.sin)]
    return [1.0, *waves]


def hahn(x, b5, b6, b7):  # type: ignore[no-untyped-def]
    """A quotient of two cubics."""
    below = 1 + b5 * x + b6 * x**2 + b7 * x**3
    return [1 / below, x / below, x**2 / below, x**3 / below]


def quadratic(x, b4, b5):  # type: ignore[no-untyped-def]
    """A quotient of two quadratics."""
    below = 1 + b4 * x + b5 * x**2
    return [1 / below, x / below, x**2 / below]


GAUSS = Form(gauss, ("b2", "b4", "b5", "b7", "b8"), ("b1", "b3", "b6"))
LANCZOS = Form(exponentials(3), ("b2", "b4", "b6"), ("b1", "b3", "b5"))
CHWIRUT = Form(lambda x, b1, b2, b3: [exp(-b1 * x) / (b2 + b3 * x)], ("b1", "b2", "b3"), (None,), {"c0": 1.0})
CUBICS = Form(hahn, ("b5", "b6", "b7"), ("b1", "b2", "b3", "b4"))
FORMS: dict[str, Form] = {
    "Bennett5": Form(lambda x, b2, b3: [(b2 + x) ** (-1 / b3)], ("b2", "b3"), ("b1",)),
    "BoxBOD": Form(lambda x, b2: [1 - exp(-b2 * x)], ("b2",), ("b1",)),
    "Chwirut1": CHWIRUT,
    "Chwirut2": CHWIRUT,
    "DanWood": Form(lambda x, b2: [x**b2], ("b2",), ("b1",)),
    "ENSO": Form(enso, ("b4", "b7"), ("b1", "b2", "b3", "b5", "b6", "b8", "b9")),
    "Eckerle4": Form(lambda x, b2, b3: [exp(-0.5 * ((x - b3) / b2) ** 2) / b2], ("b2", "b3"), ("b1",), width="b2"),
    "Gauss1": GAUSS,
    "Gauss2": GAUSS,
    "Gauss3": GAUSS,
    "Hahn1": CUBICS,
    "Kirby2": Form(quadratic, ("b4", "b5"), ("b1", "b2", "b3")),
    "Lanczos1": LANCZOS,
    "Lanczos2": LANCZOS,
    "Lanczos3": LANCZOS,
    "MGH09": Form(lambda x, b2, b3, b4: [(x**2 + x * b2) / (x**2 + x * b3 + b4)], ("b2", "b3", "b4"), ("b1",)),
    "MGH10": Form(lambda x, b2, b3: [exp(b2 / (x + b3))], ("b2", "b3"), ("b1",)),
    "MGH17": Form(lambda x, b4, b5: [1.0, exp(-x * b4), exp(-x * b5)], ("b4", "b5"), ("b1", "b2", "b3")),
    "Misra1a": Form(lambda x, b2: [1 - exp(-b2 * x)], ("b2",), ("b1",)),
    "Misra1b": Form(lambda x, b2: [1 - (1 + b2 * x / 2) ** -2], ("b2",), ("b1",)),
    "Misra1c": Form(lambda x, b2: [1 - (1 + 2 * b2 * x) ** -0.5], ("b2",), ("b1",)),
    "Misra1d": Form(lambda x, b2: [b2 * x / (1 + b2 * x)], ("b2",), ("b1",)),
    "Nelson": Form(lambda x, b3: [1.0, -x[:, 0] * exp(-b3 * x[:, 1])], ("b3",), ("b1", "b2"), target=np.log),
    "Rat42": Form(lambda x, b2, b3: [1 / (1 + exp(b2 - b3 * x))], ("b2", "b3"), ("b1",)),
    "Rat43": Form(lambda x, b2, b3, b4: [(1 + exp(b2 - b3 * x)) ** (-1 / b4)], ("b2", "b3", "b4"), ("b1",)),
    "Roszman1": Form(
        lambda x, b3, b4: [1.0, -x, torch.atan(b3 / (x - b4)) / math.pi],
        ("b3", "b4"),
        ("b1", "b2", None),
        {"c2": -1.0},
    ),
    "Thurber": CUBICS,
}


def read(path: Path) -> Case:
    """A data set as NIST publishes it."""
    text = path.read_text()
    rows = re.findall(r"^\s*(b\d+) =((?:\s+[-+.\dE]+){4})\s*$", text, re.MULTILINE)
    table = {name: [float(v) for v in values.split()] for name, values in rows}
    found = re.search(r"Residual Sum of Squares:\s+([-+.\dE]+)", text)
    assert found is not None
    data = np.array([[float(v) for v in line.split()] for line in text.splitlines()[60:] if line.strip()])
    x = data[:, 1] if data.shape[1] == 2 else data[:, 1:]
    starts = tuple({name: row[i] for name, row in table.items()} for i in (0, 1))
    certified, deviations = ({name: row[i] for name, row in table.items()} for i in (2, 3))
    return Case(path.stem, x, data[:, 0], starts, certified, deviations, float(found[1]))  # type: ignore[arg-type]


def digits(found: float, true: float) -> float:
    """Correct significant digits, at most the eleven that are certified."""
    if not math.isfinite(found):
        return 0.0
    return 11.0 if found == true else max(0.0, min(11.0, -math.log10(abs(found - true) / abs(true))))


@dataclass(frozen=True)
class Score:
    """Correct digits of one fit, and its seconds."""

    parameters: float
    rss: float
    deviations: float
    seconds: float
    solved: bool


def fitted(case: Case, start: int) -> Any:
    """Our fit from an official start."""
    form = case.form
    begin = {name: case.starts[start][name] for name in form.nonlinear}
    return curves.fit(form.columns, case.x, form.target(case.y), start=begin, fixed=dict(form.fixed))


def named(case: Case, fit: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Values and standard errors of a fit under NIST's names."""
    values, errors = dict(fit.parameters), dict(fit.standard_errors)
    for name, value, error in zip(case.form.coefficients, fit.coefficients, fit.coefficient_errors, strict=True):
        if name is not None:
            values[name], errors[name] = float(value), float(error)
    if case.form.width is not None and values[case.form.width] < 0:
        values = {name: -value if name in (case.form.width, "b1") else value for name, value in values.items()}
    return values, errors


def ours(case: Case, start: int) -> Score:
    """Digits of our fit; seconds are the best of three."""
    seconds = []
    for _ in range(3):
        begun = time.process_time()
        fit = fitted(case, start)
        seconds.append(time.process_time() - begun)
    values, errors = named(case, fit)
    return Score(
        min(digits(values[name], true) for name, true in case.certified.items()),
        digits(fit.rss, case.rss),
        min(digits(errors[name], true) for name, true in case.deviations.items()),
        min(seconds),
        fit.solved,
    )
