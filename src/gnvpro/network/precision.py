"""A model that computes in a higher precision than it is stored in.

    given, in float32        the user's module: what is shown, saved and returned
    working, in float64      a copy of it that computes; `show` writes its parameters into the given one

Differences of nearly equal objectives, and features that nearly depend on each other, need the digits that float32 has not.
The samples keep their dtype: a pass casts its chunk, so the model sees the numbers that the given one would see.

Some models cannot be copied, or compute in a fixed dtype whatever their parameters are (`x.float()` in forward). They
are found by a trial on a few samples, and run as they are given.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from gnvpro.network.evaluation import evaluating
from gnvpro.network.habits import restored
from gnvpro.network.places import MODULE_INTERNALS, intact
from gnvpro.policy import PrecisionPolicy
from gnvpro.samples.several import Batch, arguments_of, cast

COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}


@dataclass(frozen=True)
class WorkingModel:
    """The user's model, and the module that computes in its place: a copy in another precision, or the model itself."""

    given: nn.Module
    module: nn.Module
    reason: str  # in which precision passes run, and why

    @staticmethod
    def of(
        given: nn.Module, few: Batch, samples: float, memory: float, policy: PrecisionPolicy, noisy: bool = False
    ) -> WorkingModel:
        """Choose the precision of the passes, by a trial on a few samples; noise of batches drowns digits."""
        stored = lowest(given)
        if torch.finfo(stored).bits >= 64:
            return WorkingModel(given, given, "passes in float64, as the model")
        name, numbers = _short(stored), sum(p.numel() for p in given.parameters())
        if torch.finfo(torch.float64).bits / 8 * numbers > policy.double_memory * memory:
            why = f"a copy in float64 takes more than {policy.double_memory:g} of the memory"
        elif noisy:
            why = "batches in training mode need no more digits"
        else:
            twin, flops = _trial(given, few, torch.float64, policy)
            if isinstance(twin, str):
                why = twin
            elif flops * samples / len(few) <= policy.double_flops:
                return WorkingModel(given, twin, f"passes in float64, the model in {name}")
            else:
                why = f"a pass takes {flops * samples / len(few):.1e} operations"
        if torch.finfo(stored).bits < 32 and not isinstance(twin := _trial(given, few, torch.float32, policy)[0], str):
            return WorkingModel(given, twin, f"passes in float32, the model in {name}: {why}")
        return WorkingModel(given, given, f"passes in {name}, as the model: {why}")

    def map(self, refine: Callable[[nn.Module], nn.Module]) -> WorkingModel:
        """Return the same of what `refine` makes of the model."""
        given = refine(self.given)
        return WorkingModel(given, refine(self.module) if self.is_copy else given, self.reason)

    def stored(self, name: str) -> torch.dtype:
        """Return the dtype of a layer's weight in the given model."""
        weight = self.given.get_submodule(name).weight
        assert isinstance(weight, Tensor)
        return weight.dtype

    @property
    def casts_to(self) -> torch.dtype | None:
        """Dtype that samples are cast to; None for no cast."""
        return lowest(self.module) if self.is_copy else None

    @cached_property
    def is_copy(self) -> bool:
        """True if a copy of the given module computes."""
        return self.module is not self.given

    def show_buffers(self, names: tuple[str, ...]) -> None:
        """Write these buffers into the given model, in its own dtypes."""
        if self.is_copy:
            for name in names:
                self.given.get_buffer(name).copy_(self.module.get_buffer(name))

    def show(self) -> None:
        """Write the trained parameters into the given model, in its own dtypes."""
        pairs = [(own, new) for own, new in self._pairs() if isinstance(own, nn.Parameter) and own.requires_grad]
        with torch.no_grad():
            torch._foreach_copy_([own for own, _ in pairs], [new for _, new in pairs])

    def round(self) -> None:
        """Leave the module that computes no more digits than the given one can hold."""
        with torch.no_grad():
            for own, new in self._pairs():
                new.copy_(new.to(own.dtype))

    def follow(self) -> None:
        """Read what the user has written into the given model since it was copied or shown."""
        if self.is_copy:
            with torch.no_grad():
                for own, new in self._pairs():
                    if not torch.equal(new.to(own.dtype), own):
                        new.copy_(own)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(self.given.parameters(), self.module.parameters(), strict=True)
        yield from zip(self.given.buffers(), self.module.buffers(), strict=True)


def lowest(model: nn.Module) -> torch.dtype:
    """Return the dtype with the fewest digits among the real parameters; float64 if there are none."""
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return min(dtypes, key=lambda dtype: (torch.finfo(dtype).bits, -torch.finfo(dtype).eps), default=torch.float64)


def _trial(given: nn.Module, few: Batch, dtype: torch.dtype, policy: PrecisionPolicy) -> tuple[nn.Module | str, float]:
    """Copy the model to a dtype, and count the operations of a pass over a few samples.

    Return a sentence in place of the copy if it does not run, loses digits or computes something else.
    """
    watch = _Watch(dtype, policy.convolutions)
    if not len(few):
        return "there are no samples to try a copy on", 0.0
    try:
        twin = _copied(given, dtype)
        with intact(given), restored(given), torch.no_grad():
            expected = _run(given, few)
        with restored(twin), torch.enable_grad(), watch:
            found = _run(twin, cast(few, dtype))
    except Exception as error:
        return f"a copy in {_short(dtype)} does not run ({(str(error) or type(error).__name__).splitlines()[0]})", 0.0
    if watch.lost is not None:
        return f"its forward method computes in {_short(watch.lost)}", 0.0
    if not (isinstance(expected, Tensor) and isinstance(found, Tensor) and _agree(expected, found.detach())):
        return f"a copy in {_short(dtype)} returns other outputs", 0.0
    return twin, watch.flops


def _run(model: nn.Module, few: Batch) -> Any:
    positional, named = arguments_of(few)
    with evaluating(model):
        return model(*positional, **named)


def _agree(expected: Tensor, found: Tensor) -> bool:
    """Return whether outputs equal the expected ones up to rounding errors."""
    if expected.shape != found.shape or not expected.is_floating_point():
        return False
    tolerance = torch.finfo(expected.dtype).eps ** 0.5
    a, b = expected.to(torch.float64), found.to(torch.float64)
    if not torch.isfinite(a).all():
        return True  # overflowed, which more digits may cure
    return bool((a - b).abs().max() <= tolerance * max(float(a.abs().max()), 1e-30)) if a.numel() else True


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Watch(TorchFunctionMode):
    """Counts operations, and notices results that depend on parameters and have fewer digits than they should."""

    def __init__(self, dtype: torch.dtype, convolutions: float) -> None:
        super().__init__()
        self.wanted, self.convolutions, self.flops = torch.finfo(dtype).eps, convolutions, 0.0
        self.lost: torch.dtype | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for each in results if isinstance(results, tuple | list) else [results]:
            if isinstance(each, Tensor) and (each.is_floating_point() or each.is_complex()):
                if each.requires_grad and torch.finfo(each.dtype).eps > self.wanted:
                    self.lost = each.dtype
                self.flops += 2 * each.numel() * self._inner(getattr(func, "__name__", ""), args)
        return results

    def _inner(self, name: str, args: Any) -> float:
        """Products in one number of the result of a function, convolutions counted several times."""
        tensors = [each for each in args if isinstance(each, Tensor)]
        if "conv" in name and len(tensors) > 1:
            return self.convolutions * tensors[1].numel() / len(tensors[1])
        if name in ("linear", "matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention"):
            return tensors[-1 if name.startswith("add") else 0].shape[-1] if tensors else 1
        weights = [each for part in args if isinstance(part, tuple | list) for each in part if isinstance(each, Tensor)]
        recurrent = name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
        return sum(w.numel() / w.shape[-1] for w in weights if w.ndim == 2) if recurrent else 1


def _copied(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of the model whose floating-point tensors are of this dtype, complex ones of the matching one."""
    computed = (value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor))
    memo: dict[int, Any] = {id(value): value.detach().clone() for value in computed if not value.is_leaf}
    with torch.no_grad():
        twin = copy.deepcopy(model, memo)._apply(partial(_converted, dtype=dtype))
        for module in twin.modules():
            own = vars(module)
            own.update({name: _inside(own[name], dtype) for name in own.keys() - MODULE_INTERNALS})
    return twin


def _converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.is_floating_point() and torch.finfo(tensor.dtype).bits < torch.finfo(dtype).bits:
        return tensor.to(dtype)
    return tensor.to(COMPLEX[dtype]) if tensor.dtype is torch.complex64 else tensor


def _inside(value: Any, dtype: torch.dtype) -> Any:
    """An attribute with its tensors converted: those that are neither parameters nor buffers."""
    if isinstance(value, nn.Parameter):
        return value
    if isinstance(value, Tensor):
        return _converted(value, dtype)
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return dtype if torch.finfo(value).bits < torch.finfo(dtype).bits else value
    if type(value) in (list, tuple):
        return type(value)(_inside(each, dtype) for each in value)
    return {key: _inside(each, dtype) for key, each in value.items()} if type(value) is dict else value
