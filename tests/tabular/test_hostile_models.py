"""Files that claim to be a model of a table: each that is not sound is refused in one line, before memory is taken."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from gnvpro.sklearn import GNvproClassifier, GNvproRegressor
from gnvpro.tabular import model_file
from gnvpro.tabular.model_file import TableModel
from gnvpro.tabular.table_columns import Columns
from gnvpro.tensor_file import checksum

Header = dict[str, Any]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module", params=["regressor", "classifier"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that loads."""
    random = np.random.default_rng(0)
    X = random.normal(size=(40, 3))
    estimator = GNvproRegressor if request.param == "regressor" else GNvproClassifier
    y = X[:, 0] if request.param == "regressor" else np.where(X[:, 0] > 0.5, "u", np.where(X[:, 1] > 0, "v", "w"))
    frame = pandas.DataFrame({"a": X[:, 0], "b": np.where(X[:, 1] > 0, "p", "q")})
    columns = Columns({"a": "number", "b": "category"}, ("t",))
    model = TableModel(estimator(random_state=0, work=10).fit(frame, y), columns)
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    model_file.save(path, model)
    assert model_file.load(path).columns == model.columns
    return path


def rewritten(source: Path, target: Path, change: Callable[[Header, Tensors], object]) -> Path:
    """Write the model with another header or other tensors, and a checksum that is right for them."""
    with safe_open(source, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(file.metadata()["gnvpro"])
    changed = change(header, tensors)
    text = json.dumps(changed if isinstance(changed, list) else header)
    save_file(tensors, target, {"gnvpro": text, "sha256": checksum(tensors, text)})
    return target


def swapped(header: Header, tensors: Tensors) -> None:
    header["inputs"] = dict(reversed(header["inputs"].items()))


def first_layer(header: Header) -> Header:
    part = header["layers"]
    while part["kind"] != "Linear":
        part = next(p for _, p in part["parts"] if p["kind"] in ("Linear", "Sequential"))
    return part["settings"]


CHANGES: dict[str, Callable[[Header, Tensors], object]] = {
    "no layers": lambda h, t: h.pop("layers"),
    "layers that are a number": lambda h, t: h.update(layers=3),
    "an unknown layer": lambda h, t: h.update(layers={"kind": "eval", "settings": {}}),
    "a layer of many rows": lambda h, t: first_layer(h).update(in_features=40_000, out_features=40_000),
    "a negative layer": lambda h, t: first_layer(h).update(in_features=-1),
    "no targets": lambda h, t: h.update(targets=[]),
    "targets of numbers": lambda h, t: h.update(targets=[1]),
    "one target more": lambda h, t: h["targets"].append("u"),
    "a target twice": lambda h, t: h.update(targets=["t", "t"]),
    "no inputs": lambda h, t: h.update(inputs={}),
    "inputs that are a list": lambda h, t: h.update(inputs=["a", "b"]),
    "an input more": lambda h, t: h["inputs"].update(c="number"),
    "an input of another kind": lambda h, t: h["inputs"].update(a="date"),
    "a level twice": lambda h, t: h["encoding"]["b"].update(levels=["p", "p"]),
    "a level that is a list": lambda h, t: h["encoding"]["b"].update(levels=[["p"], ["q"]]),
    "a level more": lambda h, t: h["encoding"]["b"].update(levels=["p", "q", "r"]),
    "means of other levels": lambda h, t: h["encoding"]["b"].update(means=[[0.0]]),
    "no encoding": lambda h, t: h.pop("encoding"),
    "no posterior": lambda h, t: h.pop("posterior"),
    "a posterior of nothing": lambda h, t: h.update(posterior={"of": "theta and head"}),
    "a posterior that is a word": lambda h, t: h.update(posterior="all"),
    "other classes": lambda h, t: h.update(classes=["u", "v", "w", "x"]),
    "classes of one kind": lambda h, t: h.update(classes=["u"]),
    "a reading of nothing": lambda h, t: h.update(reading=None),
    "a decimal sign of two": lambda h, t: h["reading"].update(decimal=".,"),
    "a tensor less": lambda h, t: t.pop(next(name for name in t if name.endswith("weight"))),
    "a tensor of another shape": lambda h, t: t.update({next(n for n in t if n.endswith("weight")): torch.zeros(2)}),
    "a header that is a list": lambda h, t: [h],
    "another format": lambda h, t: h.update(format="another"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_model_that_is_not_sound_is_refused(what: str, sound: Path, tmp_path: Path) -> None:
    path = rewritten(sound, tmp_path / "m.safetensors", CHANGES[what])
    with pytest.raises(ValueError, match=re.escape(str(path))):
        model_file.load(path)


def test_names_that_were_swapped_are_found_by_the_checksum(sound: Path, tmp_path: Path) -> None:
    with safe_open(sound, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = file.metadata()
    description = json.loads(header["gnvpro"])
    swapped(description, tensors)
    save_file(tensors, tmp_path / "m.safetensors", {**header, "gnvpro": json.dumps(description)})
    with pytest.raises(ValueError, match="damaged, or was edited"):
        model_file.load(tmp_path / "m.safetensors")


@pytest.mark.parametrize("k", range(6))
def test_a_flipped_byte_is_found(k: int, sound: Path, tmp_path: Path) -> None:
    content = bytearray(sound.read_bytes())
    content[(2 * k + 1) * len(content) // 12] ^= 0x10
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"m\.safetensors"):
        model_file.load(tmp_path / "m.safetensors")


@pytest.mark.slow
def test_a_small_file_of_large_layers_takes_no_memory(sound: Path, tmp_path: Path) -> None:
    path = rewritten(sound, tmp_path / "m.safetensors", CHANGES["a layer of many rows"])
    (tmp_path / "n.csv").write_text("a,b\n1,p\n")
    done = subprocess.run(
        [sys.executable, "-m", "gnvpro", "predict", path, tmp_path / "n.csv"],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30)),
    )
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert "no sound model" in done.stderr
