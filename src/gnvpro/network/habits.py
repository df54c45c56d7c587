"""Side effects of a model's forward pass, detected by running it before training.

A forward pass may write to its inputs, to buffers and to attributes. All of this is undone, so training works with
one function of theta and inputs, and the user's tensors do not change. Ordinary models have no side effects, and no
overhead.

Effects that cannot be undone raise an error: random numbers, state that changes the next result, writing to
parameters, and features of one sample that depend on the other samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from gnvpro.network.derivatives.substitutes import Substituted
from gnvpro.network.evaluation import is_compiled
from gnvpro.network.find_head import FirstRun
from gnvpro.network.places import MODULE_INTERNALS, intact
from gnvpro.samples.several import Batch, tensors_of

NO_FUNCTION = (
    "also in evaluation mode, so there is no function to minimise; use nn.Dropout (off in evaluation) or "
    "F.dropout(..., training=self.training), and keep nothing from call to call that the output depends on"
)


@dataclass(frozen=True)
class Habits:
    """Side effects of a model's forward pass, and their treatment."""

    writes_inputs: bool = False
    buffers: tuple[str, ...] = ()  # buffers that it writes
    attributes: tuple[tuple[nn.Module, str], ...] = ()  # attributes that it sets
    compiled: bool = False
    substitutes: bool = False  # True if it contains operations without second derivatives

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Undo attributes that the forward pass sets; give operations second derivatives."""
        before = [(module, name, vars(module).get(name, _ABSENT)) for module, name in self.attributes]
        with ExitStack() as stack:
            if self.compiled:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            if self.substitutes:
                stack.enter_context(Substituted())
            try:
                yield
            finally:
                for module, name, value in before:
                    _set_attribute(module, name, value)


_ABSENT = object()


def _set_attribute(module: nn.Module, name: str, value: Any) -> None:
    if value is _ABSENT:
        vars(module).pop(name, None)
    else:
        vars(module)[name] = value


@dataclass
class Snapshot:
    """Buffers and attributes of a model at one moment."""

    model: nn.Module
    buffers: list[tuple[str, nn.Module, str, Tensor, Tensor, int]] = field(init=False)
    attributes: list[tuple[nn.Module, dict[str, Any]]] = field(init=False)

    def __post_init__(self) -> None:
        self.buffers = [
            (f"{prefix}.{name}" if prefix else name, module, name, value, value.detach().clone(), value._version)
            for prefix, module in self.model.named_modules()
            for name, value in module._buffers.items()
            if value is not None
        ]
        self.attributes = [(module, dict(vars(module))) for module in self.model.modules()]
        self._devices = _cuda_devices(self.model)
        self._random = _random_states(self._devices)

    def drawn(self) -> bool:
        """Return True if random numbers were drawn since."""
        return not all(map(torch.equal, self._random, _random_states(self._devices)))

    def changed_buffers(self) -> list[str]:
        """Return names of buffers that were written or replaced since."""
        return [
            full
            for full, module, name, value, copy, version in self.buffers
            if module._buffers.get(name) is not value or value._version != version or not _equal(value, copy)
        ]

    def changed_attributes(self) -> list[tuple[nn.Module, str]]:
        """Return attributes that were set or removed since."""
        changed = []
        for module, before in self.attributes:
            now = vars(module)
            if now.keys() == before.keys() and all(map(is_, map(now.__getitem__, before), before.values())):
                continue
            names = [name for name in {**before, **now} if name not in MODULE_INTERNALS]
            changed += [(module, k) for k in names if now.get(k, _ABSENT) is not before.get(k, _ABSENT)]
        return changed

    def restore(self) -> None:
        """Restore everything."""
        changed = set(self.changed_buffers())
        for full, module, name, value, copy, _ in self.buffers:
            if full in changed:
                module._buffers[name] = value
                with torch.no_grad():
                    value.copy_(copy)
        before = {id(module): own for module, own in self.attributes}
        for module, name in self.changed_attributes():
            _set_attribute(module, name, before[id(module)].get(name, _ABSENT))


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())


@contextmanager
def restored(model: nn.Module) -> Iterator[Snapshot]:
    """Restore the random generators and everything about the model afterwards, however the block ends."""
    before = Snapshot(model)
    with torch.random.fork_rng(before._devices), intact(model):
        try:
            yield before
        finally:
            before.restore()


def find_habits(first: FirstRun, before: Snapshot, given: Batch) -> Habits:
    """Return the side effects of the first run; raise a ValueError with advice for those that cannot be undone."""
    pairs = zip(tensors_of(first.inputs), tensors_of(given), strict=True)
    writes_inputs = any(g._version > 0 or not _equal(g, f) for g, f in pairs)
    if before.drawn():
        raise ValueError(f"the model's forward pass draws random numbers, {NO_FUNCTION}")
    written = [name for name, value in first.params.items() if value._version > 0]
    if written:
        raise ValueError(
            f"the model's forward pass writes to its parameter {written[0]!r} (max_norm of an embedding, weights clipped in "
            "place?), so it is no function of its parameters; leave that out, or use torch.nn.utils.parametrize"
        )
    buffers, attributes = before.changed_buffers(), before.changed_attributes()
    return Habits(writes_inputs, tuple(buffers), tuple(attributes), is_compiled(before.model))


def check_state(first: Tensor, second: Tensor) -> None:
    """Check that a second run, with nothing undone in between, returns the features of the first."""
    if not _close(first, second):
        raise ValueError(
            f"the model's forward pass has state: run twice on the same inputs, its features differ, {NO_FUNCTION}"
        )


def check_independence(together: Tensor, samples: int, alone: Tensor) -> None:
    """Check that the features of the last sample do not change when it runs alone."""
    # the last one: recurrent layers that run over the samples leave the first unchanged
    if not _close(together[len(together) - len(together) // samples :], alone):
        raise ValueError(
            "the model's features of a sample depend on the other samples it is run with; samples come first, so give "
            "recurrent and attention layers batch_first=True, and let BatchNorm track its running statistics"
        )


def _random_states(devices: list[int]) -> list[Tensor]:
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def _cuda_devices(model: nn.Module) -> list[int]:
    return sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})


def _close(a: Tensor, b: Tensor) -> bool:
    """Compare up to rounding errors, which depend on the number of samples; overflow is checked later."""
    if a.shape != b.shape:
        return False
    a, b = a.to(torch.float64), b.to(torch.float64)
    if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
        return True
    return bool((a - b).abs().max() <= 1e-3 * max(float(a.abs().max()), 1e-30)) if a.numel() else True
