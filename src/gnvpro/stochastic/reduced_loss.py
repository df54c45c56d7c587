"""The reduced loss of a batch, for your own training loop.

    phi_b(theta)  =  min_W  misfit_b(Z(theta) W') + a2/2 |W|^2 + rho/2 |W - W_near|^2

The head is not among the parameters: it is eliminated on each batch, close to a head that follows the batches
(`batch_head`). At the minimum W_b the derivative in W is zero, so phi_b changes with theta like the misfit at a
fixed head (the envelope theorem):

    d phi_b / d Z  =  G W_b,         G = d misfit / d outputs at Z W_b'

`backward` passes this derivative to the features; dropout, BatchNorm, hooks and DistributedDataParallel work as
usual.

Several processes share a batch: each has some of its samples, and the head is eliminated on all of them. Because
DistributedDataParallel averages the processes' gradients, each multiplies its part of G W_b by their number.

A batch's head is good for its own batch only. During training the model holds a head that follows the batches
slowly, for evaluation; `refit` writes the best head for all samples into the model.

Legend: a2 -> head_penalty, rho -> BatchHead.proximal, Z -> features, W_b -> fit.W.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gnvpro.arguments import check_method, check_number
from gnvpro.head.default_eliminator import default_eliminator
from gnvpro.head.eliminator import Eliminator, WarmStart, append_bias_column
from gnvpro.linalg.sums import SampleSum
from gnvpro.network.derivative_check import check_derivatives
from gnvpro.network.evaluation import bare, evaluating
from gnvpro.network.find_head import find_head
from gnvpro.network.habits import restored
from gnvpro.network.separable import SeparableNetwork
from gnvpro.objectives.problem_arguments import check_model, check_targets
from gnvpro.objectives.reduced import sum_of_squares
from gnvpro.problem.loss import Loss, get_loss
from gnvpro.problem.misfit import Misfit
from gnvpro.problem.penalties import default_penalty, ridge
from gnvpro.processes import Processes
from gnvpro.samples.several import Batch
from gnvpro.state import loaded, saved
from gnvpro.stochastic.batch_features import Envelope, as_batch, features_of, named_head
from gnvpro.stochastic.batch_head import BatchHead, HeadMemory

BatchInputs = Tensor | tuple[Tensor, ...] | list[Tensor] | Mapping[str, Tensor]
Samples = Iterable[Any] | tuple[BatchInputs, Tensor]


class ReducedLoss:
    """The loss of a batch with the head eliminated on it, as a function of the other parameters.

    Args:
        model: ends in an nn.Linear or a convolution with a kernel of one; may be wrapped in DistributedDataParallel. A model
            that torch.compile has wrapped runs without it.
        loss: "least_squares" ("mse", "squared_error"), "logistic", "multinomial" ("cross_entropy"), "log_loss" (logistic for
            one output, else multinomial), or an object with the methods of `gnvpro.extend.Loss`.
        head_penalty: a2 in a2/2 |W|^2, the bias included. Default 1e-10 for least squares, else 1e-4.
        head: the name of the last layer; by default the last registered layer that could be it. The first batch checks that
            it computes the model's output, once per forward pass.
        batch_head: controls how the head follows the batches.
        process_group: of `torch.distributed`, whose processes share every batch. Default: the group of
            DistributedDataParallel, or none. Pass it if another library wraps the model later, as Lightning does; gradients
            must be averaged over it.

    A batch may be smaller than the number of features, and classes may be missing from it: the head is then
    unchanged in directions that the batch does not determine. A batch whose features or targets are not finite
    raises ValueError and leaves the last head unchanged, so a loop may skip it. The head gets no gradient, so an
    optimiser with all of the model's parameters leaves it alone. All evaluations within one
    `optimizer.step(closure)`, as in torch.optim.LBFGS, start from the same last head, so they are values of one
    function.

    >>> _ = torch.manual_seed(0)
    >>> x = torch.rand(64, 2)
    >>> model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    >>> criterion = ReducedLoss(model, loss="least_squares")
    >>> optimizer = torch.optim.Adam(criterion.parameters(), lr=1e-2)
    >>> for _ in range(30):
    ...     optimizer.zero_grad()
    ...     criterion(x, x.prod(1, keepdim=True)).backward()
    ...     optimizer.step()
    >>> criterion.refit((x, x.prod(1, keepdim=True))) < 1e-3
    True
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: str | Loss,
        head_penalty: float | None = None,
        head: str | None = None,
        batch_head: BatchHead | None = None,
        process_group: Any = None,
    ) -> None:
        check_model(model)
        parallel = isinstance(model, nn.parallel.DistributedDataParallel)
        self._plain = bare(model)
        self.model = model if parallel or isinstance(model, nn.DataParallel) else self._plain
        group = model.process_group if parallel and process_group is None else process_group
        self._processes = Processes.of(group)
        self._over = SampleSum(self._processes)
        self._head_name, self._head = named_head(self._plain, head)
        weight: Any = self._head.weight
        self.loss = get_loss(loss, len(weight))
        default = default_penalty(self.loss)
        self.head_penalty = check_number("head_penalty", default if head_penalty is None else head_penalty, 0.0)
        if batch_head is not None and not isinstance(batch_head, BatchHead):
            raise TypeError(
                f"batch_head must be an object such as gnvpro.heads.BatchHead(proximal=0.1), got {batch_head!r}"
            )
        self.batch_head = batch_head or BatchHead()
        trouble = self.batch_head.why_not(self.loss)
        if trouble is not None:
            raise ValueError(f"batch_head cannot be used: {trouble}")
        self._given = head is not None
        self._network: SeparableNetwork | None = None  # set when a batch has confirmed the head
        self._checked = False  # True once the derivatives were compared with differences
        self._memory: HeadMemory | None = None
        self._in_step = False  # True while an optimiser makes a step
        self._first_of_step: HeadMemory | None = None  # from which every evaluation within the step starts
        _watch_steps(self)

    # -- what an optimiser is given

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Return names and trainable parameters outside of the head."""
        head = {id(p) for p in self._head.parameters()}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad and id(parameter) not in head:
                yield name, parameter

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the trainable parameters outside of the head."""
        for _, parameter in self.named_parameters():
            yield parameter

    # -- a batch

    def __call__(self, inputs: BatchInputs, targets: Tensor) -> Tensor:
        """Return the reduced loss of a batch: eliminate the head on it; `backward` gives the gradient in theta.

        Under `torch.no_grad()` it is the loss of the model with its current head, and nothing changes.

        Args:
            inputs: the model's input, samples first: a tensor; a tuple or list of them for a model with several arguments, a
                dictionary for a model with named arguments.
            targets: as in `gnvpro.train`.

        Raises:
            ValueError: the batch is empty, features or targets are not finite, shapes do not fit, or the model has no head to
                eliminate.
        """
        with self._processes.together():
            batch = as_batch("inputs", inputs)
            if not len(batch) and self._processes.alone:
                raise ValueError(
                    "inputs is an empty batch: a mean over no samples is not defined; leave such batches out"
                )
            network = self._see(batch)
            C = check_targets("targets", targets, batch, network, self.loss)
        features = features_of(self.model, self._head, batch, keep_in_graph=not self._processes.alone)
        misfit = Misfit.mean(self.loss, C, over=self._over)
        Z = self._finite(append_bias_column(network.rows(features.detach()), network.bias))
        if not torch.is_grad_enabled():
            W = network.W()
            return features.new_tensor(misfit.value(Z @ W.T) + ridge(self.head_penalty, W))
        memory = self._first_of_step or self._memory or self.batch_head.first(network.W())
        if self._in_step:
            self._first_of_step = memory
        fit = self.batch_head.fit(Z, misfit, self.head_penalty, memory)
        self._memory = fit.memory
        self._write(network, fit.memory.reading)
        cotangent = self._processes.size * misfit.gradient(fit.outputs) @ fit.W[:, : network.n_features]
        return Envelope.apply(network.rows(features), cotangent, fit.value)

    def _see(self, inputs: Batch) -> SeparableNetwork:
        """Return the model as features and head, checked with the first batch."""
        if self._network is None:
            if not len(inputs):
                raise ValueError(
                    "inputs is an empty batch: the first batch must have samples, which show what the model is"
                )
            with evaluating(self._plain):
                try:
                    location = find_head(self._plain, inputs[:2], self._head_name)
                except ValueError as error:
                    self._refuse(error)
            self._network = SeparableNetwork(self._plain, location)
        if not self._checked and torch.is_grad_enabled():
            self._checked = True
            with restored(self._plain), evaluating(self._plain):
                wrong = check_derivatives(self._network, inputs[:2]).wrong
            if wrong is not None:
                raise ValueError(wrong)
        return self._network

    def _refuse(self, error: ValueError) -> NoReturn:
        if self._given:
            raise error
        raise ValueError(
            f"{error} (head={self._head_name!r} is the last layer registered that could be a head; name another one "
            "with head=...)"
        ) from None

    def _write(self, network: SeparableNetwork, W: Tensor) -> None:
        weight, bias = network.location.weight, network.location.bias
        with torch.no_grad():
            weight.copy_(W[:, : network.n_features].reshape(weight.shape))
            if bias is not None:
                bias.copy_(W[:, -1])

    # -- all samples

    @torch.no_grad()
    def refit(self, samples: Samples, eliminator: Eliminator | None = None) -> float:
        """Eliminate the head over all samples and write it into the model.

        Args:
            samples: a pair (inputs, targets) of tensors, or a loader of such pairs. With several processes each passes its own
                samples, and all get the best head for the samples of all.
            eliminator: for example `gnvpro.heads.NewtonKrylov()`; chosen by default.

        Returns:
            The objective: mean loss plus a2/2 |W|^2.

        Raises:
            ValueError: there are no samples, features or targets are not finite, or the eliminator does not support the loss.
        """
        check_method("eliminator", eliminator, "fit", "an object with a method fit, such as gnvpro.heads.Newton()")
        trouble = eliminator.why_not(self.loss) if eliminator is not None else None
        if trouble is not None:
            raise ValueError(f"eliminator={eliminator!r} cannot be used: {trouble}")
        with self._processes.together():
            rows, targets, network = self._all_rows(samples)
        Z = self._finite(append_bias_column(torch.cat(rows), network.bias))
        misfit = Misfit.mean(self.loss, torch.cat(targets), over=self._over)
        solver = eliminator or default_eliminator(self.loss, network.n_targets * Z.shape[1])
        fit = solver.fit(Z, misfit, self.head_penalty, WarmStart(network.W()))
        self._memory = HeadMemory(fit.W, (self._memory or self.batch_head.first(fit.W)).proximal)
        self._first_of_step = None
        self._write(network, fit.W)
        return misfit.value(fit.outputs) + ridge(self.head_penalty, fit.W)

    def _all_rows(self, samples: Samples) -> tuple[list[Tensor], list[Tensor], SeparableNetwork]:
        """Return features and targets of all batches, and the network."""
        rows, targets = [], []
        with evaluating(self._plain):
            for inputs, labels in _batches_of(samples):
                batch = as_batch("samples", inputs)
                network = self._see(batch)
                rows.append(network.rows(features_of(self._plain, self._head, batch)))
                targets.append(check_targets("targets", labels, batch, network, self.loss))
        if not rows:
            raise ValueError("samples yielded nothing: refit needs at least one batch of (inputs, targets)")
        return rows, targets, network

    def _finite(self, Z: Tensor) -> Tensor:
        if not torch.isfinite(self._over.sum(sum_of_squares, Z)):  # the inner Hessian contains squares
            bad, rows = (int(n) for n in self._over.total(torch.tensor([_bad_rows(Z), len(Z)], dtype=torch.float64)))
            raise ValueError(
                f"features are not finite in {bad} of {rows} rows: NaN in the inputs, or parameters that have diverged; "
                "the head was left as it was"
            )
        return Z

    # -- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`; save it with those of the model and the optimiser."""
        return {"memory": saved(self._memory)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of another loss."""
        memory = state["memory"]
        if memory is None:
            self._memory = None
            return
        own: Any = self._head
        shape = (own.weight.shape[0], own.weight.shape[1] + (own.bias is not None))
        if tuple(memory["W"].shape) != shape:
            raise ValueError(f"state has a head of shape {tuple(memory['W'].shape)}, the model one of {shape}")
        device = own.weight.device
        here: dict[str, Any] = {key: v.to(device) if isinstance(v, Tensor) else v for key, v in memory.items()}
        restored = loaded(here)
        if not isinstance(restored, HeadMemory):
            raise ValueError("state must be what `state_dict` of a ReducedLoss returned")
        self._memory = restored

    def __repr__(self) -> str:
        return (
            f"ReducedLoss({type(self._plain).__name__}, loss={self.loss.name}, head={self._head_name!r}, "
            f"head_penalty={self.head_penalty:g}, batch_head={self.batch_head!r})"
        )


def _bad_rows(Z: Tensor) -> int:
    return int((~torch.isfinite(Z.square()).all(1)).sum())


def _batches_of(samples: Samples) -> Iterable[Any]:
    pair = isinstance(samples, tuple | list) and len(samples) == 2 and isinstance(samples[1], Tensor)
    return [samples] if pair else samples


def _watch_steps(criterion: ReducedLoss) -> None:
    """Let all evaluations within one step of an optimiser start from the memory of the first of them."""
    own = weakref.ref(criterion)

    def begin(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if (alive := own()) is not None:
            alive._in_step, alive._first_of_step = True, None

    def end(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if (alive := own()) is not None:
            alive._in_step, alive._first_of_step = False, None

    for handle in (register_optimizer_step_pre_hook(begin), register_optimizer_step_post_hook(end)):
        weakref.finalize(criterion, handle.remove)
