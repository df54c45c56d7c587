"""Running a user's model without changing it: in evaluation mode, on kernels that can be differentiated twice.

torch's fast attention has no second derivative, which products with the Jacobian need, so its plain version is used.
Afterwards the mode of every module and torch's switches are restored.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gnvpro.network.training_mode import changing


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the model in evaluation mode with attention that has second derivatives; restore everything afterwards."""
    training = [module for module in model.modules() if module.training]
    flags = torch.backends.cuda
    is_plain = not (flags.flash_sdp_enabled() or flags.mem_efficient_sdp_enabled() or flags.cudnn_sdp_enabled())
    fast_path = torch.backends.mha.get_fastpath_enabled()  # fast path of nn.TransformerEncoder
    with ExitStack() as stack:
        try:
            if training:
                model.eval()
            if not is_plain:
                stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if fast_path:
                stack.callback(torch.backends.mha.set_fastpath_enabled, True)
                torch.backends.mha.set_fastpath_enabled(False)
            yield
        finally:
            for module in training:
                module.training = True


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Run torch on one thread, because several threads mostly wait on small tensors; restore the number afterwards."""
    before = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def bare(model: nn.Module) -> nn.Module:
    """Return the module inside of DataParallel, DistributedDataParallel and torch.compile."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        if isinstance(model, wrappers):
            model = model.module
        elif type(model).__name__ == "OptimizedModule" and isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def is_compiled(model: nn.Module) -> bool:
    """Return True if torch.compile runs some part of the model."""
    for module in model.modules():
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
            return True
    return False


def warn_of_modes(model: nn.Module, stacklevel: int) -> None:
    """Warn if evaluation mode changes what a model in training mode computes."""
    kinds = {type(module).__name__ for module in changing(model)}
    if not kinds:
        return
    warnings.warn(
        f"the model has {', '.join(sorted(kinds))}: gnvpro trains in evaluation mode (no dropout; statistics of norms are "
        "measured once on the training set, then fixed), since its objective must be the same function at every call; "
        'each module\'s mode is restored afterwards. The default method and method="adam-vpro" train in training mode',
        UserWarning,
        stacklevel=stacklevel,
    )
