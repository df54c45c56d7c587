"""The options of `gnvpro train`, and the checks that need neither the table nor a library."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gnvpro.arguments import check_choice, check_count, check_number
from gnvpro.files import CONFIG

MAX_SEED = 2**32 - 1  # of numpy's generators
MAX_TEST = 0.9


@dataclass(frozen=True)
class Reading:
    """Options for turning cells into numbers and categories."""

    decimal: str = "."
    missing: tuple[str, ...] = ()  # text that stands for an empty cell
    categories: tuple[str, ...] = ()  # columns that are no numbers, whatever they look like

    def __post_init__(self) -> None:
        check_choice("--decimal", self.decimal, (".", ","))


@dataclass(frozen=True)
class TableOrder:
    """Options of one training; None leaves the choice to the library."""

    data: Path
    targets: tuple[str, ...]
    classify: bool
    out: Path
    drop: tuple[str, ...] = ()
    drop_incomplete: bool = False
    hidden: tuple[int, ...] | None = None
    work: float | None = None
    test: float = 0.2
    seed: int = 0
    overwrite: bool = False
    reading: Reading = field(default_factory=Reading)
    verbose: bool = False

    def check(self) -> None:
        """Raise for what can be known to be wrong before the table is read."""
        if (self.out / CONFIG).is_file() and not self.overwrite:
            raise ValueError(f"{self.out} holds another run; choose another --out, or --overwrite what is there")
        if self.out.exists() and not self.out.is_dir():
            raise ValueError(f"--out {self.out} is a file; name a directory")
        if not self.targets:
            raise ValueError("--target must name a column to predict; it may be repeated")
        for option, names in (("--target", self.targets), ("--drop", self.drop)):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{option} {twice[0]!r} is given twice; give it once")
        both = sorted(set(self.targets) & set(self.drop))
        if both:
            raise ValueError(f"column {both[0]!r} is both --target and --drop; leave one of the two out")
        if self.classify and len(self.targets) > 1:
            raise ValueError(f"--classify takes one --target, got {len(self.targets)}; train one model for each")
        check_number("--test", self.test, 0.0)
        if self.test > MAX_TEST:
            raise ValueError(f"--test={self.test:g} leaves too few rows to train on; give a share such as 0.2")
        if check_count("--seed", self.seed, 0) > MAX_SEED:
            raise ValueError(f"--seed must be at most {MAX_SEED}, got {self.seed}")
        for width in self.hidden or ():
            check_count("--hidden", width, 1)
        if self.work is not None:
            check_number("--work", self.work, 0.0)
