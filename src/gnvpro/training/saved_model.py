"""A trained model as a file: its weights, and its architecture if that is made of known layers.

    PATH.safetensors    tensors; architecture and a checksum over both in the header
    any other PATH      a state_dict as torch.save writes it; the architecture is an attribute of the dictionary

In both, `model.load_state_dict(...)` takes the weights as it takes any others.
"""

from __future__ import annotations

import json
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.files import replacing
from gnvpro.networks.architecture import compare, filled, layers_of, module_of
from gnvpro.tensor_file import read_tensors, write_tensors

FORMAT = "gnvpro model 1"


def save_model(path: Path, model: nn.Module) -> None:
    """Write the weights, and the architecture if every layer is known."""
    layers = layers_of(model)
    description: dict[str, Any] = {"format": FORMAT, "class": type(model).__name__, "layers": layers}
    state = OrderedDict((k, v.detach().clone().contiguous()) for k, v in model.state_dict().items())
    if path.suffix == ".safetensors":
        write_tensors(path, state, description)
        return
    state.gnvpro = json.dumps(description)  # type: ignore[attr-defined]
    with replacing(path) as file:
        torch.save(state, file)


def load(path: str | Path, model: nn.Module | None = None) -> nn.Module:
    """Read a model that `Result.save` wrote.

    Args:
        path: the file.
        model: a model that is built like the saved one; it gets the weights. Needed only if the saved model has layers that
            are not torch's or this library's, since a file holds no code.

    Returns:
        `model`, or a new one of the saved layers (an MLP comes back as an `nn.Sequential`), ready to predict (`eval()`).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, is no model, or does not fit `model`.
        TypeError: `model` is no module.

    Example:
        >>> import tempfile, torch, gnvpro
        >>> x = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
        >>> result = gnvpro.train(torch.nn.Linear(1, 1).double(), x, 2 * x, loss="least_squares")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = result.save(f"{folder}/line.pt")
        ...     model = gnvpro.load(f"{folder}/line.pt")
        >>> bool(torch.equal(model(x), result.model(x)))
        True
    """
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, such as the one that was trained; got {model!r}")
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}; result.save(PATH) writes one")
    description, tensors = _read(file)
    if str(description.get("format", "")).startswith("gnvpro table model"):
        raise ValueError(f"{file} is a model of a table; use it with: gnvpro predict {file} NEW.csv")
    try:
        if model is not None:
            compare(model, tensors)
            model.load_state_dict(tensors)
            return model.eval()
        layers = description.get("layers")
        if layers is not None:
            return filled(module_of(layers), tensors).eval()
    except ValueError as error:
        raise ValueError(f"{file} cannot be loaded: {error}") from error
    kind = description.get("class", "the model")
    raise ValueError(
        f"{file} holds the weights of {kind}, but not its layers, which are code of your own; build the model as before and "
        "write gnvpro.load(path, model=...)"
    )


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if file.suffix == ".safetensors":
        return read_tensors(file)
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        EOFError,
        RuntimeError,
        ValueError,
        LookupError,
        AttributeError,
        TypeError,
    ) as error:
        raise ValueError(
            f"{file} holds no weights that torch can load ({type(error).__name__}); save it again"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ValueError(f"{file} holds no state_dict; write it by result.save(PATH)")
    try:
        description = json.loads(getattr(state, "gnvpro", "{}"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: its description is no JSON ({error})") from error
    return description if isinstance(description, dict) else {}, dict(state)
