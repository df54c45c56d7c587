"""NIST's certified regressions: all 27 if their files are present, four small ones as literals."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import nist

from gnvpro import curves

FOLDER = Path(os.environ.get("GNVPRO_DATA") or Path(__file__).parents[3] / "shared" / "data") / "nist"
LIMITED = {"Lanczos1"}  # residuals of 1e-13 from values of order one: float64 knows them to two or three digits
OFFICIAL = [1, 2]


@pytest.mark.parametrize("start", OFFICIAL)
@pytest.mark.parametrize("name", sorted(nist.FORMS))
def test_certified_values_are_found_from_both_starts(name: str, start: int) -> None:
    path = FOLDER / f"{name}.dat"
    if not path.exists():
        pytest.skip(f"{path.name} is not in {FOLDER}; name the directory of data with GNVPRO_DATA")
    case = nist.read(path)
    fit = nist.fitted(case, start - 1)
    values, errors = nist.named(case, fit)
    assert fit.solved
    for parameter, certified in case.certified.items():
        assert nist.digits(values[parameter], certified) >= 8, parameter
    if name not in LIMITED:
        assert nist.digits(fit.rss, case.rss) >= 8
        assert all(nist.digits(errors[p], certified) >= 6 for p, certified in case.deviations.items())
    else:
        assert nist.digits(fit.rss, case.rss) >= 2
        assert any("rounding" in note for note in fit.notes)


MISRA_X = [77.6, 114.9, 141.1, 190.8, 239.9, 289.0, 332.8, 378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760.0]
MISRA_Y = [10.07, 14.73, 17.94, 23.93, 29.61, 35.18, 40.02, 44.82, 50.76, 55.05, 61.01, 66.40, 75.47, 81.78]
RAT_X = [9.0, 14.0, 21.0, 28.0, 42.0, 57.0, 63.0, 70.0, 79.0]
RAT_Y = [8.93, 10.8, 18.59, 22.33, 39.35, 56.11, 61.73, 64.62, 67.08]
LITERALS = [  # x, y, columns, start, parameters and coefficient with standard deviations, sum of squares
    (
        [1.0, 2.0, 3.0, 5.0, 7.0, 10.0],
        [109.0, 149.0, 149.0, 191.0, 213.0, 224.0],
        lambda x, b2: [1 - torch.exp(-b2 * x)],
        {"b2": 1.0},
        {"b2": (5.4723748542e-01, 1.0455993237e-01), "c0": (2.1380940889e02, 1.2354515176e01)},
        1.1680088766e03,
    ),
    (
        [1.309, 1.471, 1.490, 1.565, 1.611, 1.680],
        [2.138, 3.421, 3.597, 4.340, 4.882, 5.660],
        lambda x, b2: [x**b2],
        {"b2": 5.0},
        {"b2": (3.8604055871e00, 5.1726610913e-02), "c0": (7.6886226176e-01, 1.8281973860e-02)},
        4.3173084083e-03,
    ),
    (
        MISRA_X,
        MISRA_Y,
        lambda x, b2: [1 - torch.exp(-b2 * x)],
        {"b2": 0.0001},
        {"b2": (5.5015643181e-04, 7.2668688436e-06), "c0": (2.3894212918e02, 2.7070075241e00)},
        1.2455138894e-01,
    ),
    (
        RAT_X,
        RAT_Y,
        lambda x, b2, b3: [1 / (1 + torch.exp(b2 - b3 * x))],
        {"b2": 1.0, "b3": 0.1},
        {
            "b2": (2.6180768402e00, 8.8295217536e-02),
            "b3": (6.7359200066e-02, 3.4465663377e-03),
            "c0": (7.2462237576e01, 1.7340283401e00),
        },
        8.0565229338e00,
    ),
]


@pytest.mark.parametrize(
    ("x", "y", "columns", "start", "certified", "rss"), LITERALS, ids=["BoxBOD", "DanWood", "Misra1a", "Rat42"]
)
def test_certified_values_of_small_sets(x, y, columns, start, certified, rss):  # type: ignore[no-untyped-def]
    fit = curves.fit(columns, np.array(x), np.array(y), start=start)
    values = {**fit.parameters, "c0": fit.coefficients[0]}
    errors = {**fit.standard_errors, "c0": fit.coefficient_errors[0]}
    assert fit.solved
    assert nist.digits(fit.rss, rss) >= 8
    for name, (value, deviation) in certified.items():
        assert nist.digits(values[name], value) >= 8
        assert nist.digits(errors[name], deviation) >= 6
