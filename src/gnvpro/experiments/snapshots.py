"""Features of a small network during training, for the ellipse figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from gnvpro.minimize.status import Status
from gnvpro.training.history import History, Record


class Snapshots:
    """A listener that keeps features of the first training samples, and the head, at every record.

    It relies on the model to hold the last accepted parameters at each record, and on its last module to be the head.
    """

    FILE = "snapshots.npz"
    SAMPLES = 2000

    def __init__(self, directory: Path, model: nn.Module, inputs: Tensor) -> None:
        self.path = directory / self.FILE
        self.model, self.inputs = model, inputs[: self.SAMPLES]
        self._kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def begin(self, history: History, budget: float) -> None:
        """Read what an interrupted run kept, as far as its checkpoint goes."""
        if history and self.path.is_file():
            with np.load(self.path) as saved:
                found = zip(saved["iterations"].tolist(), saved["features"], saved["heads"], strict=True)
                self._kept = {i: (features, head) for i, features, head in found if i < len(history)}

    @torch.no_grad()
    def record(self, record: Record) -> None:
        """Keep features and head."""
        assert isinstance(self.model, nn.Sequential)
        *layers, head = self.model
        assert isinstance(head, nn.Linear)
        features = self.inputs
        for layer in layers:
            features = layer(features)
        W = torch.cat([head.weight, head.bias[:, None]], dim=1)
        self._kept[record.iteration] = (features.float().numpy(), W.double().numpy())

    def end(self, status: Status) -> None:
        """Write them down."""
        np.savez_compressed(
            self.path,
            iterations=np.array(list(self._kept)),
            features=np.array([features for features, _ in self._kept.values()]),
            heads=np.array([W for _, W in self._kept.values()]),
            inputs=self.inputs.numpy(),
        )
