"""Checks of the model and the samples of a problem, before any work and without changing the model.

Every error names the argument, what was received and what to do instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gnvpro.arguments import check_number
from gnvpro.network.find_head import HeadLocation
from gnvpro.network.passes import PassPlan
from gnvpro.network.separable import SeparableNetwork
from gnvpro.problem.loss import Loss, prepare_targets
from gnvpro.problem.penalties import Tikhonov
from gnvpro.samples.loaders import is_loader
from gnvpro.samples.several import Batch, Inputs, Several, description
from gnvpro.samples.tables import is_series, is_several, numeric

MAX_TARGET = 1e50  # its sixth power, as in g' H g of least squares, is finite


def check_penalty(value: float | str | Tikhonov) -> Tikhonov:
    """Check the penalty on theta: a number, "auto", or a `Tikhonov` with an operator."""
    alpha = check_alpha("theta_penalty", value.alpha if isinstance(value, Tikhonov) else value)
    return value if isinstance(value, Tikhonov) else Tikhonov(alpha)


def check_alpha(name: str, value: float | str) -> float | Literal["auto"]:
    """Return a nonnegative number, or "auto"."""
    if isinstance(value, str):
        if value != "auto":
            raise ValueError(f'{name} must be a number, or "auto" to find it from the data, got {value!r}')
        return "auto"
    return check_number(name, value, 0.0)


def check_model(model: object) -> nn.Module:
    """Return the model, an nn.Module whose parameters are all finite."""
    if isinstance(model, type) or not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module object, got {model!r}")
    modules, parameters = [*model.modules()], dict(model.named_parameters())
    if nn.parameter.UninitializedParameter in map(type, parameters.values()):
        raise ValueError("model has lazy parameters that are not yet initialised; run it once on a batch first")
    kinds = {kind for module in modules for kind in type(module).__mro__}
    # by name, because importing FSDP takes a second
    if not {kind.__name__ for kind in kinds}.isdisjoint(("FullyShardedDataParallel", "FSDPModule")):
        raise ValueError(
            "model is sharded (FSDP): each process holds a part of every parameter, and gnvpro needs theta as a whole on each; "
            "give the plain module, or one in DistributedDataParallel"
        )
    if torch.jit.ScriptModule in kinds:
        raise ValueError(
            "model is compiled by torch.jit, whose parameters cannot be varied; train the module that it was made from, and "
            "compile that afterwards"
        )
    on_meta = [name for name, p in parameters.items() if p.is_meta]
    if 0 < len(on_meta) < len(parameters):
        raise ValueError(
            f"model parameter {on_meta[0]!r} is on the meta device: it holds no numbers; load or initialise it"
        )
    for name, parameter in parameters.items():
        numbers = parameter.is_floating_point() or parameter.is_complex()
        if numbers and not parameter.is_meta and not torch.isfinite(parameter).all():
            raise ValueError(f"model parameter {name!r} holds NaN or infinity; initialise it again before training")
    return model


def check_inputs(
    name: str, inputs: Any, model: nn.Module, may_be_empty: bool = False, first: int = 0, finite: bool = True
) -> Batch:
    """Return inputs, samples first, in the model's dtype and on its device: a tensor, or several.

    Messages number the samples from `first`; `finite=False` skips a repeated check of finiteness.
    """
    batch = _check_inputs(name, inputs, model, first, finite)
    if not len(batch) and not may_be_empty:  # one of several processes may have none
        raise ValueError(f"{name} is empty: it has no samples")
    return batch


def _check_inputs(name: str, inputs: Any, model: nn.Module, first: int, finite: bool) -> Batch:
    if isinstance(inputs, Several):
        inputs = inputs.named or inputs.positional
    if isinstance(inputs, Mapping):
        if not inputs or not all(isinstance(key, str) for key in inputs):
            raise TypeError(
                f"{name} given as a dictionary must name the model's arguments, got the keys {list(inputs)}"
            )
        named = {key: _checked(f"{name}[{key!r}]", value, model, first, finite) for key, value in inputs.items()}
        return _same_length(name, Several((), named))
    if is_several(inputs):
        parts = tuple(_checked(f"{name}[{i}]", value, model, first, finite) for i, value in enumerate(inputs))
        return _same_length(name, Several(parts)) if len(parts) > 1 else parts[0]
    tensor = as_tensor(name, inputs)
    if tensor.ndim == 1 and is_series(inputs):
        tensor = tensor[:, None]
    if tensor.ndim < 2:
        raise ValueError(
            f"{name} must have shape (samples, ...), got {tuple(tensor.shape)}; one column: inputs[:, None]"
        )
    return _checked(name, tensor, model, first, finite)


def _same_length(name: str, several: Several) -> Several:
    lengths = [len(tensor) for tensor in several.tensors]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"{name} are {len(lengths)} arguments of the model, with {lengths} samples; they must have the same number "
            "(one array of all samples: torch.stack or numpy.stack)"
        )
    return several


def _checked(name: str, inputs: object, model: nn.Module, start: int, finite: bool) -> Tensor:
    """Check one of the inputs."""
    tensor = as_tensor(name, inputs)
    if tensor.ndim == 0:
        raise ValueError(f"{name} is a number; samples come first")
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    if first is not None:
        if tensor.device != first.device:
            raise ValueError(
                f"{name} is on device {str(tensor.device)!r} but the model is on {str(first.device)!r}; "
                f"move one of them, for example {name}.to({str(first.device)!r})"
            )
        if tensor.is_meta:
            raise ValueError(
                f"{name} and model are on the meta device: they hold no numbers; load them on another device"
            )
        if tensor.is_floating_point():
            tensor = tensor.to(first.dtype)
    if finite:
        _check_finite(name, tensor, start)
    return tensor


def check_sample_weight(name: str, weights: object, inputs: Batch, may_be_zero: bool = False) -> Tensor | None:
    """Return a nonnegative number for each sample, some of them positive; None for equal weights."""
    tensor = check_weights(name, weights, inputs)
    if tensor is not None and not tensor.any() and not may_be_zero:
        raise ValueError(f"{name} is zero for every sample: there is nothing to train on")
    return tensor


def check_weights(name: str, weights: object, inputs: Batch, first: int = 0) -> Tensor | None:
    """Return a nonnegative number for each sample."""
    if weights is None:
        return None
    tensor = as_tensor(name, weights)
    if tensor.ndim not in (1, 2) or tensor.shape[0] != len(inputs):
        raise ValueError(f"{name} must have shape ({len(inputs)},), one per sample, got {tuple(tensor.shape)}")
    if tensor.is_complex():
        raise TypeError(f"{name} must be real, got {tensor.dtype}")
    _check_finite(name, tensor, first)
    tensor = tensor.to(inputs.device, torch.float64)
    if (tensor < 0).any():
        sample = int((tensor < 0).nonzero()[0, 0])
        raise ValueError(f"{name} must not be negative, got {tensor[sample].min():g} for sample {first + sample}")
    return tensor


def check_targets(
    name: str,
    targets: object,
    inputs: Batch,
    network: SeparableNetwork,
    loss: Loss,
    first: int = 0,
    weights: Tensor | None = None,
) -> Tensor:
    """Return targets in the loss's form, one row per output row; entries of weight zero may be missing."""
    tensor = as_tensor(name, targets)
    if weights is not None and weights.ndim == 2:
        tensor = _without_gaps(name, tensor, weights, network, loss)
    if tensor.ndim == 0 or tensor.shape[0] == 0 < len(inputs):
        raise ValueError(f"{name} is empty: it has no samples")
    if tensor.shape[0] != len(inputs):
        raise ValueError(f"{name} has {tensor.shape[0]} samples but the inputs have {len(inputs)}; they must agree")
    if tensor.device != inputs.device:
        raise ValueError(f"{name} is on device {str(tensor.device)!r} but the inputs are on {str(inputs.device)!r}")
    if tensor.is_complex():
        raise TypeError(f"{name} must be real, got {tensor.dtype}")
    if tensor.shape[0] == 0:  # part of one of several processes
        return torch.zeros((0, network.n_targets), dtype=torch.float64, device=inputs.device)
    gaps = (
        ", or give sample_weight of the shape of the targets, zero where they are missing" if tensor.ndim == 2 else ""
    )
    _check_finite(name, tensor, first, gaps if loss.is_least_squares else "")
    _check_shape(name, tensor, network.location)
    try:
        rows = prepare_targets(loss, network.target_rows(tensor), network.n_targets)
    except ValueError as error:
        raise ValueError(str(error).replace("targets", name, 1)) from None
    if loss.is_least_squares and float(rows.abs().max()) > MAX_TARGET:
        raise ValueError(
            f"{name} reach {float(rows.abs().max()):.1e}, too large for sums of their squares; scale them to about one"
        )
    return rows


def _without_gaps(name: str, targets: Tensor, weights: Tensor, network: SeparableNetwork, loss: Loss) -> Tensor:
    """Replace targets of entries without weight by zeros, and check that weights per entry can be used."""
    shape = (len(weights), network.n_targets)
    if not loss.is_least_squares:
        raise ValueError(
            f"sample_weight of shape {tuple(weights.shape)} is one per entry, which is for least squares; for "
            f"{loss.name} give one per sample, shape ({shape[0]},)"
        )
    if tuple(weights.shape) != shape or len(network.location.output_shape) != 1:
        raise ValueError(
            f"sample_weight must have shape ({shape[0]},), one per sample, or {shape}, one per entry of outputs that are one "
            f"row per sample; got {tuple(weights.shape)}"
        )
    if targets.ndim == 1:
        targets = targets[:, None]
    if tuple(targets.shape) != shape:
        raise ValueError(f"{name} must have shape {shape} beside weights per entry, got {tuple(targets.shape)}")
    return torch.where(weights.to(targets.device) > 0, targets, torch.zeros_like(targets))


def check_validation(validation: object) -> tuple[object, object, object]:
    """Return inputs, targets and weights (if given)."""
    if is_loader(validation):
        return validation, None, None
    if not isinstance(validation, tuple | list) or len(validation) not in (2, 3):
        raise TypeError(
            "validation must be a pair (inputs, targets) or (inputs, targets, sample_weight), a Dataset or a DataLoader, "
            f"got {type(validation).__name__}"
        )
    return validation[0], validation[1], validation[2] if len(validation) == 3 else None


def check_runs(name: str, inputs: Inputs, network: SeparableNetwork) -> None:
    """Check on a few samples that the model accepts these inputs."""
    try:
        network.features(network.theta(), inputs[:2], PassPlan(2))
    except Exception as error:
        raise ValueError(f"the model cannot be run on {name} of {description(inputs)}: {error}") from error


def as_tensor(name: str, value: Any) -> Tensor:
    """Return the value as a tensor."""
    if isinstance(value, Tensor):
        return value.detach()
    try:
        tensor = torch.as_tensor(numeric(name, value))
        floats = isinstance(value, list | tuple) and tensor.is_floating_point()  # torch would keep half of their digits
        return torch.as_tensor(value, dtype=torch.float64) if floats else tensor
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be a tensor or an array, got {type(value).__name__} ({error})") from None


def _check_finite(name: str, tensor: Tensor, first: int, hint: str = "") -> None:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta:
        return
    if torch.isfinite(tensor.sum()):  # then all entries are finite: ten times cheaper than checking each
        return
    bad = ~torch.isfinite(tensor)
    if bad.any():
        sample = int(bad.reshape(bad.shape[0], -1).any(1).nonzero()[0])
        raise ValueError(
            f"{name} holds NaN or infinity, first in sample {first + sample}; remove or fill such samples{hint}"
        )


def _check_shape(name: str, targets: Tensor, location: HeadLocation) -> None:
    """Check that targets have a value or label for each position if the head runs on many positions of a sample."""
    shape = location.output_shape
    if tuple(targets.shape[1:]) == location.model_shape:
        return
    if len(shape) == 1:
        if targets.ndim > 2:
            raise ValueError(f"{name} must have shape (samples,) or (samples, {shape[0]}), got {tuple(targets.shape)}")
        return
    channel = 0 if location.is_convolution else len(shape) - 1
    labels = shape[:channel] + shape[channel + 1 :]
    if tuple(targets.shape[1:]) not in (shape, labels):
        raise ValueError(
            f"{name} must have shape (samples, {', '.join(map(str, shape))}) like the model's output, or "
            f"(samples, {', '.join(map(str, labels))}) for labels; got {tuple(targets.shape)}"
        )
