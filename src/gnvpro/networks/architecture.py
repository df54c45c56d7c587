"""The architecture of a model as data: layers of torch and of this library, by name and settings.

    layers_of(model)     {"kind": "Sequential", "parts": [["0", {"kind": "Linear", "settings": {"in_features": 2, ...}}], ...]}
    module_of(layers)    the same layers on the device "meta", which holds no numbers
    filled(module, ...)  with numbers, after names and shapes were compared

Nothing here runs code from a file, and nothing of a size that a file claims is allocated: numbers come from the file's own
tensors. A setting is a constructor's argument that the layer keeps as an attribute of the same name; of a tensor, shape and
type.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.networks.neural_ode import NeuralODE
from gnvpro.networks.resnet import ResNet
from gnvpro.networks.stack import Stack

Layers = dict[str, Any]
Kinds = Mapping[str, Callable[..., nn.Module]]
KINDS: Kinds = {
    kind.__name__: kind
    for kind in (
        *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d),
        *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm, nn.GroupNorm),
        *(nn.AvgPool1d, nn.AvgPool2d, nn.MaxPool1d, nn.MaxPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
        *(nn.Tanh, nn.ReLU, nn.SiLU, nn.GELU, nn.ELU, nn.Softplus, nn.Sigmoid, nn.LeakyReLU, nn.SELU, nn.Hardtanh),
        *(nn.Softsign, nn.LogSigmoid, nn.Mish, nn.CELU, nn.ReLU6, nn.Hardswish, nn.PReLU, ResNet, NeuralODE),
    )
}
DTYPES = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64, "int32": torch.int32}
NOT_KEPT = ("self", "device", "dtype")  # the last two come with the tensors


def layers_of(model: nn.Module, kinds: Kinds = KINDS) -> Layers | None:
    """Return the architecture, or None if part of it is code of the user's."""
    modules = list(model.modules())
    repeated = len({id(m) for m in _places(model)}) < len(_places(model))
    if repeated or any(m._forward_hooks or m._forward_pre_hooks for m in modules):
        return None
    layers = _layers(model, kinds)
    return layers if layers is not None and _rebuilds(layers, model, kinds) else None


def module_of(layers: Any, kinds: Kinds = KINDS) -> nn.Module:
    """Return the layers without numbers, on the device "meta".

    Raises:
        ValueError: the description names what is not known, or settings that a layer does not take.
    """
    try:
        with torch.device("meta"):
            return _module(layers, kinds)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, RuntimeError, TypeError) as error:
        raise ValueError(f"the layers cannot be built: {error}") from error


def filled(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Put tensors into a module without numbers, if names and shapes agree.

    Raises:
        ValueError: they do not; the message names the first that differs.
    """
    compare(module, tensors)
    module.load_state_dict(dict(tensors), assign=True)
    return module


def compare(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise a ValueError if names or shapes of tensors are not the module's."""
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    for name in [*wanted, *found]:
        if wanted.get(name) != found.get(name):
            raise ValueError(
                f"{name} is {_said(found.get(name))} in the file, but {_said(wanted.get(name))} in the model"
            )


def _said(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else f"of shape {shape}"


def _places(model: nn.Module) -> list[nn.Module]:
    """Return every place of a module below this one, a module used twice twice."""
    return [each for parent in model.modules() for each in parent._modules.values() if each is not None]


def _layers(module: nn.Module, kinds: Kinds) -> Layers | None:
    if type(module) is nn.Sequential or isinstance(module, Stack):
        parts = [(name, _layers(part, kinds)) for name, part in module.named_children()]
        known = all(part is not None for _, part in parts)
        return {"kind": "Sequential", "parts": [list(pair) for pair in parts]} if known else None
    kind = type(module).__name__
    if kind not in kinds or kinds[kind] is not type(module):
        return None
    group = module._modules.get("parts")
    if isinstance(group, nn.ModuleDict):
        inside = [(name, _layers(part, kinds)) for name, part in group.named_children()]
        return {"kind": kind, "parts": [list(pair) for pair in inside]} if all(part for _, part in inside) else None
    settings = {}
    for name in inspect.signature(type(module).__init__).parameters:
        if name in NOT_KEPT or not hasattr(module, name):  # `_rebuilds` finds out whether one is missed
            continue
        value = getattr(module, name)
        if name == "bias":
            value = value is not None
        elif isinstance(value, Tensor):  # a buffer that the constructor takes
            value = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        elif isinstance(value, tuple):
            value = list(value)
        if not isinstance(value, bool | int | float | str | list | dict | None):
            return None
        settings[name] = value
    return {"kind": kind, "settings": settings}


def _module(layers: Any, kinds: Kinds) -> nn.Module:
    kind = layers["kind"]
    parts = OrderedDict((str(name), _module(part, kinds)) for name, part in layers.get("parts", ()))
    if kind == "Sequential":
        return nn.Sequential(parts)
    if kind not in kinds:
        raise ValueError(f"the layer {kind!r} is not known")
    if parts:
        return kinds[kind](parts)
    return kinds[kind](**{name: _setting(value) for name, value in layers["settings"].items()})


def _setting(value: Any) -> Any:
    if isinstance(value, dict):
        return torch.empty(value["shape"], dtype=DTYPES[value["dtype"]], device="meta")
    return tuple(value) if isinstance(value, list) else value


def _rebuilds(layers: Layers, model: nn.Module, kinds: Kinds) -> bool:
    """Check that the description gives layers of the same names, settings and shapes."""
    try:
        again = module_of(layers, kinds)
        compare(again, model.state_dict())
    except ValueError:
        return False
    return _leaves(again) == _leaves(model)


def _leaves(model: nn.Module) -> dict[str, str]:
    return {name: repr(module) for name, module in model.named_modules() if not module._modules}
