"""Scores of a trained model on each of the three sets, and the outputs that figures are drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnvpro.data import Samples
from gnvpro.problem.loss import get_loss, prepare_targets
from gnvpro.problem.misfit import Misfit

CHUNK = 2000  # samples at a time
KEPT_OUTPUTS = 2_000_000  # numbers of a set's outputs kept for figures; of larger sets, evenly spaced samples
KEPT_PROBABILITIES = 400  # samples


@torch.no_grad()
def outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    """The model's outputs in float64."""
    return torch.cat([model(part).double() for part in inputs.split(CHUNK)])


def scores(loss: str, model_outputs: Tensor, targets: Tensor) -> dict[str, Any]:
    """The mean loss without penalties, with relative errors or accuracies, overall and by class."""
    objective = get_loss(loss)
    misfit = Misfit.mean(objective, prepare_targets(objective, targets, model_outputs.shape[1]))
    result: dict[str, Any] = {"loss": misfit.value(model_outputs)}
    if loss == "least_squares":
        errors = (model_outputs - targets).norm(dim=1) / targets.norm(dim=1)
        result["relative_error"] = {"mean": float(errors.mean()), "std": float(errors.std(correction=0))}
    else:
        right = (labels(model_outputs) == targets).double()
        result["accuracy"] = float(right.mean())
        present = torch.unique(targets).tolist()
        result["class_accuracy"] = {str(k): float(right[targets == k].mean()) for k in present}
    return result


def labels(model_outputs: Tensor) -> Tensor:
    """The predicted class: the sign of a single logit, else the largest."""
    if model_outputs.shape[1] == 1:
        return (model_outputs[:, 0] > 0).long()
    return model_outputs.argmax(dim=1)


def predictions(loss: str, name: str, model_outputs: Tensor, data: Samples) -> dict[str, np.ndarray]:
    """The arrays of one set that figures need: outputs and targets, or labels and, for the first samples, probabilities."""
    targets = data[1]
    if loss == "least_squares":
        every = max(1, -(-targets.numel() // KEPT_OUTPUTS))
        return {
            f"outputs_{name}": model_outputs[::every].float().numpy(),
            f"targets_{name}": targets[::every].float().numpy(),
        }
    probabilities = model_outputs[:KEPT_PROBABILITIES].softmax(dim=1)
    return {
        f"predicted_{name}": labels(model_outputs).to(torch.int16).numpy(),
        f"labels_{name}": targets.to(torch.int16).numpy(),
        f"probabilities_{name}": probabilities.float().numpy(),
    }
