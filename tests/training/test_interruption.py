"""Interruption and full disks: one line instead of a traceback, and a checkpoint from which the run continues."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

import gnvpro
from gnvpro.training import checkpoint

X = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
Y = torch.sin(4 * X)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def command(out, *more):
    words = ["run", "cdr", "--method", "adam", "--work", "100000", "--out", str(out), *more]
    return [sys.executable, "-c", "from gnvpro.cli import app; app()", *words]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_line_says_how_to_go_on(tmp_path, number):
    """The exit status is the customary one."""
    process = subprocess.Popen(
        command(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell in the background has it ignored
    )
    history, written = (
        tmp_path / "cdr" / "adam-seed0" / "history.csv",
        tmp_path / "cdr" / "adam-seed0" / "checkpoint.pt",
    )
    deadline = time.monotonic() + 300
    while not (history.is_file() and history.read_text().count("\n") > 2) and time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "Traceback" not in errors
    found = list((tmp_path / "cdr" / "adam-seed0").glob("checkpoint*"))
    assert found == [found[0]] or written.is_file()
    assert f"checkpoint written to {found[0]}; the same command with --resume continues" in errors.replace("\n", "")


def test_a_full_disk_names_the_checkpoint_and_keeps_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "run.ckpt"
    gnvpro.train(model(), X, Y, loss="least_squares", work=20, checkpoint=path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"checkpoint .*run\.ckpt.* cannot be written: No space left.*kept"):
        gnvpro.train(model(), X, Y, loss="least_squares", work=60, checkpoint=path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run.ckpt"]


def seal(path, content):
    buffer = io.BytesIO()
    torch.save(content, buffer)
    payload = buffer.getvalue()
    path.write_bytes(checkpoint.MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)


KEYS = ("identity", "memory", "cursor", "start", "theta", "W", "best", "sample_passes", "seconds", "history", "status")


@pytest.mark.parametrize("change", ["missing", "a text", "a list", "a tensor"])
@pytest.mark.parametrize("key", KEYS)
def test_sealed_but_odd_checkpoints_are_refused_by_name_and_the_model_stays(tmp_path, key, change):
    path = tmp_path / "run.ckpt"
    gnvpro.train(model(), X, Y, loss="least_squares", work=20, checkpoint=path)
    saved = checkpoint.load(path)
    odd = {"a text": "x", "a list": [1, 2], "a tensor": torch.ones(3)}
    if change == "missing":
        del saved[key]
    else:
        saved[key] = odd[change]
    seal(path, saved)
    fresh = model()
    before = {name: value.clone() for name, value in fresh.state_dict().items()}
    with pytest.raises(ValueError, match=r"^checkpoint .*run\.ckpt"):
        gnvpro.train(fresh, X, Y, loss="least_squares", work=20, checkpoint=path, resume=True)
    assert all(torch.equal(value, before[name]) for name, value in fresh.state_dict().items())


METHODS = {
    "krylov": {"solver": "krylov"},
    "dense": {"solver": "dense"},
    "hybrid": {"solver": "hybrid"},
    "auto": {},
    "lbfgs-vpro": {"method": "lbfgs-vpro"},
    "adam": {"method": "adam"},
    "adam-vpro": {"method": "adam-vpro"},
}


@pytest.mark.parametrize("way", METHODS)
def test_odd_states_of_a_method_are_refused_by_name_and_the_model_stays(tmp_path, way):
    """Every entry of the method's state is left out or replaced once; a harmless change may be accepted."""
    path = tmp_path / "run.ckpt"
    gnvpro.train(model(), X, Y, loss="least_squares", work=20, checkpoint=path, **METHODS[way])
    saved, refused = checkpoint.load(path), []
    for key in saved["method"]:
        for change in ("missing", "x", [1, 2], torch.ones(3)):
            state = {name: value for name, value in saved["method"].items() if name != key or change != "missing"}
            if change != "missing":
                state[key] = change
            seal(path, {**saved, "method": state})
            fresh = model()
            before = {name: value.clone() for name, value in fresh.state_dict().items()}
            try:
                gnvpro.train(fresh, X, Y, loss="least_squares", work=40, checkpoint=path, resume=True, **METHODS[way])
            except ValueError as error:
                refused.append(str(error))
                stays = (torch.equal(value, before[name]) for name, value in fresh.state_dict().items())
                refused[-1] += "" if all(stays) else " and the model has changed"
    assert len(refused) >= 2 * len(saved["method"])
    assert all(re.match(r"checkpoint .*run\.ckpt", text) and "has changed" not in text for text in refused)


@pytest.mark.parametrize("content", [[], "x", torch.ones(3), {}, {1: 2}])
def test_sealed_checkpoints_of_something_else_are_refused(tmp_path, content):
    path = tmp_path / "run.ckpt"
    seal(path, content)
    with pytest.raises(ValueError, match=r"^checkpoint .*run\.ckpt"):
        gnvpro.train(model(), X, Y, loss="least_squares", work=20, checkpoint=path, resume=True)
