"""Check a model's derivatives against differences of its forward pass, once per model, on two samples and one
direction.

    jvp(d)  and  vjp(c) . d  against  (f(theta + h d) - f(theta)) / h        at a theta that is not the model's own

A backward pass may not match its forward pass: a part under torch.no_grad, a parameter kept in a hidden place, a
wrong backward formula, an adjoint that runs the model again. Training would continue, with parameters that never
move or move in wrong directions, so such a model raises an error.

The first check costs one forward pass with its derivatives, and one more forward pass on a single sample. That pass
also shows whether the features of a sample depend on other samples, and whether the model still uses its own
parameters. A deviation is checked again by central differences with two steps, at several theta: it is an error only
if it is far above the change between the steps every time. Kinks, saturated units and rounding errors are not
errors.

Legend: f -> features, d -> direction, h -> step, c -> cotangent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnvpro.network.derivatives.linearization import FeatureLinearization
from gnvpro.samples.several import Batch

if TYPE_CHECKING:
    from gnvpro.network.separable import SeparableNetwork

SHIFT = 0.2  # distance from the model's own theta, relative to the typical size of each parameter
TOLERANCE = 0.005  # relative deviation from differences; the fourth root of the precision if that is larger
LONGER = 8.0  # the second step, in units of the first
ROUNDING = 100.0  # rounding errors of a forward pass, in units of the relative precision
COARSE = 1e-4  # relative precision from which on differences are meaningless
SEEDS = (1, 2, 3)
NOTHING_MOVES = (
    "none of the model's trainable parameters before the head moves its features: the features are computed under "
    "torch.no_grad, detached, or by other means than torch's, or without these parameters; train with what does move them, or "
    "set requires_grad_(False) on the parameters to train the head alone"
)
MOST_NAMED, MOST_TRIED = 3, 200  # parameters in a message, and parameters checked one by one


@dataclass(frozen=True)
class Findings:
    """Result of the check: `sure` if differences agree; otherwise the reason why a derivative cannot be used."""

    sure: bool = False
    wrong: str | None = None  # the gradient is wrong
    fails: str | None = None  # there is no gradient by torch.autograd.grad
    products: str | None = None  # there are no products with the Jacobian


@dataclass(frozen=True)
class _Look:
    """The derivatives at one shifted theta, and the direction in which they are compared."""

    network: SeparableNetwork
    theta: Tensor
    direction: Tensor
    part: FeatureLinearization

    @staticmethod
    def at(network: SeparableNetwork, few: Batch, seed: int, shift: float) -> _Look:
        """Linearise at the model's theta plus a random shift."""
        generator = torch.Generator().manual_seed(seed)
        theta, size = network.theta(), _typical_sizes(network)
        away = torch.randn(len(theta), generator=generator, dtype=torch.float64)
        direction = torch.randn(len(theta), generator=generator, dtype=torch.float64)
        shifted = theta + shift * size * away.to(theta.device)
        part = network.linearize_batch(network.split(shifted), few)
        return _Look(network, shifted, size * direction.to(theta.device), part)

    def features(self, samples: Batch, step: float, direction: Tensor | None = None) -> Tensor:
        """Return features after `step` times the direction, in float64."""
        moved = self.theta + step * (self.direction if direction is None else direction)
        return self.network.features_of_batch(self.network.split(moved), samples).to(torch.float64)

    def jvp(self) -> Tensor:
        """Return the product with the direction."""
        return self.part.jvp(self.direction).to(torch.float64)

    def slope(self, difference: Tensor, direction: Tensor | None = None) -> float:
        """Slope along the direction according to the gradient, for a cotangent along the difference; equals its norm if
        correct.
        """
        cotangent = difference / torch.linalg.vector_norm(difference).clamp_min(1e-300)
        gradient = self.part.vjp(cotangent.to(self.part.features.dtype))
        return float(gradient @ (self.direction if direction is None else direction))


def check_derivatives(network: SeparableNetwork, few: Batch) -> Findings:
    """Compare the derivatives with differences on a few samples; the model is in evaluation mode."""
    eps = _relative_precision(network)
    try:
        look = _Look.at(network, few, 0, SHIFT)
        if not look.part.depends:
            return Findings(wrong=NOTHING_MOVES)
        look.part.vjp(torch.ones_like(look.part.features))
    except Exception as error:
        return Findings(fails=f"torch cannot differentiate the model ({_first_line(error)}){_remedy(error)}")
    try:
        product = look.jvp()
    except Exception as error:
        return Findings(products=f"torch cannot differentiate the model twice ({_first_line(error)})")
    if eps > COARSE:
        return Findings()
    step = eps**0.4
    alone = few[-1:]
    with _displaced(network, network.names):  # shows where the model's own parameters are still in use
        try:
            moved = look.features(alone, step)
        except Exception:  # BatchNorm, for example, has no variance of one sample
            alone, moved = few, look.features(few, step)
    own = slice(len(product) - len(product) * len(alone) // len(few), None)
    value = look.part.features[own].to(torch.float64)
    difference = (moved - value) / step
    noise = ROUNDING * eps * float(torch.linalg.vector_norm(value)) / step
    padded = torch.zeros_like(product)
    padded[own] = difference
    scale = float(torch.linalg.vector_norm(difference))
    most = _tolerance(eps)
    agree = _near(product[own], difference, noise, most) and abs(look.slope(padded) - scale) <= most * scale + noise
    if agree:
        return Findings(sure=alone is not few)
    hidden = _out_of_reach(look, few)
    return _confirmed(network, few, eps) if hidden is None else Findings(wrong=hidden)


def _confirmed(network: SeparableNetwork, few: Batch, eps: float) -> Findings:
    """Check again closely; return a deviation only if every check shows it."""
    gradients, products, looks = [], [], list(_close_looks(network, few, eps))
    if not looks:
        return Findings()
    for look, difference, uncertain in looks:
        scale = float(torch.linalg.vector_norm(difference))
        gradients.append(abs(look.slope(difference) - scale) > _tolerance(eps) * scale + uncertain)
        products.append(not _near(look.jvp(), difference, uncertain, _tolerance(eps)))
    if all(gradients):
        look, difference, uncertain = looks[0]
        return Findings(wrong=_wrong_gradient(look, difference, uncertain, few, eps))
    if all(products):
        return Findings(
            products="torch does not differentiate the model's backward pass rightly: products with the Jacobian are wrong, or "
            "not finite"
        )
    return Findings()


def _close_looks(network: SeparableNetwork, few: Batch, eps: float) -> Iterator[tuple[_Look, Tensor, float]]:
    """Yield derivatives, central differences and their uncertainty, if these are meaningful."""
    step = eps**0.4
    for seed in SEEDS:
        for shift in (SHIFT, 0.1 * SHIFT):
            look = _Look.at(network, few, seed, shift)
            short, long = ((look.features(few, h) - look.features(few, -h)) / (2 * h) for h in (step, LONGER * step))
            value = look.part.features.to(torch.float64)
            uncertain = 3 * float(torch.linalg.vector_norm(short - long))
            uncertain += ROUNDING * eps * float(torch.linalg.vector_norm(value)) / step
            if torch.isfinite(short).all() and torch.isfinite(long).all() and torch.isfinite(value).all():
                if short.any() or not _moves_far(look, few, value):
                    yield look, short, uncertain
                break


def _moves_far(look: _Look, few: Batch, value: Tensor) -> bool:
    """Return True if a long step moves features that no short step moves: they are rounded somewhere."""
    return not torch.equal(look.features(few, 0.1), value)


def _wrong_gradient(look: _Look, difference: Tensor, uncertain: float, few: Batch, eps: float) -> str:
    """Return the error message, with the parameters whose derivative is wrong."""
    scale = float(torch.linalg.vector_norm(difference))
    off = abs(look.slope(difference) - scale) / max(scale, 1e-300)
    wrong, start, step = [], 0, eps**0.4
    for name, shape in look.network.parameters[:MOST_TRIED]:
        own, stop = torch.zeros_like(look.direction), start + math.prod(shape)
        own[start:stop], start = look.direction[start:stop], stop
        change = (look.features(few, step, own) - look.features(few, -step, own)) / (2 * step)
        norm = float(torch.linalg.vector_norm(change))
        if abs(look.slope(change, own) - norm) > _tolerance(eps) * norm + uncertain:
            wrong.append(name)
    more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
    along = f", along {', '.join(map(repr, wrong[:MOST_NAMED]))}{more}" if wrong else ""
    return (
        f"the model's backward pass does not give the derivative of its forward pass: it is off by {off:.0%} from differences"
        f"{along}; look there for torch.no_grad, detach() or .data, and for a torch.autograd.Function whose backward is wrong"
    )


def _out_of_reach(look: _Look, few: Batch) -> str | None:
    """Return True if the model uses a parameter in a place that no other tensor can occupy."""
    value = look.features(few, 0.0)
    for name in look.network.names[:MOST_TRIED]:
        with _displaced(look.network, [name]):
            moved = look.features(few, 0.0)
        if not torch.equal(moved.nan_to_num(), value.nan_to_num()):
            return (
                f"the model uses its parameter {name!r} in a place where gnvpro cannot put other values (a tuple, a closure, "
                "an object that is no module?), so it would not be trained; use it as an attribute of its module"
            )
    return None


@contextmanager
def _displaced(network: SeparableNetwork, names: Sequence[str]) -> Iterator[None]:
    """Replace the numbers in the model's own parameters within a block."""
    own = dict(network.model.named_parameters())
    before = [(own[name], own[name].data) for name in names]
    try:
        for parameter, data in before:
            parameter.data = data + 0.1 + 0.1 * data.abs()
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


def _near(product: Tensor, difference: Tensor, uncertain: float, tolerance: float) -> bool:
    """Return True if a product with the Jacobian agrees with differences; never if it is not finite."""
    norm = torch.linalg.vector_norm
    return float(norm(product - difference)) <= tolerance * float(norm(difference)) + uncertain


def _tolerance(eps: float) -> float:
    return max(TOLERANCE, eps**0.25)


def _typical_sizes(network: SeparableNetwork) -> Tensor:
    """Root mean square of each parameter, for each of its entries; a tenth of the average size for parameters that are
    zero.
    """
    pieces = network.views(network.theta()).values()
    sizes = [float(piece.square().mean().sqrt()) for piece in pieces]
    usual = 0.1 * (sum(sizes) / len(sizes) or 1.0)
    return torch.cat([torch.full_like(p.reshape(-1), size or usual) for p, size in zip(pieces, sizes, strict=True)])


def _relative_precision(network: SeparableNetwork) -> float:
    """Return the relative rounding error of the least precise parameter."""
    largest = 0.0
    for p in network.model.parameters():
        if p.is_floating_point() or p.is_complex():
            largest = max(largest, torch.finfo(p.dtype).eps)
    return largest


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _remedy(error: Exception) -> str:
    """Return what to do if torch's own message does not state it."""
    if "use_reentrant" in str(error) or "Checkpointing is not compatible" in str(error):
        return "; call torch.utils.checkpoint.checkpoint with use_reentrant=False"
    return ""
