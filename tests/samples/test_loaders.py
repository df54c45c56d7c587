"""Datasets and DataLoaders train as the tensors they hold; what would change from pass to pass is refused or welcome."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, TensorDataset

import gnvpro
from gnvpro.objectives.stream import Stream
from gnvpro.policy import Policy, SamplePolicy
from gnvpro.samples.source import Part, rechunked

F64 = torch.float64


def samples(labels: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(50, 2, dtype=F64, generator=generator)
    y = torch.stack([torch.sin(2 * x[:, 0]) + 0.3 * x[:, 1], x[:, 0] * x[:, 1]], 1)
    return x, y.argmax(1) if labels else y


def network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)).double()


class Read(IterableDataset):
    """Samples one after the other, without a length."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        yield from zip(*samples(), strict=True)


class Noisy(Dataset):
    """Another sample at every call."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x, y = samples()
        return x[i] + 0.01 * torch.randn(2, dtype=F64), y[i]


def whole() -> TensorDataset:
    return TensorDataset(*samples())


class Backwards(Sampler[int]):
    """Another order in every pass."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        yield from torch.randperm(50, generator=torch.Generator().manual_seed(self.passes)).tolist()


class Turning(IterableDataset):
    """Samples in another order in every pass."""

    passes = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.passes += 1
        yield from zip(*(each.roll(self.passes, 0) for each in samples()), strict=True)


LOADERS = {
    "dataset": whole,
    "shuffled": lambda: DataLoader(whole(), batch_size=8, shuffle=True),
    "shuffled, the last batch dropped": lambda: DataLoader(whole(), batch_size=8, shuffle=True, drop_last=True),
    "the last batch dropped": lambda: DataLoader(whole(), batch_size=8, drop_last=True),
    "a sampler": lambda: DataLoader(whole(), batch_size=8, sampler=Backwards()),
    "a batch sampler": lambda: DataLoader(whole(), batch_sampler=BatchSampler(Backwards(), 7, drop_last=False)),
    "no batches": lambda: DataLoader(
        [tuple(each[i : i + 5] for each in samples()) for i in range(0, 50, 5)], batch_size=None
    ),
    "iterable in another order": Turning,
    "own collate": lambda: DataLoader(
        list(zip(*samples(), strict=True)),  # type: ignore[arg-type]
        batch_size=8,
        shuffle=True,
        collate_fn=lambda rows: [torch.stack(each) for each in zip(*rows, strict=True)],
    ),
    "batches of 8": lambda: DataLoader(whole(), batch_size=8),
    "batches of 50": lambda: DataLoader(whole(), batch_size=50),
    "nothing to drop": lambda: DataLoader(whole(), batch_size=10, drop_last=True),
    "another order": lambda: DataLoader(TensorDataset(*(each.flip(0) for each in samples())), batch_size=7),
    "iterable": Read,
    "iterable, batches of 9": lambda: DataLoader(Read(), batch_size=9),
    "parts of a dataset": lambda: torch.utils.data.ConcatDataset(
        [TensorDataset(*(each[:20] for each in samples())), TensorDataset(*(each[20:] for each in samples()))]
    ),
}
STREAMED = Policy(samples=SamplePolicy(held_memory=0.0))
OPTIONS: dict[str, Any] = {"loss": "least_squares", "theta_penalty": 1e-4, "head_penalty": 1e-4}


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("solver", ["krylov", "dense"])
@pytest.mark.parametrize("held", [True, False])
def test_a_loader_trains_as_its_tensors(name, solver, held):
    """Read once and held, or read again in every pass."""
    options = {**OPTIONS, "solver": solver, "iterations": 3}
    expected = gnvpro.train(network(), *samples(), validation=samples(), **options)
    policy = Policy() if held else STREAMED
    problem = gnvpro.Problem(network(), LOADERS[name](), policy=policy, **OPTIONS)
    assert isinstance(problem.inputs, Stream) != held
    result = gnvpro.train(network(), LOADERS[name](), validation=LOADERS[name](), policy=policy, **options)
    assert result.history.column("loss") == pytest.approx(expected.history.column("loss"), rel=1e-10)
    scores = result.history.column("validation_loss")
    assert scores == pytest.approx(expected.history.column("validation_loss"), rel=1e-10)
    assert result.work == expected.work


@pytest.mark.slow
def test_workers_change_nothing():
    expected = gnvpro.train(network(), *samples(), solver="krylov", iterations=1, **OPTIONS)
    loader = DataLoader(whole(), batch_size=10, num_workers=2, persistent_workers=True)
    result = gnvpro.train(network(), loader, solver="krylov", iterations=1, **OPTIONS)
    assert result.history[-1].loss == pytest.approx(expected.history[-1].loss, rel=1e-10)


def test_weights_and_several_inputs_of_a_loader():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.inner, self.head = nn.Linear(2, 4, dtype=F64), nn.Linear(4, 2, dtype=F64)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.head(torch.tanh(self.inner(torch.stack([a, b], 1))))

    x, y = samples()
    weights = torch.rand(50, dtype=F64, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    items = [((a, b), c, w) for (a, b), c, w in zip(x, y, weights, strict=True)]
    by_name = [({"b": b, "a": a}, c, w) for (a, b), c, w in items]
    options = {**OPTIONS, "solver": "krylov", "iterations": 2}
    expected = gnvpro.train(Two(), (x[:, 0], x[:, 1]), y, sample_weight=weights, **options)
    for given in (items, by_name):
        result = gnvpro.train(Two(), DataLoader(given, batch_size=8), **options)  # type: ignore[arg-type]
        assert result.history[-1].loss == pytest.approx(expected.history[-1].loss, rel=1e-10)


def with_replacement() -> DataLoader:
    return DataLoader(whole(), batch_size=8, sampler=RandomSampler(whole(), replacement=True))


REFUSED = [
    (with_replacement, ValueError, "two passes over inputs differ: 50 samples each, with other content"),
    (Noisy, ValueError, "two passes over inputs differ: 50 samples each, with other content"),
    (lambda: DataLoader(samples()[0], batch_size=8), TypeError, r"must give \(inputs, targets\) .*got Tensor"),
    (lambda: TensorDataset(*(each[:0] for each in samples())), ValueError, "inputs is empty"),
]


def value_by(loader: Any) -> float:
    problem = gnvpro.Problem(network(), loader, **OPTIONS)
    return problem.reduced.at(problem.theta()).value


@pytest.mark.parametrize(("make", "error", "message"), REFUSED)
def test_what_cannot_be_one_function_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        gnvpro.train(network(), make(), iterations=1, solver="krylov", **OPTIONS)
    with pytest.raises(error, match=message):
        value_by(make())


def test_a_loader_that_ends_early_the_second_time_is_an_error():
    class Shrinking(IterableDataset):
        passes = 0

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            self.passes += 1
            yield from list(zip(*samples(), strict=True))[: 50 if self.passes < 3 else 40]

    with pytest.raises(ValueError, match="two passes over inputs differ: 50 samples, then 40"):
        gnvpro.train(network(), Shrinking(), iterations=1, **OPTIONS)


def test_a_loader_brings_its_own_targets():
    with pytest.raises(TypeError, match="brings its own targets"):
        gnvpro.train(network(), whole(), samples()[1], **OPTIONS)


STOCHASTIC = {
    "shuffled": lambda: DataLoader(whole(), batch_size=8, shuffle=True, drop_last=True),
    "augmented": lambda: DataLoader(Noisy(), batch_size=8, shuffle=True),
    "iterable": lambda: DataLoader(Read(), batch_size=8),
    "dataset": whole,
}


@pytest.mark.parametrize("method", ["adam", "nesterov", "adam-vpro"])
@pytest.mark.parametrize("name", STOCHASTIC)
def test_stochastic_methods_take_a_loader_as_it_is(name, method):
    torch.manual_seed(0)
    result = gnvpro.train(network(), STOCHASTIC[name](), validation=whole(), method=method, work=40, **OPTIONS)
    assert result.history[-1].validation_loss < result.history[0].validation_loss


def test_a_stochastic_method_goes_through_the_batches_of_the_loader():
    seen: list[int] = []

    class Counted(TensorDataset):
        def __getitem__(self, i: int) -> Any:
            seen.append(i)
            return super().__getitem__(i)

    data = Counted(*samples())
    gnvpro.train(network(), DataLoader(data, batch_size=10), loss="least_squares", method="adam", iterations=1, work=10)
    assert seen[-100:-50] == list(range(50)), "the epoch, in the loader's order, before the reading after it"


def test_classification_by_an_augmented_loader_ends():
    class Labels(Noisy):
        def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
            return super().__getitem__(i)[0], samples(labels=True)[1][i]

    torch.manual_seed(0)
    loader = DataLoader(Labels(), batch_size=10, shuffle=True)
    result = gnvpro.train(network(), loader, loss="multinomial", method="adam", iterations=2)
    assert result.history[-1].accuracy is not None


def test_batches_by_number_need_an_order():
    method = gnvpro.methods.GNvpro(solver="krylov", batches=gnvpro.methods.Batches(20))
    result = gnvpro.train(network(), whole(), method=method, work=30, **OPTIONS)
    expected = gnvpro.train(network(), *samples(), method=method, work=30, **OPTIONS)
    assert result.history[-1].loss == pytest.approx(expected.history[-1].loss, rel=1e-8)
    with pytest.raises(ValueError, match="draws samples by their number"):
        gnvpro.train(network(), Read(), method=method, work=30, policy=STREAMED, **OPTIONS)


def test_samples_that_change_go_to_the_batches_of_their_loader():
    torch.manual_seed(0)
    loader = DataLoader(Noisy(), batch_size=8, shuffle=True)
    with pytest.warns(UserWarning, match="change from pass to pass"):
        result = gnvpro.train(network(), loader, validation=whole(), work=40, **OPTIONS)
    assert "AdamVPro" in result.setup["method"]
    assert result.history[-1].validation_loss < result.history[0].validation_loss


@pytest.mark.parametrize("method", ["gauss-newton", "lbfgs-vpro"])
def test_samples_that_change_are_refused_by_methods_that_need_one_function(method):
    with pytest.raises(ValueError, match="method='adam-vpro'"):
        gnvpro.train(network(), DataLoader(Noisy(), batch_size=8), method=method, iterations=1, **OPTIONS)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_single_precision_loader_trains_a_deep_network(shuffle):
    x, y = (each.float() for each in samples())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2))
    same = copy.deepcopy(model)
    loader = DataLoader(TensorDataset(x, y), batch_size=10, shuffle=shuffle)
    result = gnvpro.train(model, loader, iterations=5, **OPTIONS)
    expected = gnvpro.train(same, x, y, iterations=5, **OPTIONS)
    assert result.history[-1].loss == expected.history[-1].loss
    streamed = gnvpro.train(model, loader, iterations=2, policy=STREAMED, **OPTIONS)
    assert streamed.history[-1].loss <= 1.01 * result.history[-1].loss


def test_samples_of_a_tensor_dataset_are_not_read_one_by_one():
    data = whole()
    problem = gnvpro.Problem(network(), DataLoader(data, batch_size=1, shuffle=True), **OPTIONS)
    assert problem.inputs.data_ptr() == data.tensors[0].data_ptr()


class Counted(Part):
    """A part that counts how often its length is taken."""

    calls = 0

    def __len__(self) -> int:
        Counted.calls += 1
        return super().__len__()


def lengths_taken(parts: int) -> int:
    """Calls of len() to join this many parts of 2 samples into one chunk."""
    Counted.calls = 0
    chunks = list(rechunked((Counted(torch.zeros(2, 1)) for _ in range(parts)), 2 * parts))
    assert [len(chunk) for chunk in chunks] == [2 * parts]
    return Counted.calls


def test_joining_parts_takes_time_in_proportion_to_their_number():
    assert lengths_taken(400) <= 4 * lengths_taken(100) + 10


class Reads(TensorDataset):
    """A Dataset that counts the samples that are read from it."""

    count = 0

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        self.count += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("shape", ["dataset", "loader"])
@pytest.mark.parametrize("penalty", [None, "auto"])
def test_a_problem_reads_a_loader_no_more_often_than_it_needs(shape, penalty):
    data, sniffed = Reads(*samples()), 10  # samples by which the model is tried
    problem = gnvpro.Problem(
        network(),
        DataLoader(data, batch_size=10) if shape == "loader" else data,
        loss="least_squares",
        theta_penalty=penalty,
        policy=STREAMED,
    )
    passes = 1 if penalty is None else 3  # "auto" needs the mean of the targets, then their variance
    sniffed = sniffed if shape == "loader" else 50
    assert data.count <= passes * 50 + 2 * sniffed
    assert len(problem.inputs) == 50
