"""What a result of `train` claims, checked from the model alone, in double precision.

    objective         the loss written out, on outputs of a copy of the model in double, and the penalties
    head              Newton's decrement in W, by autograd: no other head would lower the objective notably
    status            CONVERGED: the gradient in theta, by autograd; STEP_TOO_SMALL: steps along it; HEAD_ONLY: nothing else
    parameters        each one moved, or its derivative is zero, or no step was accepted
    ways              arrays, loaders, files and one-hot labels give the history that tensors give

Nothing here calls the library except `train` itself.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import gnvpro
from gnvpro import Status

ROUNDED = 2e-3  # relative; a model of fewer digits is stored without another record up to half of this
SEPARABLE = 1e-8  # log loss. Separable classes have no best head: the last digits depend on the penalty alone
OPTIMAL = 1e-6  # of the objective that another head may gain
TIMED = ("seconds", "inner_seconds")


@dataclass(frozen=True)
class Evaluated:
    """The objective of a model, as a function of its parameters."""

    features: Tensor  # inputs of the head, without its bias
    outputs: Tensor
    value: Tensor
    rounding: float  # error of the objective if outputs were right to one unit in the last place


def head_of(model: nn.Module) -> nn.Linear:
    """The last layer of a drawn model."""
    head = model if isinstance(model, nn.Linear) else list(model.children())[-1]
    assert isinstance(head, nn.Linear)
    return head


def theta_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters before the head that are trained."""
    own = {id(p) for p in head_of(model).parameters()}
    return {name: p for name, p in model.named_parameters() if id(p) not in own and p.requires_grad}


def evaluate(model: nn.Module, arguments: dict[str, Any], alphas: tuple[float, float]) -> Evaluated:
    """Evaluate the objective: the weighted mean of the loss, half the squares of theta and W times their penalties."""
    seen: list[Tensor] = []
    watch = head_of(model).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    outputs = model(arguments["inputs"].double())
    watch.remove()
    weights = arguments.get("sample_weight")
    weights = torch.ones(len(outputs)).double() if weights is None else weights / weights.max()
    weights = weights / weights.sum()
    rows, slopes = losses(arguments["loss"], outputs, arguments["targets"])
    theta = sum((p.square().sum() for p in theta_of(model).values()), outputs.new_zeros(()))
    W = sum(p.square().sum() for p in head_of(model).parameters())
    value = (torch.where(weights > 0, rows * weights, 0.0)).sum() + alphas[0] / 2 * theta + alphas[1] / 2 * W
    sizes = seen[-1].abs() @ head_of(model).weight.abs().T
    if head_of(model).bias is not None:
        sizes = sizes + head_of(model).bias.abs()
    return Evaluated(seen[-1], outputs, value, float((weights[:, None] * slopes.abs() * sizes).sum().detach()))


def losses(name: str, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of every row, and its derivatives in the outputs."""
    if name == "least_squares":
        residuals = outputs - targets.double().reshape(outputs.shape)
        return residuals.square().sum(1) / 2, residuals.detach()
    if name == "logistic":
        given = targets.double().reshape(outputs.shape)
        rows = F.binary_cross_entropy_with_logits(outputs, given, reduction="none").sum(
            1
        )  # softplus drops what is below 1e-9
        return rows, (outputs.sigmoid() - given).detach()
    if targets.is_floating_point():
        return outputs.logsumexp(1) - (targets * outputs).sum(1), (outputs.softmax(1) - targets).detach()
    slopes = outputs.softmax(1) - F.one_hot(targets, outputs.shape[1])
    return F.cross_entropy(outputs, targets, reduction="none"), slopes.detach()


def last_of(result: gnvpro.Result, batched: bool) -> Any:
    """The record of the model that is stored."""
    return result.history[-1] if batched else [r for r in result.history if r.accepted or r.note is not None][-1]


def check_claims(result: gnvpro.Result, arguments: dict[str, Any], before: dict[str, Tensor]) -> None:
    """Raise an AssertionError for the first claim that is not true; `before` is the model's first state."""
    method = arguments["method"]
    batched = getattr(method, "batches", None) is not None
    stored = next(result.model.parameters()).dtype
    model = copy.deepcopy(result.model).double()
    record = last_of(result, batched)
    alphas = (record.theta_penalty, record.head_penalty)
    assert None not in alphas, "a record without its penalties"
    here = evaluate(model, arguments, alphas)
    noise = max(1e3 * torch.finfo(stored).eps, 1e-10) * (abs(float(here.value.detach())) + here.rounding)
    if arguments["loss"] != "least_squares":
        noise += (
            1e2 * torch.finfo(torch.float64).eps * float(here.outputs.detach().abs().max())
        )  # of log-sum-exp minus one
        noise += SEPARABLE
    noise += 0.0 if stored is torch.float64 else ROUNDED * abs(record.loss)
    if not torch.isfinite(here.value):
        assert here.rounding > 1e290 or not np.isfinite(here.rounding), "the objective of the result is not finite"
        return
    if arguments["keep"] == "last":
        gap = abs(float(here.value.detach()) - record.loss)
        smallest = 1e-300 + float(torch.finfo(stored).tiny) ** 2
        assert gap <= noise + smallest, f"on record {record.loss}, evaluated {float(here.value.detach())}"
    if isinstance(method, gnvpro.methods.GNvpro | gnvpro.methods.LBFGSvpro | gnvpro.methods.AdamVPro):
        gain = best_gain(model, here)
        assert gain <= noise + OPTIMAL * abs(record.loss), f"another head lowers {record.loss} by {gain}"
    check_status(result, model, arguments, alphas, here)
    if arguments["keep"] == "last":
        check_moved(result, before, model, here)


def best_gain(model: nn.Module, here: Evaluated) -> float:
    """Return the gain of the best head over this one, to second order: half of g' H^+ g."""
    head = list(head_of(model).parameters())
    g = torch.cat([each.reshape(-1) for each in torch.autograd.grad(here.value, head, create_graph=True)])
    H = torch.stack(
        [
            torch.cat(
                [
                    each.reshape(-1)
                    for each in torch.autograd.grad(entry, head, retain_graph=True, materialize_grads=True)
                ]
            )
            for entry in g
        ]
    )
    scale = H.diagonal().clamp_min(1e-300).sqrt()  # columns of one size
    H, g = H / scale / scale[:, None], (g / scale).detach()
    if not (torch.isfinite(H).all() and torch.isfinite(g).all()):
        return 0.0
    values, vectors = torch.linalg.eigh(H)
    along = vectors.T @ g
    kept = values > 1e-10 * values.max()
    return float((along[kept].square() / values[kept]).sum() / 2)


def slopes_of(model: nn.Module, here: Evaluated) -> dict[str, Tensor]:
    """Derivatives of the objective in theta."""
    theta = theta_of(model)
    if not theta:
        return {}
    found = torch.autograd.grad(here.value, list(theta.values()), retain_graph=True, materialize_grads=True)
    return dict(zip(theta, found, strict=True))


def check_status(
    result: gnvpro.Result, model: nn.Module, arguments: dict[str, Any], alphas: tuple[float, float], here: Evaluated
) -> None:
    """Check what the status claims about the objective, if it claims anything."""
    status, slopes = result.status, slopes_of(model, here)
    if status is Status.HEAD_ONLY:
        assert not slopes, f"HEAD_ONLY, but {', '.join(slopes)} could be trained"
    if next(result.model.parameters()).dtype is not torch.float64 or arguments["keep"] == "best" or not slopes:
        return
    size = float(torch.cat([each.reshape(-1) for each in slopes.values()]).norm())
    if status is Status.CONVERGED:
        first = [r.gradient_norm for r in result.history if r.gradient_norm is not None]
        assert size <= 1e-8 * max(first) + 1e-8 * here.rounding, f"CONVERGED with a gradient of {size} of {max(first)}"
    if status is Status.STEP_TOO_SMALL and getattr(arguments["method"], "batches", None) is None:
        for length in (1e-2, 1e-4, 1e-6):
            there = copy.deepcopy(model)
            with torch.no_grad():
                for name, p in theta_of(there).items():
                    p.sub_(length * slopes[name] / max(size, 1e-300))
            value = float(evaluate(there, arguments, alphas).value.detach())
            fall = float(here.value.detach()) - value
            assert fall <= 1e-4 * float(here.value.detach()) + 1e-9 * here.rounding, (
                f"STEP_TOO_SMALL, but a step of {length} lowers the objective by {fall} of {float(here.value.detach())}"
            )


def check_moved(result: gnvpro.Result, before: dict[str, Tensor], model: nn.Module, here: Evaluated) -> None:
    """Check that a step moved every parameter whose derivative is not zero."""
    pairs = itertools.pairwise(result.history)
    steps = [b for a, b in pairs if b.accepted and b.note is None and a.level == b.level and b.loss != a.loss]
    if not steps or next(result.model.parameters()).dtype is not torch.float64:
        return
    slopes = slopes_of(model, here)
    largest = max((float(each.abs().max()) for each in slopes.values()), default=0.0)
    for name, slope in slopes.items():
        same = name in before and before[name].shape == slope.shape
        if same and torch.equal(result.model.state_dict()[name].double(), before[name].double()):
            assert float(slope.abs().max()) <= 1e-6 * largest, f"{name} did not move, but its derivative is not zero"


def other_ways(arguments: dict[str, Any], folder: Path) -> list[tuple[str, bool, dict[str, Any]]]:
    """Return the same data in other forms: name, whether bits stay the same, and arguments of `train`."""
    inputs, targets, n = arguments["inputs"], arguments["targets"], len(arguments["inputs"])
    ways: list[tuple[str, bool, dict[str, Any]]] = []
    if inputs.dtype is not torch.bfloat16:
        ways.append(("arrays", True, {"inputs": inputs.numpy(), "targets": targets.numpy()}))
        held = np.memmap(folder / "inputs", inputs.numpy().dtype, "w+", shape=tuple(inputs.shape))
        held[:] = inputs.numpy()
        ways.append(("a file", False, {"inputs": held}))
    if arguments["loss"] == "multinomial" and arguments["classes"] > 1:
        hot = F.one_hot(targets, arguments["classes"]).double()
        ways.append(("one-hot labels", False, {"targets": hot}))
    if arguments["loss"] == "least_squares" and targets.shape[1] == 1:
        ways.append(("targets in one dimension", True, {"targets": targets[:, 0]}))
    tensors = [inputs, targets, *([] if arguments["sample_weight"] is None else [arguments["sample_weight"]])]
    loader = DataLoader(TensorDataset(*tensors), batch_size=max(1, n // 3))
    ways.append(("a loader", False, {"inputs": loader, "targets": None, "sample_weight": None}))
    return ways


def check_ways(make: Any, arguments: dict[str, Any], result: gnvpro.Result, draw: Any, folder: Path) -> None:
    """Hand over the same data in another way: the same history; from disk or a loader the same first objective."""
    name, bits, changed = draw.choice(other_ways({**arguments, "classes": head_of(make()).out_features}, folder))
    try:
        again = gnvpro.train(make(), **{**arguments, **changed})
    except (ValueError, TypeError) as error:
        raise AssertionError(f"{name}: refused, where tensors are taken: {error}") from error
    assert bits is False or len(again.history) == len(result.history), f"{name}: another history"
    for one, other in list(zip(result.history, again.history, strict=False))[: None if bits else 1]:
        if bits:
            a, b = ({k: v for k, v in record.to_dict().items() if k not in TIMED} for record in (one, other))
            assert repr(a) == repr(b), f"{name}: {a} became {b}"
        else:
            scale = 1e-5 * max(abs(one.loss), abs(other.loss)) + 1e-300
            scale += 0.0 if arguments["loss"] == "least_squares" else SEPARABLE
            assert abs(one.loss - other.loss) <= scale, f"{name}: {one.loss} became {other.loss}"
