"""Error of a field during a run, on points that were not trained on; measuring it is not counted as time of the run."""

from __future__ import annotations

import csv
import time
from pathlib import Path

import torch

from gnvpro.experiments.equations.posed import CatalogueEntry, PosedEquations

LOOKS = 200  # at the error, along a run
COLUMNS = ("seconds", "loss", "error")


class Errors:
    """Seconds, loss and error during a run, written to a file row by row."""

    def __init__(self, problem: CatalogueEntry, posed: PosedEquations, seconds: float, file: Path) -> None:
        self.posed, self.step, self.file = posed, seconds / LOOKS, file
        want = posed.exact(posed.check)
        self.want, self.scale = want, float(want.square().mean().sqrt()) if problem.relative else 1.0
        self.rows: list[tuple[float, float, float]] = []
        self.begin()

    def begin(self) -> None:
        """The clock starts."""
        self.away, self.began = 0.0, time.process_time()

    def keep(self, before: float) -> None:
        """Continue with the rows of an interrupted run, up to the point of resumption."""
        self.rows = [row for row in self._read() if row[0] <= before]
        with open(self.file, "w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *self.rows])

    def _read(self) -> list[tuple[float, float, float]]:
        if not self.file.is_file():
            return []
        with open(self.file, newline="") as file:
            whole = [row for row in list(csv.reader(file))[1:] if len(row) == len(COLUMNS)]
        return [(float(a), float(b), float(c)) for a, b, c in whole]

    def clock(self) -> float:
        """Processor seconds of the run alone, since it began."""
        return time.process_time() - self.began - self.away

    @torch.no_grad()
    def now(self) -> float:
        """Error of the current field."""
        found = (
            self.posed.field(self.posed.check).view_as(self.want)
            if self.want.dim() > 1
            else self.posed.field(self.posed.check)[:, 0]
        )
        return float((found - self.want).square().mean().sqrt()) / self.scale

    def look(self, loss: float, at: float | None = None, always: bool = False) -> None:
        """Write down the error, not too often."""
        at = self.clock() if at is None else at
        if always or not self.rows or at - self.rows[-1][0] >= self.step:
            began = time.process_time()
            self.rows.append((at, loss, self.now()))
            with open(self.file, "w" if len(self.rows) == 1 else "a", newline="") as file:
                csv.writer(file).writerows([COLUMNS, *self.rows] if len(self.rows) == 1 else self.rows[-1:])
            self.away += time.process_time() - began
