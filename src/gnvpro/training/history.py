"""History of a training run, one record per iteration."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from gnvpro.extras import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One iteration: the last accepted model after it, and its trial.

    The first record of a run is its start, before any trial: `accepted` is true, and fields of a trial are None.

    Args:
        iteration: number of the iteration, from zero.
        loss: the objective Phi, misfit and penalties, on the batch trained on.
        misfit: the mean loss.
        gradient_norm: norm of the gradient of the objective.
        radius: radius that bounded the trial.
        ratio: actual over predicted reduction.
        rank: dimension of the space the step was taken from.
        accepted: whether the trial became the new model.
        work: work units since the start of the run.
        seconds: seconds since the start of the run.
        inner_seconds: seconds of these that the elimination of the head took.
        accuracy: share of samples classified correctly.
        validation_loss: misfit on the validation set, without penalties.
        validation_accuracy: share of the validation set classified correctly.
        solver: name of the solver that made the step.
        damping: damping of the trial, if the solver is dense.
        level: level of a training from shallow to deep.
        sweep: number of the sweep over the batches; None if the losses are of the whole training set.
        batch: number of the batch in the sweep; None like `sweep`.
        note: a remark.
        theta_penalty: penalty of theta in this loss.
        head_penalty: penalty of the head in this loss.
        noise: estimated noise, if penalties are found from the data.
        effective_parameters: effective number of parameters, if penalties are found from the data.
        evidence: logarithm of the evidence, if penalties are found from the data.
        learning_rate: learning rate of steps on random batches, relative to the size of the weights.
        metrics: the user's metrics, on the validation set if given, else on all samples.

    >>> start = Record(0, 0.5, 0.4, None, None, None, None, True, work=1.0, seconds=0.1, inner_seconds=0.0)
    >>> start.loss, start.radius is None
    (0.5, True)
    """

    iteration: int
    loss: float
    misfit: float
    gradient_norm: float | None
    radius: float | None
    ratio: float | None
    rank: int | None
    accepted: bool
    work: float  # work units since the start of the run
    seconds: float
    inner_seconds: float
    accuracy: float | None = None
    validation_loss: float | None = None
    validation_accuracy: float | None = None
    solver: str | None = None
    damping: float | None = None
    level: int = 0
    sweep: int | None = None
    batch: int | None = None
    note: str | None = None
    theta_penalty: float | None = None
    head_penalty: float | None = None
    noise: float | None = None
    effective_parameters: float | None = None
    evidence: float | None = None
    learning_rate: float | None = None
    metrics: dict[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return dataclasses.asdict(self)


class History(Sequence[Record]):
    """The records of a run, in order.

    Args:
        records: the first records. Default: none.

    >>> history = History()
    >>> history.append(Record(0, 0.5, 0.4, None, None, None, None, True, work=1.0, seconds=0.1, inner_seconds=0.0))
    >>> history.column("loss"), history[-1].work
    ([0.5], 1.0)
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records = list(records)

    def append(self, record: Record) -> None:
        """Add the record of one more iteration."""
        self.records.append(record)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> History: ...
    def __getitem__(self, index: int | slice) -> Record | History:
        return History(self.records[index]) if isinstance(index, slice) else self.records[index]

    def __len__(self) -> int:
        return len(self.records)

    def __repr__(self) -> str:
        if not self.records:
            return "History(empty)"
        first, last = self.records[0], self.records[-1]
        return f"History({len(self)} records, loss {first.loss:.4g} -> {last.loss:.4g}, {last.work:g} work units)"

    def column(self, name: str) -> list[Any]:
        """Return one field of every record."""
        return [*map(attrgetter(name), self.records)]

    def to_csv(self, path: str | Path) -> None:
        """Write one line per record; missing values are empty cells."""
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns_of(self.records[0] if self.records else None))
            writer.writerows(row_of(record) for record in self.records)

    def to_dataframe(self) -> Any:
        """Return the records as a pandas DataFrame."""
        pandas = need("pandas", "pandas")
        columns = columns_of(self.records[0] if self.records else None)
        return pandas.DataFrame([row_of(record) for record in self.records], columns=columns)

    def plot(self, against: str = "work") -> Figure:
        """Plot loss, accuracy, radius, damping or learning rate, gradient and penalties if they were recorded.

        Args:
            against: the horizontal axis: "work" (passes over the training set), "seconds" or "iteration".

        Returns:
            A matplotlib figure. A notebook shows it; elsewhere use `history.plot().savefig("run.png")`, or
            `matplotlib.pyplot.show()` if pyplot was imported before.

        Raises:
            ImportError: matplotlib is not installed (the extra `plot`).
        """
        from gnvpro.training.plots import history_figure

        return history_figure(self, against)


FIELDS = [field.name for field in dataclasses.fields(Record) if field.name != "metrics"]


def columns_of(record: Record | None) -> list[str]:
    """Return the columns of a table of such records: their fields, and a column per metric."""
    return FIELDS if record is None else [*FIELDS, *(record.metrics or {})]


def row_of(record: Record) -> list[Any]:
    """Return the values of a record in these columns."""
    own = record.metrics or {}
    return [own[name] if name in own else attrgetter(name)(record) for name in columns_of(record)]
