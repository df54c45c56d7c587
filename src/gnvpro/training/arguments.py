"""Checking what a user passed to `train`, before any work and with the model untouched.

Every error names the argument, says what was got and what to do instead.
"""

from __future__ import annotations

import difflib
import math
import numbers
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.network.find_head import Anatomy
from gnvpro.problem.losses import Loss, prepare_targets
from gnvpro.problem.misfit import Misfit
from gnvpro.network.separable import SeparableNetwork
from gnvpro.problem.penalties import Tikhonov


def check_choice(name: str, value: object, known: Iterable[str]) -> str:
    """One of a few words; the nearest one is offered for any other."""
    choices = list(known)
    if value in choices:
        return str(value)
    near = difflib.get_close_matches(str(value), choices, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(map(repr, choices))}"
    raise ValueError(f"{name}={value!r} is not known; {hint}")


def check_number(name: str, value: object, least: float, strict: bool = False) -> float:
    """A finite real number of at least (or, strictly, above) some bound."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if not math.isfinite(number) or number < least or (strict and number == least):
        raise ValueError(f"{name} must be {'above' if strict else 'at least'} {least:g} and finite, got {value!r}")
    return number


def check_count(name: str, value: object, least: int) -> int:
    """A whole number of at least some bound."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")
    return int(value)


def check_penalty(value: float | Tikhonov) -> Tikhonov:
    """The penalty on theta, given as a number or with an operator."""
    alpha = value.alpha if isinstance(value, Tikhonov) else value
    number = check_number("theta_penalty", alpha, 0.0)
    return value if isinstance(value, Tikhonov) else Tikhonov(number)


def check_model(model: object) -> nn.Module:
    """An nn.Module whose parameters are all finite."""
    if isinstance(model, type) or not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module object, got {model!r}")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise ValueError("model has lazy parameters that are not yet initialised; run it once on a batch first")
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not parameter.is_meta and not torch.isfinite(parameter).all():
            raise ValueError(f"model parameter {name!r} holds NaN or infinity; initialise it again before training")
    return model


def check_inputs(name: str, inputs: object, model: nn.Module) -> Tensor:
    """Inputs as a tensor, samples first, in the model's dtype and on its device."""
    tensor = _as_tensor(name, inputs)
    if tensor.ndim < 2:
        raise ValueError(
            f"{name} must have shape (samples, ...), got {tuple(tensor.shape)}; one column: inputs[:, None]"
        )
    if tensor.shape[0] == 0:
        raise ValueError(f"{name} is empty: it has no samples")
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    if first is not None:
        if tensor.device != first.device:
            raise ValueError(
                f"{name} is on device {str(tensor.device)!r} but the model is on {str(first.device)!r}; "
                f"move one of them, for example {name}.to({str(first.device)!r})"
            )
        if tensor.is_floating_point():
            tensor = tensor.to(first.dtype)
    _check_finite(name, tensor)
    return tensor


def check_sample_weight(name: str, weights: object, inputs: Tensor) -> Tensor | None:
    """A number that is not negative for each sample, some of them positive; None where samples count the same."""
    if weights is None:
        return None
    tensor = _as_tensor(name, weights)
    if tuple(tensor.shape) != (inputs.shape[0],):
        raise ValueError(f"{name} must have shape ({inputs.shape[0]},), one a sample, got {tuple(tensor.shape)}")
    if tensor.is_complex():
        raise TypeError(f"{name} must be real, got {tensor.dtype}")
    _check_finite(name, tensor)
    tensor = tensor.to(inputs.device, torch.float64)
    if tensor.min() < 0:
        sample = int((tensor < 0).nonzero()[0])
        raise ValueError(f"{name} must not be negative, got {tensor[sample].item():g} for sample {sample}")
    if not tensor.any():
        raise ValueError(f"{name} is zero for every sample: there is nothing to train on")
    return tensor


def check_targets(
    name: str,
    targets: object,
    inputs: Tensor,
    network: SeparableNetwork,
    loss: Loss,
    sample_weight: Tensor | None = None,
) -> Misfit:
    """Targets in the form the loss wants, one row for each output row."""
    tensor = _as_tensor(name, targets)
    if tensor.ndim == 0 or tensor.shape[0] == 0:
        raise ValueError(f"{name} is empty: it has no samples")
    if tensor.shape[0] != inputs.shape[0]:
        raise ValueError(f"{name} has {tensor.shape[0]} samples but the inputs have {inputs.shape[0]}; they must agree")
    if tensor.device != inputs.device:
        raise ValueError(f"{name} is on device {str(tensor.device)!r} but the inputs are on {str(inputs.device)!r}")
    if tensor.is_complex():
        raise TypeError(f"{name} must be real, got {tensor.dtype}")
    _check_finite(name, tensor)
    _check_shape(name, tensor, network.anatomy)
    try:
        rows = prepare_targets(loss, network.target_rows(tensor), network.n_targets)
    except ValueError as error:
        raise ValueError(str(error).replace("targets", name, 1)) from None
    return Misfit.mean(loss, rows, sample_weight)


def check_validation(validation: object) -> tuple[object, object, object]:
    """Inputs, targets and, where given, weights."""
    if not isinstance(validation, tuple | list) or len(validation) not in (2, 3):
        raise TypeError(
            "validation must be a pair (inputs, targets) or (inputs, targets, sample_weight), "
            f"got {type(validation).__name__}"
        )
    return validation[0], validation[1], validation[2] if len(validation) == 3 else None


def check_runs(name: str, inputs: Tensor, network: SeparableNetwork) -> None:
    """Whether the model takes these inputs, tried on a few samples."""
    try:
        network.features(network.theta(), inputs[:2])
    except Exception as error:
        raise ValueError(
            f"the model cannot be run on {name} of shape {tuple(inputs.shape)} and {inputs.dtype}: {error}"
        ) from error


def check_method(name: str, value: object, method: str, example: str) -> None:
    """None, or an object with a method to call."""
    if value is not None and (isinstance(value, type) or not callable(getattr(value, method, None))):
        raise TypeError(f"{name} must be {example}, got {value!r}")


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, and every module back into its own mode afterwards."""
    modes = {module: module.training for module in model.modules()}
    random = [m for m in modes if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0]
    normed = [m for m in modes if isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats]
    if any(modes[m] for m in [*random, *normed]):
        kinds = sorted({type(m).__name__ for m in [*random, *normed]})
        warnings.warn(
            f"the model has {', '.join(kinds)}: gnvpro trains in evaluation mode (no dropout, running statistics fixed), "
            "since its objective must be the same function at every call; each module's mode is restored afterwards",
            UserWarning,
            stacklevel=4,
        )
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _as_tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be a tensor or an array, got {type(value).__name__} ({error})") from None


def _check_finite(name: str, tensor: Tensor) -> None:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta:
        return
    bad = ~torch.isfinite(tensor)
    if bad.any():
        sample = int(bad.reshape(bad.shape[0], -1).any(1).nonzero()[0])
        raise ValueError(f"{name} holds NaN or infinity, first in sample {sample}; remove or fill such samples")


def _check_shape(name: str, targets: Tensor, anatomy: Anatomy) -> None:
    """Where the head runs on many positions of a sample, targets must name a value or a label for each."""
    shape = anatomy.output_shape
    if len(shape) == 1:
        if targets.ndim > 2:
            raise ValueError(f"{name} must have shape (samples,) or (samples, {shape[0]}), got {tuple(targets.shape)}")
        return
    channel = 0 if isinstance(anatomy.head, nn.Conv2d) else len(shape) - 1
    labels = shape[:channel] + shape[channel + 1 :]
    if tuple(targets.shape[1:]) not in (shape, labels):
        raise ValueError(
            f"{name} must have shape (samples, {', '.join(map(str, shape))}) like the model's output, or "
            f"(samples, {', '.join(map(str, labels))}) for labels; got {tuple(targets.shape)}"
        )


def check_work(work: object, levels: int) -> tuple[float, ...]:
    """The budget of each level: an even share of one number, or one number each."""
    if isinstance(work, list | tuple):
        if len(work) != levels:
            raise ValueError(f"work must be one number, or one a level: got {len(work)} numbers for levels={levels}")
        return tuple(check_number("work", part, 0.0) for part in work)
    return (check_number("work", work, 0.0) / levels,) * levels
