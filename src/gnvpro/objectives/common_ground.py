"""Properties that the processes of a problem must share, although each holds different samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from gnvpro.network.theta_and_head import parameter_kinds
from gnvpro.processes import Processes
from gnvpro.samples.several import Batch, Inputs, shapes_of, tensors_of

if TYPE_CHECKING:
    from gnvpro.objectives.problem import Problem


def common(problem: Problem, model: nn.Module, weighted: bool) -> dict[str, str]:
    """Return the values that must be the same in every process."""
    return {
        "model": type(model).__qualname__,
        **parameter_kinds(model),
        "loss": f"{type(problem.loss).__module__}.{type(problem.loss).__qualname__}",
        "theta_penalty": repr(problem.penalty.alpha),
        "head_penalty": "'auto'" if problem.searched.head else repr(problem.head_penalty),
        "shape of a sample": str(shapes_of(problem.inputs)),
        "dtype of the inputs": str([tensor.dtype for tensor in tensors_of(problem.inputs)]),
        "sample_weight": "given" if weighted else "left out",
        "number of threads (torch.get_num_threads())": str(torch.get_num_threads()),
    }


def few_samples(processes: Processes, inputs: Inputs) -> Batch:
    """Return two samples to try the model on, the same for every process."""
    if processes.alone:
        return inputs[:2]
    counts = processes.gather([len(inputs[:2])])[:, 0]
    if not counts.any():
        raise ValueError("inputs is empty on every process: there are no samples")
    few, device = processes.from_rank(int(counts.nonzero()[0, 0]), inputs[:2]), inputs.device
    return few.to(device) if isinstance(few, Tensor) else few.map(lambda tensor: tensor.to(device))
