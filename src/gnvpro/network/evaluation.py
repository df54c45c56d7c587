"""Running a user's model without changing it: in evaluation mode, every module put back into its own mode afterwards."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode."""
    training = [module for module in model.modules() if module.training]
    try:
        if training:
            model.eval()
        yield
    finally:
        for module in training:
            module.training = True


def warn_of_modes(model: nn.Module, stacklevel: int) -> None:
    """Say so where evaluation mode changes what a model in training mode computes."""
    random = nn.modules.dropout._DropoutNd
    kinds = {
        type(m).__name__
        for m in model.modules()
        if m.training
        and (
            (isinstance(m, random) and m.p > 0)
            or (isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats)
        )
    }
    if kinds:
        warnings.warn(
            f"the model has {', '.join(sorted(kinds))}: gnvpro trains in evaluation mode (no dropout, running statistics "
            "fixed), since its objective must be the same function at every call; each module's mode is restored afterwards",
            UserWarning,
            stacklevel=stacklevel,
        )
