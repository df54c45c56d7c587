"""Checks of what users pass: inputs, targets, slopes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnvpro.surrogate.candidates import Sampled

LEAST_SAMPLES = 3


def matrix(name: str, given: Any, columns: int | None = None) -> Tensor:
    """Return numbers as a float64 matrix; a vector becomes one column.

    >>> matrix("y", [1, 2]).shape
    torch.Size([2, 1])
    """
    tensor = numbers(name, given)
    if tensor.ndim == 1:
        tensor = tensor[:, None] if columns in (None, 1) else tensor[None]
    if tensor.ndim != 2:
        raise ValueError(f"{name} must be a table with samples in rows, got shape {tuple(tensor.shape)}")
    if columns is not None and tensor.shape[1] != columns:
        raise ValueError(f"{name} must have {columns} columns as in the fit, got {tensor.shape[1]}")
    return tensor


def numbers(name: str, given: Any) -> Tensor:
    """Return numbers as a float64 tensor; a tensor keeps its graph."""
    if isinstance(given, Tensor):
        return given.to(torch.float64)
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must hold numbers only ({error})") from error
    return torch.from_numpy(np.array(array))


def finite(name: str, tensor: Tensor) -> Tensor:
    """Return a matrix without infinite or missing values."""
    if not tensor.isfinite().all():
        i, j = (~tensor.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"{name} has {float(tensor[i, j])} in row {i}, column {j}; leave such samples out")
    return tensor


def check_data(X: Any, y: Any, gradients: Any, least: int = LEAST_SAMPLES) -> tuple[Sampled, bool]:
    """Return samples, and whether the targets were a vector."""
    x, targets = finite("X", matrix("X", X).detach()), numbers("y", y).detach()
    flat = targets.ndim == 1
    targets = finite("y", matrix("y", targets))
    if len(x) != len(targets):
        raise ValueError(f"X has {len(x)} samples but y has {len(targets)}; both must have the same number")
    if len(x) < least:
        raise ValueError(f"X must have at least {least} samples, got {len(x)}")
    if gradients is None:
        return Sampled(x, targets), flat
    slopes = numbers("gradients", gradients).detach()
    shape = (len(x), x.shape[1]) if flat else (len(x), targets.shape[1], x.shape[1])
    if slopes.shape != shape:
        raise ValueError(
            f"gradients must have shape {shape} for these X and y, with NaN where a slope is missing; got {tuple(slopes.shape)}"
        )
    if slopes.isinf().any():
        raise ValueError("gradients has infinite values; write NaN where a slope is missing")
    slopes = slopes.reshape(len(x), targets.shape[1], x.shape[1])
    return Sampled(x, targets, None if slopes.isnan().all() else slopes), flat


def check_levels(X: Any, y: Any, gradients: Any) -> tuple[list[Sampled], bool]:
    """Return the samples of every fidelity, the cheapest first, and whether the targets were vectors."""
    if y is not None:
        data, flat = check_data(X, y, gradients)
        return [data], flat
    if not isinstance(X, list | tuple) or not X or not all(isinstance(e, tuple) and len(e) in (2, 3) for e in X):
        raise TypeError(
            "fit needs X and y, or a list of one (X, y) or (X, y, gradients) for each fidelity, the cheapest first"
        )
    checked = [check_data(*each, *[None] * (3 - len(each))) for each in X]
    shapes = {(data.x.shape[1], data.y.shape[1], flat) for data, flat in checked}
    if len(shapes) > 1:
        raise ValueError(f"all fidelities must have the same inputs and outputs, got {sorted(shapes)}")
    return [data for data, _ in checked], checked[0][1]


def like(given: Any, result: Tensor) -> Any:
    """Return a tensor if the user gave one, else an array."""
    return result if isinstance(given, Tensor) else result.detach().numpy()
