"""The parameters of a model as two numerical objects: theta, one vector, and W, the matrix of the head.

theta contains every trainable parameter outside of the head, in the order of `model.named_parameters()`, as one
float64 vector. Complex parameters contribute the real and the imaginary part of each entry in turn. W has one row
per output; the head's bias, if any, is its last column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from gnvpro.network.find_head import HeadLocation
from gnvpro.network.places import Places


@dataclass
class ThetaAndHead:
    """theta and W of a model with a known head."""

    model: nn.Module
    location: HeadLocation
    places: Places = field(init=False)  # places of the model's parameters and buffers
    names: list[str] = field(init=False)
    shapes: list[tuple[int, ...]] = field(init=False)
    n_theta: int = field(init=False)  # trainable parameters outside of the head
    bias: bool = field(init=False)  # True if the head has a bias
    n_features: int = field(init=False)  # without the column of ones
    n_targets: int = field(init=False)
    dtype: torch.dtype = field(init=False)  # dtype of the head and its input

    def __post_init__(self) -> None:
        self.bias, weight = self.location.bias is not None, self.location.weight
        self.n_targets, self.n_features, self.dtype = weight.shape[0], weight.shape[1], weight.dtype
        self._weight, self._bias, self._channels_first = weight, self.location.bias, self.location.is_convolution
        head = {id(p) for p in self.location.head.parameters()}
        self.places = Places.of(self.model)
        self._own = dict(self.model.named_parameters())
        self._parameters = {name: p for name, p in self._own.items() if p.requires_grad and id(p) not in head}
        self.names = list(self._parameters)
        self._complex = [name for name, p in self._parameters.items() if p.is_complex()]
        self.shapes, self._sizes, self._dtypes = [], [], []
        for p in self._parameters.values():
            value = _real(p) if p.is_complex() else p
            self.shapes.append(tuple(value.shape))
            self._sizes.append(value.numel())
            self._dtypes.append(value.dtype)
        self.n_theta = sum(self._sizes)

    # -- the head

    def rows(self, values: Tensor) -> Tensor:
        """Return the head's input or output with one row for each of its applications."""
        if self._channels_first:
            values = values.movedim(1, -1)
        return values if values.ndim == 2 else values.reshape(-1, values.shape[-1])

    def target_rows(self, targets: Tensor) -> Tensor:
        """Return targets as one row, or one label, for each application of the head."""
        location = self.location
        if location.model_shape != location.output_shape and tuple(targets.shape[1:]) == location.model_shape != ():
            targets = targets.reshape(len(targets), *location.output_shape)
        if len(location.output_shape) == 1:
            return targets
        return self.rows(targets) if targets.ndim == len(location.output_shape) + 1 else targets.reshape(-1)

    def shaped(self, rows: Tensor, samples: int) -> Tensor:
        """Return outputs in the shape of the model's output."""
        outputs = self._unrows(rows, torch.Size((samples, *self.location.output_shape)))
        return outputs.reshape(samples, *self.location.model_shape)

    def _unrows(self, rows: Tensor, shape: torch.Size) -> Tensor:
        if self._channels_first:
            n, c, *pixels = shape
            return rows.reshape(n, *pixels, c).movedim(-1, 1)
        return rows.reshape(shape)

    def no_features(self) -> Tensor:
        """Return features of zero samples."""
        return self.location.weight.new_zeros((0, self.n_features))

    # -- theta

    @cached_property
    def parameters(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return names and shapes of the parameters in theta."""
        return list(zip(self.names, self.shapes, strict=True))

    def theta(self) -> Tensor:
        """Return the model's own theta as a float64 vector."""
        parts = []
        for p in map(_real if self._complex else torch.Tensor.detach, self._parameters.values()):
            parts.append(p.reshape(-1).to(torch.float64))
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64, device=self.location.weight.device)

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        """Split a vector like theta into tensors by parameter name, in each parameter's dtype, complex ones as pairs."""
        views = map(torch.Tensor.view, theta.split_with_sizes(self._sizes), self.shapes)
        return dict(zip(self.names, map(torch.Tensor.to, views, self._dtypes), strict=True))

    def views(self, theta: Tensor) -> dict[str, Tensor]:
        """Split it in the vector's own dtype and memory."""
        views = map(torch.Tensor.view, theta.split_with_sizes(self._sizes), self.shapes)
        return dict(zip(self.names, views, strict=True))

    def join(self, tensors: dict[str, Tensor]) -> Tensor:
        """Reverse `split`; missing parameters count as zero."""
        if not self.names:
            return self.theta()
        return torch.cat(
            [
                tensors[name].reshape(-1).to(torch.float64)
                if name in tensors
                else p.new_zeros(size, dtype=torch.float64)
                for (name, p), size in zip(self._parameters.items(), self._sizes, strict=True)
            ]
        )

    def in_own_kind(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert tensors by parameter name to the model's form: pairs become complex numbers."""
        return {name: torch.view_as_complex(p) if name in self._complex else p for name, p in params.items()}

    def split_head(self, W: Tensor) -> dict[str, Tensor]:
        """Split W into the head's own parameters, by name in the model."""
        prefix = f"{self.location.head_name}." if self.location.head_name else ""
        weight, bias = self._weight, self._bias
        parts = {f"{prefix}weight": W[:, : self.n_features].reshape(weight.shape).to(weight.dtype)}
        if bias is not None:
            parts[f"{prefix}bias"] = W[:, -1].to(bias.dtype)
        return parts

    def join_head(self, parts: dict[str, Tensor]) -> Tensor:
        """Reverse `split_head`."""
        columns = [part.reshape(self.n_targets, -1).to(torch.float64) for part in parts.values()]
        return torch.cat(columns, 1)

    def W(self) -> Tensor:
        """Return the model's own head, the bias as last column."""
        own = {"weight": self.location.weight, "bias": self.location.bias}
        return self.join_head({name: p.detach() for name, p in own.items() if p is not None})

    def store(self, theta: Tensor, W: Tensor) -> None:
        """Write theta and W into the model."""
        split = self.split(theta)
        values = {**(self.in_own_kind(split) if self._complex else split), **self.split_head(W)}
        with torch.no_grad():
            torch._foreach_copy_([*map(self._own.__getitem__, values)], [*values.values()])


def _real(parameter: Tensor) -> Tensor:
    """Return a parameter without gradient; complex numbers become pairs of real ones along a last axis."""
    values = parameter.detach()
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def parameter_kinds(model: nn.Module) -> dict[str, str]:
    """Return shape, dtype and trainability of every parameter of a model."""
    return {
        f"model parameter {name}": f"{tuple(p.shape)} {p.dtype} {'trained' if p.requires_grad else 'frozen'}"
        for name, p in model.named_parameters()
    }
