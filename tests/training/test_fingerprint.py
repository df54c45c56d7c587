"""A checkpoint knows whose it is: whatever changes the numbers of a run is noticed, and named; nothing else is."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam

import gnvpro
from gnvpro.training.fingerprint import describe, digest, model_parts

F64 = torch.float64
INPUTS = torch.linspace(-1, 1, 40, dtype=F64).reshape(20, 2)
TARGETS = torch.sin(3 * INPUTS)


@dataclasses.dataclass(frozen=True)
class Huber:
    """sqrt(delta^2 + r^2), a user's own loss with a parameter."""

    delta: float

    def value(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return torch.sqrt(self.delta**2 + (outputs - targets) ** 2).sum(1)

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets) / torch.sqrt(self.delta**2 + (outputs - targets) ** 2)

    def hessian(self, outputs: Tensor, targets: Tensor) -> Any:
        curvature = self.delta**2 * (self.delta**2 + (outputs - targets) ** 2) ** -1.5
        return lambda d_outputs: curvature * d_outputs


class PlainHuber(Huber):
    """A plain class with an attribute, otherwise equal."""

    def __init__(self, delta: float) -> None:
        self.__dict__["delta"] = delta


class SteeperHuber(Huber):
    """Other code, the same parameter."""

    def gradient(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 2 * super().gradient(outputs, targets)


class Net(nn.Module):
    """A model with an attribute that its repr does not show."""

    def __init__(self, slope: float = 1.0) -> None:
        super().__init__()
        self.first, self.fc, self.slope = nn.Linear(2, 3), nn.Linear(3, 2), slope

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.tanh(self.slope * self.first(x)))


class OtherNet(Net):
    """Other code."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.sin(self.slope * self.first(x)))


OtherNet.__qualname__ = OtherNet.__name__ = "Net"  # edited between two runs


def scaled_identity(factor: float) -> gnvpro.extend.LinearOperator:
    return gnvpro.extend.LinearOperator((9,), (9,), lambda v: factor * v, lambda v: factor * v)


def operator_factory(factor: float) -> Any:
    return lambda model, parameters: scaled_identity(factor)


def call(path: Path, model: nn.Module | None = None, **changes: Any) -> gnvpro.Result:
    torch.manual_seed(0)
    model = Net().double() if model is None else model.double()
    arguments: dict[str, Any] = {"inputs": INPUTS, "targets": TARGETS, "loss": Huber(1.0), "work": 12, **changes}
    return gnvpro.train(model, checkpoint=path, **arguments)


VALIDATION = (INPUTS[:5], TARGETS[:5])
WEIGHTS = torch.arange(1.0, 21.0)
KRYLOV = gnvpro.solvers.Krylov(max_rank=3)
# what is changed: (the first call, the call that would resume it, what is named)
CHANGED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a field of the loss": ({}, {"loss": Huber(0.01)}, r"loss was .*delta=1\.0.*, now it is .*delta=0\.01"),
    "an attribute of the loss": ({"loss": PlainHuber(1.0)}, {"loss": PlainHuber(0.01)}, r"loss was .*delta=1\.0.*0\.01"),
    "the code of the loss": ({}, {"loss": SteeperHuber(1.0)}, "loss was"),
    "operator B": (
        {"theta_penalty": gnvpro.Tikhonov(1e-3, scaled_identity(1.0))},
        {"theta_penalty": gnvpro.Tikhonov(1e-3, scaled_identity(50.0))},
        "theta_penalty was",
    ),
    "operator B as a function": (
        {"theta_penalty": gnvpro.Tikhonov(1e-3, operator_factory(1.0))},
        {"theta_penalty": gnvpro.Tikhonov(1e-3, operator_factory(50.0))},
        "theta_penalty was",
    ),
    "alpha": ({"theta_penalty": 1e-3}, {"theta_penalty": 1e-2}, r"theta_penalty was .*0\.001.*, now it is .*0\.01"),
    "the penalty on the head": ({}, {"head_penalty": 1e-2}, r"head_penalty was 0\.0001, now it is 0\.01"),
    "the eliminator": (
        {"method": gnvpro.methods.GNvpro(eliminator=gnvpro.heads.Newton())},
        {"method": gnvpro.methods.GNvpro(eliminator=gnvpro.heads.NewtonKrylov())},
        "eliminator was .*Newton.*, now it is .*NewtonKrylov",
    ),
    "a setting of the eliminator": (
        {"method": gnvpro.methods.GNvpro(eliminator=gnvpro.heads.Newton(atol=1e-6))},
        {"method": gnvpro.methods.GNvpro(eliminator=gnvpro.heads.Newton(atol=1e-9))},
        "eliminator was .*1e-06.*, now it is .*1e-09",
    ),
    "a setting of the solver": (
        {"solver": KRYLOV},
        {"solver": gnvpro.solvers.Krylov(4)},
        "method was .*max_rank=3.*max_rank=4",
    ),
    "the solver": ({"solver": KRYLOV}, {"solver": "dense"}, "method was .*Krylov.*, now it is .*Dense"),
    "the method": ({"method": "adam"}, {"method": "nesterov"}, "method was .*Adam.*, now it is .*SGD"),
    "the learning rate": (
        {"method": "adam"},
        {"method": gnvpro.methods.TorchOptimizer(Adam, lr=1e-2)},
        r"method was .*lr=0\.001.*lr=0\.01",
    ),
    "an attribute of the model": ({"model": Net(1.0)}, {"model": Net(2.0)}, "model's code and attributes was"),
    "the code of the model": ({"model": Net()}, {"model": OtherNet()}, "model's code and attributes was"),
    "sample weights": ({"sample_weight": WEIGHTS}, {"sample_weight": WEIGHTS**2}, "sample_weight was"),
    "some sample weights": ({}, {"sample_weight": WEIGHTS}, "sample_weight was"),
    "the validation set": ({"validation": VALIDATION}, {"validation": (INPUTS[:5], TARGETS[5:10])}, "validation targets was"),
    "its weights": ({"validation": VALIDATION}, {"validation": (*VALIDATION, WEIGHTS[:5])}, "validation sample_weight was"),
    "a validation set more": ({}, {"validation": VALIDATION}, "validation inputs was"),
    "a validation set less": ({"validation": VALIDATION}, {"validation": None}, "validation was True, now it is False"),
    "inputs": ({}, {"inputs": INPUTS + 1e-12}, "inputs was"),
    "targets": ({}, {"targets": TARGETS + 1e-12}, "targets was"),
    "seed": ({}, {"method": gnvpro.methods.GNvpro(seed=1)}, "seed was 0, now it is 1"),
    "memory": ({}, {"method": gnvpro.methods.GNvpro(memory=1e8)}, "memory was None"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGED)
def test_what_changes_the_numbers_is_noticed_and_named(what: str, tmp_path: Path) -> None:
    first, second, named = CHANGED[what]
    call(tmp_path / "run", **first)
    with pytest.raises(ValueError, match=f"is of another run: {named}"):
        call(tmp_path / "run", resume=True, **{**first, **second})
    again = call(tmp_path / "run", resume=True, **first)  # and the same call is the same run
    assert again.status is not gnvpro.Status.RUNNING


def test_another_head_is_noticed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    call(tmp_path / "run", model, method=gnvpro.methods.GNvpro(head="2"))
    renamed = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.Tanh()), nn.Linear(3, 2)).double()
    with pytest.raises(ValueError, match="is of another run: model"):
        call(tmp_path / "run", renamed, resume=True, method=gnvpro.methods.GNvpro(head="1"))


def test_what_is_trained_and_what_is_frozen_is_noticed(tmp_path: Path) -> None:
    call(tmp_path / "run")
    model = Net()
    model.first.bias.requires_grad_(False)
    with pytest.raises(ValueError, match=r"model parameter first\.bias was .*trained.*frozen"):
        call(tmp_path / "run", model, resume=True)


def test_where_theta_starts_is_no_part_of_it(tmp_path: Path) -> None:
    """A resumed run overwrites theta; so a new process need not draw the same one."""
    expected = call(tmp_path / "run")
    torch.manual_seed(99)
    other = gnvpro.train(
        Net().double(), INPUTS, TARGETS, loss=Huber(1.0), work=12, checkpoint=tmp_path / "run", resume=True
    )
    assert all(torch.equal(a, b) for a, b in zip(other.model.parameters(), expected.model.parameters(), strict=True))


# -- what is described


class Attributes:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Slots:
    __slots__ = ("a",)

    def __init__(self, a: Any) -> None:
        self.a = a


def outer(k: int) -> Any:
    def inner(x: int, y: int = 2) -> int:
        return x + y + k

    return inner


def with_extra(value: int) -> Huber:
    made = PlainHuber(1.0)
    made.__dict__["extra"] = value
    return made


LABELLED = ("one", 1, (2.0, "three"))

DIFFERENT: dict[str, tuple[Any, Any]] = {
    "numbers": (1, 2),
    "a number and a string": (1, "1"),
    "an integer and a real": (1, 1.0),
    "the last bit": (0.1, 0.1 + 2**-56),
    "tensors": (torch.zeros(3), torch.tensor([0.0, 0.0, 1e-30])),
    "shapes": (torch.zeros(2, 3), torch.zeros(3, 2)),
    "dtypes": (torch.zeros(3), torch.zeros(3, dtype=F64)),
    "arrays": (np.arange(3), np.arange(1, 4)),
    "lists": ([1, 2], [2, 1]),
    "a list and a tuple": ([1, 2], (1, 2)),
    "dictionaries": ({"a": 1}, {"a": 2}),
    "sets": ({1, 2}, {1, 3}),
    "fields": (Huber(1.0), Huber(2.0)),
    "attributes": (Attributes(a=1), Attributes(a=2)),
    "slots": (Slots(1), Slots(2)),
    "what is closed over": (outer(1), outer(2)),
    "code": (lambda x: x + 1, lambda x: x + 2),
    "defaults": (lambda x=1: x, lambda x=2: x),
    "methods": (Huber(1.0).value, Huber(2.0).value),
    "random generators": (torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)),
    "modules": (nn.Dropout(0.1), nn.Dropout(0.2)),
    "classes": (Huber, PlainHuber),
    "an attribute beside the fields": (with_extra(1), with_extra(2)),
    "compiled objects": (deque([1, 2]), deque([1, 3])),
    "dates": (datetime.date(2026, 1, 1), datetime.date(2026, 1, 2)),
    "deep inside": (Attributes(a=[{"b": Huber(1.0)}]), Attributes(a=[{"b": Huber(1.5)}])),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_things_are_described_differently(what: str) -> None:
    one, other = DIFFERENT[what]
    assert describe("it", one) != describe("it", other)
    assert describe("it", one) == describe("it", one)


def test_a_function_that_another_one_calls_is_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe("it", calls_helper), describe("model", CallsHelper())
    monkeypatch.setitem(globals(), "helper", lambda x: x + 2)
    after = describe("it", calls_helper), describe("model", CallsHelper())
    assert before[0] != after[0]
    assert before[1] != after[1]


def helper(x: Any) -> Any:
    return x + 1


def calls_helper(x: Any) -> Any:
    return [helper(y) for y in x]


class CallsHelper(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return helper(x)


def test_what_is_computed_and_kept_is_no_part_of_it() -> None:
    class Remembers:
        @functools.cached_property
        def double(self) -> int:
            return 2

    one = Remembers()
    before = describe("it", one)
    assert one.double == 2
    assert describe("it", one) == before


def test_a_cycle_is_described() -> None:
    def ring(value: int) -> Attributes:
        one, two = Attributes(value=0), Attributes(value=value)
        one.next, two.next = two, one  # type: ignore[attr-defined]
        return one

    assert describe("ring", ring(1)) == describe("ring", ring(1))
    assert describe("ring", ring(1)) != describe("ring", ring(2))
    items: list[Any] = []
    items.append(items)
    assert describe("items", items)


def test_the_same_object_twice_is_not_two_equal_ones() -> None:
    shared = [1]
    assert describe("it", (shared, shared)) != describe("it", ([1], [2]))


@pytest.mark.parametrize("holds", ["an open file", "a lock", "a thread", "a generator"])
def test_what_cannot_say_whether_it_is_the_same_is_refused_with_advice(holds: str, tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        things = {"an open file": file, "a lock": threading.Lock(), "a thread": threading.Thread()}
        thing = things.get(holds, (i for i in range(3)))
        loss = PlainHuber(1.0)
        loss.__dict__["extra"] = thing
        with pytest.raises(TypeError, match=r"^checkpoint: loss holds a .*; give the object .*fingerprint\(\).*leave"):
            call(tmp_path / "run", loss=loss)
        assert not (tmp_path / "run").exists()
        torch.manual_seed(0)
        done = gnvpro.train(Net().double(), INPUTS, TARGETS, loss=loss, work=12)  # it trains without a checkpoint
        assert done.history


class SaysItself(PlainHuber):
    """Holds a lock, and says itself who it is."""

    def __init__(self, delta: float) -> None:
        super().__init__(delta)
        self.__dict__["lock"] = threading.Lock()

    def fingerprint(self) -> str:
        return f"delta {self.delta}"


def test_an_object_may_say_itself_who_it_is(tmp_path: Path) -> None:
    call(tmp_path / "run", loss=SaysItself(1.0))
    call(tmp_path / "run", loss=SaysItself(1.0), resume=True)
    with pytest.raises(ValueError, match=r"loss was .*delta 1\.0, now it is .*delta 2\.0"):
        call(tmp_path / "run", loss=SaysItself(2.0), resume=True)


def everything() -> dict[str, str]:
    """Descriptions that must not depend on addresses in memory or on the process."""
    torch.manual_seed(0)
    samples = {
        "loss": Huber(1.0),
        "plain": PlainHuber(0.5),
        "operator": scaled_identity(50.0),
        "function": operator_factory(3.0),
        "lambda": lambda x: [y for y in x if y in {"one", "two", "three"} and y not in LABELLED],
        "method": gnvpro.methods.GNvpro(
            solver=gnvpro.solvers.Dense(scaling=0.5),
            eliminator=gnvpro.heads.Newton(),
            batches=gnvpro.methods.Batches(7),
        ),
        "penalty": gnvpro.Tikhonov(1.0, gnvpro.time_differences),
        "set": {"b", "a", "c"},
        "object": Attributes(a=torch.arange(3), b=np.float32(2.0), c=Slots([torch.tanh, np.exp, len])),
    }
    parts = {name: describe(name, value) for name, value in samples.items()}
    return {**parts, **model_parts(Net()), **{f"ode {k}": v for k, v in model_parts(ode()).items()}}


def ode() -> nn.Module:
    return nn.Sequential(gnvpro.networks.NeuralODE(2, 3, depth=2, final_time=1.0), nn.Linear(3, 2))


def test_no_description_holds_an_address() -> None:
    for name, text in everything().items():
        assert "0x" not in text, name


@pytest.mark.slow
def test_another_process_describes_equal_things_alike() -> None:
    script = f"import sys; sys.path[:0] = {[str(Path(__file__).parent)]}; import test_fingerprint as t; print(t.everything())"
    environment = {"PYTHONHASHSEED": "7", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    sys.path[:0] = [str(Path(__file__).parent)]
    try:
        import test_fingerprint as here  # the same module name as there
    finally:
        del sys.path[0]
    assert done.stdout.strip() == str(here.everything())


def test_an_expanded_number_has_the_digest_of_its_copy() -> None:
    """torch counts one number as contiguous, whatever its stride."""
    for tensor in (torch.tensor([2.0]).expand(1), torch.tensor(2.0).expand(1, 1), torch.arange(3.0)[::2].expand(2, 2)):
        assert digest([tensor]) == digest([torch.tensor(tensor.tolist())])
    assert digest([torch.tensor(2.0).expand(1)]) != digest([torch.tensor(3.0).expand(1)])
