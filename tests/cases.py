"""Small problems that the derivative checks run over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from checks import Dense
from gnvpro import Problem, Tikhonov, time_differences
from gnvpro.extend import Eliminator
from gnvpro.networks import MLP, NeuralODE, ResNet
from gnvpro.objectives.full import FullPoint
from gnvpro.objectives.reduced import ReducedPoint
from gnvpro.problem.loss import Loss
from gnvpro.problem.penalties import OperatorFactory

F64 = torch.float64
F32 = torch.float32


class Poisson(Loss):
    """e^x - c x: a user's own loss, unbounded curvature and no `prepare`."""

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.exp() - targets * outputs).sum(1)

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.exp() - targets

    def hessian(self, outputs: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda d_outputs: outputs.exp() * d_outputs


class PseudoHuber(Loss):
    """sqrt(1 + (x - c)^2) - 1: a user's own loss whose curvature vanishes far away."""

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (torch.sqrt(1 + (outputs - targets) ** 2) - 1).sum(1)

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets) / torch.sqrt(1 + (outputs - targets) ** 2)

    def hessian(self, outputs: Tensor, targets: Tensor) -> Callable[[Tensor], Tensor]:
        curvature = (1 + (outputs - targets) ** 2) ** -1.5
        return lambda d_outputs: curvature * d_outputs


class SkipNet(nn.Module):
    """Has no rule for its derivative, registers its head first, and uses a layer twice."""

    def __init__(self, n_outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(4, n_outputs)
        self.second = nn.Linear(4, 4)
        self.first = nn.Linear(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        u = torch.sin(self.first(x))
        for _ in range(2):
            u = u + 0.5 * torch.tanh(self.second(u))
        return self.head(u)


class Duplicated(nn.Module):
    """Every feature twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        u = torch.tanh(self.inner(x))
        return torch.cat([u, u], dim=-1)


class DeadFeature(nn.Module):
    """A feature that is zero for every sample, as ReLU makes them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        u = torch.tanh(self.inner(x))
        return torch.cat([u, torch.zeros_like(u[:, :1])], dim=-1)


def mlp(n_outputs: int, width: int = 4, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, width), nn.Tanh(), nn.Linear(width, n_outputs, bias))


def shared_activation(n_outputs: int) -> nn.Module:
    act = nn.Tanh()
    return nn.Sequential(nn.Linear(2, 4), act, nn.Linear(4, 4), act, nn.Linear(4, n_outputs))


def partly_frozen(n_outputs: int) -> nn.Module:
    model = mlp(n_outputs)
    model[0].weight.requires_grad_(False)
    return model


def cnn(n_outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, n_outputs, bias=False)
    )


def pixel_net(n_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, n_outputs, 1))


def real(outputs: int) -> Callable[[Tensor], Tensor]:
    """Smooth real targets with noise, one row an input row."""

    def make(x: Tensor) -> Tensor:
        flat = x.reshape(x.shape[0], -1).to(F64)
        waves = torch.sin(flat[:, :1] * torch.arange(1, outputs + 1, dtype=F64)) + flat[:, 1:2]
        return waves + 0.3 * torch.randn_like(waves)

    return make


def labels(classes: int, absent: int | None = None) -> Callable[[Tensor], Tensor]:
    def make(x: Tensor) -> Tensor:
        drawn = torch.randint(0, classes, (x.shape[0],))
        return drawn if absent is None else torch.where(drawn == absent, 0, drawn)

    return make


def separable(classes: int) -> Callable[[Tensor], Tensor]:
    """Labels that are a threshold of one input, which the features follow monotonically."""

    def make(x: Tensor) -> Tensor:
        order = x[:, 0].argsort().argsort()
        return order * classes // x.shape[0]

    return make


def soft(classes: int) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.softmax(torch.randn(x.shape[0], classes, dtype=F64), 1)


@dataclass(frozen=True)
class Case:
    """A model, data, a loss and penalties."""

    build: Callable[[], nn.Module]
    loss: str | Loss
    make_targets: Callable[[Tensor], Tensor]
    inputs: tuple[int, ...] = (25, 2)
    theta_penalty: float = 1e-2
    operator: OperatorFactory | None = None
    head_penalty: float = 1e-3
    dtype: torch.dtype = F64
    eliminator: Eliminator | None = None


@dataclass
class Made:
    """A case with its model and data drawn; theta is not a minimum."""

    case: Case
    model: nn.Module
    inputs: Tensor
    targets: Tensor
    problem: Problem = field(init=False)

    def __post_init__(self) -> None:
        case = self.case
        self.problem = Problem(
            self.model,
            self.inputs,
            self.targets,
            loss=case.loss,
            theta_penalty=Tikhonov(case.theta_penalty, case.operator),
            head_penalty=case.head_penalty,
            eliminator=case.eliminator,
        )
        self.network, self.theta = self.problem.network, self.problem.theta()

    def reduced_at(self, theta: Tensor, eliminator: Eliminator | None = None) -> ReducedPoint:
        return self.problem.with_eliminator(eliminator or self.problem.eliminator).reduced.at(theta)

    def full_at(self, theta: Tensor, W: Tensor) -> FullPoint:
        full = self.problem.full
        return full.at(full.join(theta, W))

    @cached_property
    def point(self) -> ReducedPoint:
        return self.reduced_at(self.theta)

    def some_W(self) -> Tensor:
        """A head that is not the eliminated one."""
        return self.point.W + 0.3 * torch.randn(self.point.W.shape, dtype=F64, generator=rng(5))

    def direction(self, like: Tensor, seed: int = 1) -> Tensor:
        d = torch.randn(like.shape, dtype=F64, generator=rng(seed))
        return d / d.norm()

    def mean_loss(self, outputs: Tensor) -> Tensor:
        """The loss by torch's own functions, on the model's own output and the user's own targets."""
        targets, loss = self.targets, self.case.loss
        if loss == "least_squares":
            rows = outputs.numel() // self.network.n_targets
            return 0.5 * F.mse_loss(outputs, targets.to(F64).reshape(outputs.shape), reduction="sum") / rows
        if loss == "logistic":
            return F.binary_cross_entropy_with_logits(outputs, targets.to(F64).reshape(outputs.shape))
        if loss == "multinomial":
            if outputs.ndim == 3:
                outputs = outputs.movedim(-1, 1)
            return F.cross_entropy(outputs, targets)
        if isinstance(loss, Poisson):
            return F.poisson_nll_loss(outputs, targets, log_input=True, reduction="sum") / len(outputs)
        assert isinstance(loss, PseudoHuber)
        return (torch.sqrt(1 + (outputs - targets) ** 2) - 1).sum() / len(outputs)

    def dense(self, W: Tensor) -> Dense:
        B = None if self.case.operator is None else self.problem.theta_penalty.operator.dense()
        return Dense(
            self.model,
            self.network.location.head_name,
            self.inputs,
            self.mean_loss,
            self.case.theta_penalty,
            B,
            self.case.head_penalty,
            self.theta,
            W,
        )

    @cached_property
    def reference(self) -> Dense:
        """The naive dense derivatives at the eliminated head."""
        return self.dense(self.point.W)

    def rows(self, flat_outputs: Tensor) -> Tensor:
        """Columns of d (flattened model output) re-ordered to gnvpro's rows."""
        X = self.reference.outputs(self.theta, self.point.W)
        index = torch.arange(X.numel()).reshape(X.shape)
        return flat_outputs[self.network.rows(index).reshape(-1)]


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make(case: Case, seed: int = 3) -> Made:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = case.build().to(case.dtype)
        for p in model.parameters():
            if p.requires_grad:
                p.data += 0.1 * torch.randn_like(p)  # nothing stays at zero or constant in time
        inputs = torch.randn(case.inputs, dtype=case.dtype)
        return Made(case, model, inputs, case.make_targets(inputs))


def pixel_labels(x: Tensor) -> Tensor:
    return torch.randint(0, 3, (x.shape[0], *x.shape[2:]))


def sequence_targets(x: Tensor) -> Tensor:
    return torch.randn(*x.shape[:2], 2, dtype=F64)


def ode(n_outputs: int) -> nn.Module:
    return nn.Sequential(NeuralODE(2, 3, depth=2, final_time=1.0), nn.Linear(3, n_outputs))


def resnet(n_outputs: int) -> nn.Module:
    return nn.Sequential(ResNet(2, 3, depth=3, final_time=2.0), nn.Linear(3, n_outputs))


CASES: dict[str, Case] = {
    "mlp, least squares": Case(lambda: mlp(3), "least_squares", real(3)),
    "mlp, least squares, no bias": Case(lambda: mlp(2, bias=False), "least_squares", real(2)),
    "mlp, logistic": Case(lambda: mlp(1), "logistic", labels(2)),
    "mlp, logistic, no bias": Case(lambda: mlp(1, bias=False), "logistic", labels(2)),
    "mlp, multinomial": Case(lambda: mlp(3), "multinomial", labels(3)),
    "mlp, multinomial, no bias": Case(lambda: mlp(3, bias=False), "multinomial", labels(3)),
    "mlp, soft labels": Case(lambda: mlp(3), "multinomial", soft(3)),
    "mlp class, multinomial": Case(lambda: MLP(2, [4, 4], n_outputs=3), "multinomial", labels(3)),
    "shared activation, least squares": Case(lambda: shared_activation(2), "least_squares", real(2)),
    "frozen weight, multinomial": Case(lambda: partly_frozen(3), "multinomial", labels(3)),
    "resnet, least squares": Case(lambda: resnet(2), "least_squares", real(2)),
    "resnet, multinomial": Case(lambda: resnet(3), "multinomial", labels(3)),
    "neural ode, least squares, in time": Case(
        lambda: ode(2), "least_squares", real(2), operator=time_differences, theta_penalty=0.1
    ),
    "neural ode, logistic": Case(lambda: ode(1), "logistic", labels(2)),
    "cnn, multinomial": Case(lambda: cnn(3), "multinomial", labels(3), inputs=(20, 1, 6, 6)),
    "cnn, least squares": Case(lambda: cnn(2), "least_squares", real(2), inputs=(20, 1, 6, 6)),
    "autodiff, least squares": Case(lambda: SkipNet(2), "least_squares", real(2)),
    "autodiff, multinomial": Case(lambda: SkipNet(3), "multinomial", labels(3)),
    "fewer samples than features, least squares": Case(
        lambda: mlp(2, width=7), "least_squares", real(2), inputs=(5, 2)
    ),
    "fewer samples than features, multinomial": Case(lambda: mlp(3, width=7), "multinomial", labels(3), inputs=(5, 2)),
    "duplicated features, least squares": Case(
        lambda: nn.Sequential(Duplicated(), nn.Linear(6, 2)), "least_squares", real(2)
    ),
    "duplicated features, multinomial": Case(
        lambda: nn.Sequential(Duplicated(), nn.Linear(6, 3)), "multinomial", labels(3)
    ),
    "dead feature, least squares": Case(
        lambda: nn.Sequential(DeadFeature(), nn.Linear(4, 2)), "least_squares", real(2)
    ),
    "dead feature, logistic": Case(lambda: nn.Sequential(DeadFeature(), nn.Linear(4, 1)), "logistic", labels(2)),
    "separable, logistic": Case(lambda: mlp(1), "logistic", separable(2), head_penalty=1e-4),
    "separable, multinomial": Case(lambda: mlp(3), "multinomial", separable(3), head_penalty=1e-4),
    "absent class, multinomial": Case(lambda: mlp(4), "multinomial", labels(4, absent=2)),
    "pixels, multinomial": Case(lambda: pixel_net(3), "multinomial", pixel_labels, inputs=(4, 2, 3, 3)),
    "sequences, least squares": Case(lambda: mlp(2), "least_squares", sequence_targets, inputs=(6, 4, 2)),
    "poisson": Case(lambda: mlp(2), Poisson(), lambda x: torch.poisson(torch.full((len(x), 2), 2.0, dtype=F64))),
    "pseudo-huber": Case(lambda: mlp(2), PseudoHuber(), real(2)),
    "float32, least squares": Case(lambda: mlp(2), "least_squares", real(2), dtype=F32),
    "float32, multinomial": Case(lambda: mlp(3), "multinomial", labels(3), dtype=F32),
}

DOUBLE = [name for name, case in CASES.items() if case.dtype == F64]


@cache
def made(name: str) -> Made:
    """The case of that name, drawn once."""
    return make(CASES[name])
