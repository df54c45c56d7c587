"""Look at a saved model and arrays before training."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnvpro.cli.app import app, check_files, one_line_errors

if TYPE_CHECKING:
    from torch import nn

    from gnvpro.data.archive import Array


@app.command("inspect")
def inspect_model(
    model: Annotated[
        Path, typer.Argument(help="A module written by torch.save(model, PATH). Open only what you trust.")
    ],
    inputs: Annotated[Path, typer.Argument(help="A .npy file, samples first; or a .npz file with inputs and targets.")],
    targets: Annotated[Path | None, typer.Argument(help="A .npy file; not with a .npz file.")] = None,
    loss: Annotated[str, typer.Option(help="least_squares, logistic or multinomial.")] = "least_squares",
    head: Annotated[str | None, typer.Option(help="The name of the last layer; found by running if not given.")] = None,
    memory: Annotated[float | None, typer.Option(help="Bytes for passes over the samples.")] = None,
) -> None:
    """Print the sizes of a model, the cost of training it, and advice."""
    with one_line_errors():
        check_files(model, inputs, *([] if targets is None else [targets]))
        import gnvpro

        x, y = arrays(inputs, targets)
        typer.echo(str(gnvpro.inspect(module(model), x, y, loss=loss, head=head, memory=memory)))


def arrays(inputs: Path, targets: Path | None) -> tuple[Array, Array]:
    """Inputs and targets from two files, or from one archive."""
    import numpy as np

    if inputs.suffix == ".npz":
        with np.load(inputs) as archive:
            missing = {"inputs", "targets"} - set(archive.files)
            if missing:
                raise ValueError(
                    f"{inputs} holds {', '.join(archive.files)}, but no {' and no '.join(sorted(missing))}"
                )
            return archive["inputs"], archive["targets"]
    if targets is None:
        raise ValueError("give a file of targets too, or one .npz file with inputs and targets")
    return array(inputs), array(targets)


def array(path: Path) -> Array:
    """The numbers of a file."""
    import numpy as np

    try:
        return np.load(path)
    except (ValueError, EOFError) as error:  # which do not mention the file, and advise to open it unsafely
        raise ValueError(f"{path} is no array of numbers; write it by numpy.save(PATH, array)") from error


def module(path: Path) -> nn.Module:
    """The model of a file."""
    import torch
    from torch import nn

    try:
        found = torch.load(path, map_location="cpu", weights_only=False)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise ValueError(f"{path} is no file of torch; write it by torch.save(model, PATH)") from error
    if not isinstance(found, nn.Module):
        raise ValueError(f"{path} holds a {type(found).__name__}, not a module; write it by torch.save(model, PATH)")
    return found
