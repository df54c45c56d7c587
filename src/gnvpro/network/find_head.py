"""Finding the head: the linear layer whose output is the model's output, found by running the model.

Registration order does not determine the last layer that runs, so the model runs once on a few samples with a hook
on every module. The head is the linear layer that returned the numbers that the model returned: an `nn.Linear`, a
convolution with a kernel of one, or another module that multiplies by its `weight` and adds its `bias`. The model
may only reshape the output of its head. The same run finds the module, if any, that is the whole feature extractor:
it took the model's input and returned the head's.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnvpro.arguments import suggestion
from gnvpro.network.places import Places
from gnvpro.samples.several import Batch, arguments_of, description

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LINEAR_MAPS = {2: F.linear, 3: F.conv1d, 4: F.conv2d, 5: F.conv3d}  # by the number of dimensions of the weight

REMEDY = (
    "end the model in nn.Linear (or a convolution with a kernel of one, such as nn.Conv2d(c, k, 1)) and leave the final "
    "activation to the loss: "
    "loss='multinomial' takes logits, not probabilities"
)


@dataclass(frozen=True)
class HeadLocation:
    """The head, and the module that computes its input from the model's input, if there is one."""

    head_name: str
    head: nn.Module  # has weight and bias
    body_name: str | None
    output_shape: tuple[int, ...]  # of one sample, in the head's output
    model_shape: tuple[int, ...]  # of one sample, in the model's output

    @property
    def weight(self) -> Tensor:
        """The weight of the head, outputs first."""
        weight = self.head.weight
        assert isinstance(weight, Tensor)
        return weight

    @property
    def bias(self) -> Tensor | None:
        """The bias of the head, if it has one."""
        bias = self.head.bias
        assert bias is None or isinstance(bias, Tensor)
        return bias

    @property
    def is_convolution(self) -> bool:
        """Return whether the outputs of a sample are channels first, then positions."""
        return self.weight.ndim > 2


@dataclass(frozen=True)
class FirstRun:
    """Findings from the first run of a model on a few samples."""

    location: HeadLocation
    features: Tensor  # input of the head
    inputs: Batch  # a copy of the samples, and copies of the parameters, as the model left them
    params: dict[str, Tensor]


@dataclass(frozen=True)
class _Call:
    """Inputs and outputs of a module in one call."""

    name: str
    module: nn.Module
    input: Any
    output: Any
    version: int


def find_head(model: nn.Module, inputs: Batch, name: str | None) -> HeadLocation:
    """Return the head of the model after checking that it can be eliminated."""
    return first_run(model, inputs, name).location


def first_run(model: nn.Module, inputs: Batch, name: str | None) -> FirstRun:
    """Run the model on a few samples and find its head."""
    if name is not None and not isinstance(name, str):
        raise TypeError(f"head must be the name of a module of the model, got {name!r}")
    inputs = inputs.clone()  # the model may work in place
    # copies: a forward pass that writes to its parameters must not change those of the user
    params = {n: p.detach().clone() for n, p in model.named_parameters()}
    calls, output = _run(model, inputs, params)
    if not isinstance(output, Tensor):
        raise TypeError(f"model must return one tensor, got {type(output).__name__}; wrap it in a module that does")
    returned = [call for call in calls if _same_memory(call, output)]
    last = [call for call in returned if _is_head(call) and _same_numbers(call, output)]
    _check_output(returned, bool(last), output, len(inputs))
    if name is not None:
        modules = dict(model.named_modules())
        if name not in modules:
            raise ValueError(f"head={name!r} is not a module of the model; {suggestion(name, filter(None, modules))}")
        if not could_be_head(modules[name]):
            raise ValueError(f"head={name!r} is {_short(modules[name])}, which is no linear layer; {REMEDY}")
        if modules[name] not in [call.module for call in last]:
            raise ValueError(f"head={name!r} does not compute the model's output; {_what_does(calls, output)}")
        last = [call for call in last if call.module is modules[name]]
    if not last:
        raise ValueError(
            f"the model's output is not the output of a linear layer; {_what_does(calls, output)}; {REMEDY}"
        )
    call = last[-1]
    head = call.module
    if [other.module for other in calls].count(head) > 1:
        raise ValueError(
            f"head {call.name!r} runs more than once in a forward pass; only a head that runs once can be eliminated"
        )
    _check_head(model, call.name, head)
    _check_affine(call, head)
    samples, rows = len(inputs), tuple(call.output.shape)
    shape = rows[1:] if rows[0] == samples else (call.output.numel() // samples // rows[-1], rows[-1])
    location = HeadLocation(call.name, head, _find_body(calls, call, inputs), shape, tuple(output.shape[1:]))
    return FirstRun(location, call.input, inputs, params)


def _run(model: nn.Module, inputs: Batch, params: dict[str, Tensor]) -> tuple[list[_Call], Any]:
    calls: list[_Call] = []
    names = {module: name for name, module in model.named_modules(remove_duplicate=True)}

    def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        version = output._version if isinstance(output, Tensor) and not output.is_inference() else 0
        calls.append(_Call(names[module], module, args[0] if args else None, output, version))

    with ExitStack() as hooks, torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="None of the inputs have requires_grad"
        )  # checkpoints, without gradient
        for module in names:
            hooks.callback(module.register_forward_hook(note).remove)
        try:
            positional, named = arguments_of(inputs)
            with Places.of(model).holding(params):
                output = model(*positional, **named)
        except Exception as error:
            raise ValueError(f"the model cannot be run on inputs of {description(inputs)}: {error}") from error
    return calls, output


def could_be_head(module: nn.Module) -> bool:
    """Return whether a module is a linear layer, or keeps the parameters of one."""
    if isinstance(module, CONVOLUTIONS):
        return (
            set(module.kernel_size) == {1}
            and set(module.stride) == {1}
            and (module.padding in ("valid", "same") or set(module.padding) == {0})
            and module.groups == 1
        )
    if isinstance(module, nn.Linear):
        return True
    weight, bias = module._parameters.get("weight"), getattr(module, "bias", weight_only := object())
    own = [p for p in (weight, bias) if isinstance(p, nn.Parameter)]
    return (
        weight is not None
        and weight.ndim == 2
        and bias is not weight_only
        and (bias is None or (isinstance(bias, nn.Parameter) and bias.shape == weight.shape[:1]))
        and len(list(module.parameters())) == len(own)
    )


def _is_head(call: _Call) -> bool:
    """Return whether a linear layer was called; a custom module must have computed what a linear layer would."""
    if not could_be_head(call.module):
        return False
    if isinstance(call.module, (nn.Linear, *CONVOLUTIONS)):
        return True
    weight: Any = call.module.weight
    given = call.input
    fits = isinstance(given, Tensor) and given.dtype == weight.dtype and given.shape[-1:] == weight.shape[-1:]
    return fits and isinstance(call.output, Tensor) and _is_affine(call, call.module)


def _same(call: _Call, tensor: Tensor) -> bool:
    """Return whether the call returned this very tensor, and it was not written to since."""
    out = call.output
    return isinstance(out, Tensor) and out.shape == tensor.shape and _same_memory(call, tensor)


def _same_numbers(call: _Call, tensor: Tensor) -> bool:
    """Return whether the tensor contains what the call returned, entries in the same order, in any shape."""
    return _same(call, tensor) or (
        _same_memory(call, tensor) and call.output.is_contiguous() and tensor.is_contiguous()
    )


def _same_memory(call: _Call, tensor: Tensor) -> bool:
    out = call.output
    return (
        isinstance(out, Tensor)
        and out.numel() == tensor.numel()
        and out.data_ptr() == tensor.data_ptr()
        and out._version == call.version
    )


def _check_output(returned: list[_Call], has_head: bool, output: Tensor, samples: int) -> None:
    """Check that there is at least one row per sample, in the head's shape, given the calls that returned its numbers."""
    for call in returned:
        if could_be_head(call.module) and not _same_numbers(call, output):
            raise ValueError(
                f"the model changes the order of what its head {call.name!r} returns, from {tuple(call.output.shape)} to "
                f"{tuple(output.shape)}; return it as it is: drop the transpose or permute after the head, and apply it to the "
                "outputs where you need it"
            )
    if output.ndim and output.shape[0] == samples and has_head:
        return
    if output.ndim < 2 or output.shape[0] != samples:
        raise ValueError(
            f"model must return one output per sample, samples first: for {samples} samples it returned shape "
            f"{tuple(output.shape)}; {REMEDY}"
        )


def _what_does(calls: list[_Call], output: Tensor) -> str:
    """Return a sentence about the module that computes the model's output."""
    kernel = nn.modules.conv._ConvNd
    makers = [call for call in calls if (call.name or isinstance(call.module, kernel)) and _same(call, output)]
    if makers:
        maker = makers[0]
        text = f"it is the output of {maker.name!r}, {_short(maker.module)}"
        if isinstance(maker.module, kernel):
            channels, axes = maker.module.out_channels, len(maker.module.kernel_size)
            text += (
                f" whose kernel is no single entry: append nn.Conv{axes}d({channels}, {channels}, 1) or another head"
            )
        return text
    return "it is computed by an operation outside of any submodule"


def _short(module: nn.Module) -> str:
    return f"nn.{type(module).__name__}" if type(module).__module__.startswith("torch.nn") else type(module).__name__


def _check_head(model: nn.Module, name: str, head: nn.Module) -> None:
    own = dict(head.named_parameters(recurse=False))
    if not isinstance(own.get("weight"), nn.Parameter):
        raise ValueError(
            f"head {name!r} has a parametrised weight (weight norm, spectral norm?), which cannot be eliminated; "
            "use a plain nn.Linear"
        )
    if not own["weight"].is_floating_point():
        raise TypeError(
            f"head {name!r} has a weight of {own['weight'].dtype}, and a loss needs real outputs; end the model in a real "
            "layer on torch.view_as_real(...) of the complex features"
        )
    frozen = [key for key, p in own.items() if not p.requires_grad]
    if frozen:
        raise ValueError(
            f"head {name!r} has requires_grad=False on its {' and '.join(frozen)}; "
            "the head is what is eliminated: set requires_grad=True"
        )
    ids = {id(p) for p in own.values()}
    shared = [
        f"{other}.{key}" if other else key
        for other, module in model.named_modules()
        if module is not head
        for key, parameter in module._parameters.items()
        if id(parameter) in ids
    ]
    if shared:
        raise ValueError(
            f"parameter {shared[0]!r} is shared between the head {name!r} and the features; "
            "the head cannot be eliminated then: give each its own parameter"
        )


def _check_affine(call: _Call, head: nn.Module) -> None:
    """Check that no subclass or hook does more than multiply and add; eliminating the weight would then be wrong."""
    if not isinstance(call.input, Tensor):
        raise ValueError(f"head {call.name!r} must be called with its input as first positional argument")
    if not _is_affine(call, head):
        raise ValueError(
            f"head {call.name!r} ({_short(head)}) does more than multiply by its weight and add its bias "
            f"(a forward method of its own, or a hook?); {REMEDY}"
        )


def _is_affine(call: _Call, head: nn.Module) -> bool:
    """Return whether a call returned weight times input plus bias."""
    weight: Any = head.weight
    with torch.no_grad():
        expected = LINEAR_MAPS[weight.ndim](call.input, weight, head.bias)  # type: ignore[operator]
    if not torch.isfinite(expected).all():
        return True  # nothing to compare; `train` has its own error for such features
    return torch.allclose(call.output, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def _find_body(calls: list[_Call], head: _Call, inputs: Batch) -> str | None:
    for call in calls:
        if (
            call.name
            and call.input is inputs
            and isinstance(head.input, Tensor)
            and isinstance(call.output, Tensor)
            and _same(call, head.input)
            and call.module is not head.module
        ):
            return call.name
    return None
