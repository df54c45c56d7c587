"""Tables and model files that are damaged at random, drawn by a seed, and how the command line must answer.

    gnvpro train      a model; or exit 1, a last line that begins with "gnvpro: ", and nothing in --out
    gnvpro predict    the answer of the sound file if the bytes are the same; else exit 1 and a line that names the file
    both              no traceback, within the limits on memory and seconds that the caller sets

Most tables are only read (`prepared`), since reading decides; one in eight is trained on.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from gnvpro.cli import app
from gnvpro.cli.app import one_line
from gnvpro.sklearn import GNvproRegressor
from gnvpro.tabular import model_file
from gnvpro.tabular.model_file import TableModel
from gnvpro.tabular.order import TableOrder
from gnvpro.tabular.prepare import prepared
from gnvpro.tabular.table_columns import Columns

SOUND = "a,b,kind,y\n" + "".join(f"{k / 24:.3f},{k % 7},{'uvw'[k % 3]},{k * k / 99:.4f}\n" for k in range(24))
WORDS = [
    "",
    "?",
    "NA",
    "1e400",
    "-inf",
    "nan",
    "0x10",
    "1,5",
    '"',
    "'",
    "\\",
    "ä€",
    "\x00",
    "2024-01-02",
    "x" * 70000,
    "=1+1",
    "#",
]
Draw = random.Random


def cells(text: str) -> list[list[str]]:
    """Split into lines and cells."""
    return [line.split(",") for line in text.splitlines()]


def joined(rows: list[list[str]]) -> bytes:
    """Put lines and cells together again."""
    return ("\n".join(",".join(row) for row in rows) + "\n").encode("utf-8", "surrogatepass")


def cell(draw: Draw) -> bytes:
    rows = cells(SOUND)
    for _ in range(draw.choice([1, 1, 3, 20])):
        rows[draw.randrange(len(rows))][draw.randrange(4)] = draw.choice(WORDS)
    return joined(rows)


def column(draw: Draw) -> bytes:
    rows, k, word = cells(SOUND), draw.randrange(4), draw.choice(WORDS)
    return joined([rows[0], *([*row[:k], word, *row[k + 1 :]] for row in rows[1:])])


def lines(draw: Draw) -> bytes:
    rows = cells(SOUND)
    kept = draw.choice([0, 1, 2, 3, 6, len(rows)])
    extra = [draw.choice(rows)[: draw.randrange(6)] + ["7"] * draw.randrange(3)] if draw.random() < 0.5 else []
    return joined(rows[:kept] + extra)


def names(draw: Draw) -> bytes:
    rows = cells(SOUND)
    rows[0] = [draw.choice([*rows[0], *WORDS, "y", "row", "<b>", "$\\frac{$"]) for _ in rows[0]]
    return joined(rows)


def characters(draw: Draw) -> bytes:
    content = bytearray(SOUND.encode())
    for _ in range(draw.choice([1, 2, 10, 200])):
        content[draw.randrange(len(content))] = draw.randrange(256)
    return bytes(content)


def encoding(draw: Draw) -> bytes:
    text = SOUND.replace("u", "ü")
    return text.replace("\n", draw.choice(["\n", "\r", "\r\n", "\n\n", ";"])).encode(
        draw.choice(["utf-8", "utf-8-sig", "utf-16", "latin-1", "utf-32"])
    )


def noise(draw: Draw) -> bytes:
    return draw.randbytes(draw.choice([0, 1, 3, 100, 100_000]))


DAMAGES: list[Callable[[Draw], bytes]] = [cell, cell, column, lines, names, characters, encoding, noise]


@cache
def model_bytes() -> bytes:
    """A sound model of two inputs."""
    X = np.random.default_rng(0).normal(size=(30, 3))
    model = TableModel(
        GNvproRegressor(random_state=0, work=5).fit(X, X[:, 0]), Columns({"a": (), "b": ("p", "q")}, ("t",))
    )
    with tempfile.TemporaryDirectory() as folder:
        model_file.save(Path(folder) / "model.safetensors", model)
        return (Path(folder) / "model.safetensors").read_bytes()


def damaged_model(draw: Draw) -> bytes:
    """Flip bits, cut, extend, or put a piece in another place."""
    content = bytearray(model_bytes())
    k, n = draw.randrange(len(content)), draw.choice([1, 8, 100])
    how = draw.randrange(5)
    if how == 0:
        content[k] ^= 1 << draw.randrange(8)
    elif how == 1:
        del content[k:]
    elif how == 2:
        del content[k : k + n]
    elif how == 3:
        content[k:k] = draw.randbytes(n)
    else:
        content[: draw.randrange(1, 12)] = draw.randbytes(8)
    return bytes(content)


def refused(line: str, where: Path) -> None:
    """Check that an error is one sentence, and names the file or an option."""
    assert line.strip(), "an error without a message"
    assert "\n" not in line.strip(), f"an error of several lines: {line[:300]}"
    assert len(line) < 2100, f"an error of {len(line)} characters"
    assert where.name in line or "--" in line, f"an error that names neither the file nor an option: {line[:300]}"


def check(seed: int) -> None:
    """Raise an AssertionError, or the error itself, if the answer to this file is not as it must be."""
    draw = Draw(seed)
    with tempfile.TemporaryDirectory() as folder:
        if draw.random() < 0.4:
            check_model(draw, Path(folder))
        else:
            check_table(draw, Path(folder))


def check_table(draw: Draw, folder: Path) -> None:
    """Read, or train on, a damaged table."""
    damage = draw.choice(DAMAGES)
    path, out = folder / "table.csv", folder / "run"
    path.write_bytes(damage(draw))
    if draw.random() < 7 / 8:
        try:
            prepared(TableOrder(path, ("y",), False, out, drop_incomplete=draw.random() < 0.5), lambda text: None)
        except (ValueError, OSError) as error:
            refused(one_line(str(error)), path)
        return
    words = [
        "train",
        path,
        "--target",
        "y",
        "--out",
        out,
        "--work",
        3,
        *draw.choice([[], ["--drop-incomplete"], ["--classify"]]),
    ]
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exception is None or isinstance(done.exception, SystemExit), f"{damage.__name__}: {done.exception!r}"
    if done.exit_code == 0:
        assert (out / "model.safetensors").is_file()
        return
    last = done.output.strip().splitlines()[-1]
    assert last.startswith("gnvpro: "), f"{damage.__name__}: {done.output[-300:]}"
    assert not out.exists(), f"{damage.__name__}: refused, but {out} was written: {last}"


def check_model(draw: Draw, folder: Path) -> None:
    """Predict with a damaged model."""
    path, table = folder / "model.safetensors", folder / "new.csv"
    path.write_bytes(content := damaged_model(draw))
    table.write_text("a,b\n1,p\n")
    done = CliRunner().invoke(app, ["predict", str(path), str(table)])
    assert done.exception is None or isinstance(done.exception, SystemExit), f"{done.exception!r}"
    if content == model_bytes():
        assert done.exit_code == 0
        return
    assert done.exit_code == 1, f"a damaged model predicts: {done.output}"
    last = done.output.strip().splitlines()[-1]
    assert last.startswith("gnvpro: "), done.output[-300:]
    assert "model.safetensors" in last, last
