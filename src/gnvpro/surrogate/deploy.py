"""A surrogate as a plain module, for `torch.export` and ONNX: inputs and outputs in the user's units."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.extras import need
from gnvpro.files import regular_file, replacing
from gnvpro.surrogate.member import Member
from gnvpro.surrogate.outputs import OutputBasis

OPSET = 18


class SurrogateModule(nn.Module):
    """Maps (points, inputs) to (points, outputs), and with `jacobian` to (points, outputs, inputs) too."""

    def __init__(self, members: Sequence[Member], basis: OutputBasis | None, jacobian: bool) -> None:
        super().__init__()
        self._members, self._basis, self._jacobian = tuple(members), basis, jacobian

    def forward(self, x: Tensor) -> Any:
        """Return the outputs, or the outputs and their slopes."""
        outputs = self._side_by_side([member.values(x, False).mean for member in self._members], True)
        if not self._jacobian:
            return outputs
        return outputs, self._side_by_side([member.gradient(x, False).mean for member in self._members], False)

    def _side_by_side(self, parts: list[Tensor], values: bool) -> Tensor:
        if self._basis is None:
            return torch.cat(parts, 1)
        return self._basis.combined([part[:, 0] for part in parts], values)


def export_program(module: nn.Module, inputs: int) -> Any:
    """Return the module as an exported program with any number of points."""
    example = torch.zeros(2, inputs, dtype=torch.float64)
    return torch.export.export(module, (example,), dynamic_shapes=({0: torch.export.Dim("points", min=1)},))


def write_onnx(module: SurrogateModule, inputs: int, path: Path, jacobian: bool) -> None:
    """Write an ONNX file, whole or not at all."""
    need("onnx", "onnx")
    need("onnxscript", "onnx")
    target = regular_file(path)
    names = ["outputs", "jacobian"] if jacobian else ["outputs"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates functions that its own exporter uses
        made = torch.onnx.export(
            export_program(module, inputs),
            input_names=["inputs"],
            output_names=names,
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
        )
    assert made is not None
    with replacing(target) as file:
        file.write(made.model_proto.SerializeToString())
