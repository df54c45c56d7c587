"""A run that is killed and resumed is the run that was never killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import gnvpro
from gnvpro.methods.stochastic import NESTEROV
from gnvpro.networks import NeuralODE
from gnvpro.policy import Policy, SolverPolicy
from gnvpro.training import checkpoint

INPUTS = torch.linspace(-2, 2, 60, dtype=torch.float64).reshape(20, 3)
TARGETS = torch.sin(INPUTS.sum(1, keepdim=True))
LABELS = (INPUTS.prod(1) > 0).long()

KRYLOV = gnvpro.solvers.Krylov(max_rank=4)
RUNS = {
    "gnvpro": {"solver": KRYLOV, "loss": "multinomial"},
    "dense": {"solver": "dense", "loss": "multinomial"},
    "hybrid": {"solver": gnvpro.solvers.Hybrid(max_rank=3), "loss": "multinomial"},
    "gauss-newton": {"method": gnvpro.methods.GaussNewton(solver=KRYLOV)},
    "lbfgs-vpro": {"method": "lbfgs-vpro", "loss": "multinomial"},
    "adam-vpro": {"method": gnvpro.methods.AdamVPro(batch_size=6), "loss": "multinomial"},
    "adam": {"method": gnvpro.methods.TorchOptimizer(torch.optim.Adam, batch_size=6)},
    "nesterov": {"method": gnvpro.methods.TorchOptimizer(NESTEROV, batch_size=6)},
    "batches": {
        "method": gnvpro.methods.GNvpro(solver=KRYLOV, batches=gnvpro.methods.Batches(8, iterations=2)),
        "loss": "multinomial",
    },
    "levels": {"method": gnvpro.methods.GNvpro(levels=2, solver=KRYLOV), "keep": "best"},
}


def network(n_outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(NeuralODE(3, 4, depth=2, final_time=1.0), nn.Linear(4, n_outputs)).double()


def run(name: str, **more):
    settings = {"loss": "least_squares", "work": 40, **RUNS[name], **more}
    classify = settings["loss"] == "multinomial"
    targets = LABELS if classify else TARGETS
    model = network(2 if classify else 1)
    return gnvpro.train(model, INPUTS, targets, validation=(INPUTS[:5], targets[:5]), **settings)


def numbers(result) -> list[dict]:
    """The history without what depends on the clock."""
    return [{k: v for k, v in r.to_dict().items() if not k.endswith("seconds")} for r in result.history]


def assert_same(result, expected) -> None:
    for (name, value), other in zip(
        result.model.state_dict().items(), expected.model.state_dict().values(), strict=True
    ):
        assert torch.equal(value, other), name
    assert numbers(result) == numbers(expected)
    assert result.status == expected.status


class Interrupted(Exception):
    pass


def interrupted_and_resumed(name, stop, path, **more):
    """A run that stops after an iteration, and then continues."""

    def interrupt(record):
        if record.iteration >= stop:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(name, checkpoint=path, listeners=interrupt, **more)
    return run(name, checkpoint=path, resume=True, **more)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_interrupted_after_any_iteration_goes_on_to_the_same_bits(name, tmp_path):
    expected = run(name)
    last = len(expected.history) - 1
    for stop in sorted({1, 2, last // 2, last - 1}):
        assert_same(interrupted_and_resumed(name, stop, tmp_path / f"{stop}.checkpoint"), expected)


@pytest.mark.parametrize("loss", ["least_squares", "multinomial"])
def test_a_run_interrupted_while_either_kind_of_step_is_taken_goes_on_to_the_same_bits(tmp_path, loss):
    """`auto` alternates between cheap and exact steps."""
    cheap = "hybrid"
    policy = Policy(solver=SolverPolicy(cheap_first=0.0, least_window=4, judged_after=3))
    solver = gnvpro.solvers.Auto(max_rank=4, cost="work")
    more = {"work": 400, "iterations": 30, "solver": solver, "loss": loss, "policy": policy}
    expected = run("gnvpro", **more)
    kinds = [record.solver for record in expected.history]
    begun = [kinds.index(cheap), kinds.index("dense")]
    assert begun == sorted(begun)
    for stop in sorted({*begun, begun[1] - 1, *(first + 1 for first in begun)}):
        assert_same(interrupted_and_resumed("gnvpro", stop, tmp_path / f"{stop}.checkpoint", **more), expected)


@pytest.mark.slow
def test_a_process_killed_at_random_moments_goes_on_to_the_same_bits(tmp_path):
    """SIGKILL, once or more in every method; the same script run again each time."""
    rng = random.Random(20)
    script = [sys.executable, __file__, str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    killed = []
    for name in RUNS:
        process = subprocess.Popen(script, env=environment, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            if line.strip() == name:
                break
        time.sleep(rng.uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.stdout.close()
        if process.wait() == -signal.SIGKILL:
            killed.append(name)
    assert len(killed) >= 4, f"the killing came too late in most runs: {killed}"
    subprocess.run(script, env=environment, check=True, stdout=subprocess.DEVNULL)
    for name in RUNS:
        expected = run(name)
        assert json.loads((tmp_path / f"{name}.json").read_text()) == json.loads(json.dumps(numbers(expected))), name
        saved = torch.load(tmp_path / f"{name}.pt", weights_only=True)
        assert all(torch.equal(saved[k], v) for k, v in expected.model.state_dict().items()), name


def test_resume_starts_afresh_where_there_is_no_file(tmp_path):
    assert_same(run("gnvpro", checkpoint=tmp_path / "new", resume=True), run("gnvpro"))


def test_a_finished_run_is_returned_without_work(tmp_path):
    expected = run("gnvpro", checkpoint=tmp_path / "done")
    calls = []
    again = run("gnvpro", checkpoint=tmp_path / "done", resume=True, listeners=calls.append)
    assert_same(again, expected)
    assert calls == []


def test_without_resume_an_old_file_is_overwritten(tmp_path):
    path = tmp_path / "file"
    run("gnvpro", checkpoint=path, iterations=1)
    expected = run("gnvpro", checkpoint=path)
    assert_same(run("gnvpro", checkpoint=path, resume=True), expected)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"solver": gnvpro.solvers.Krylov(max_rank=3)}, r"method was .*max_rank=4.*, now it is .*max_rank=3"),
        ({"head_penalty": 0.5}, "head_penalty"),
        ({"method": gnvpro.methods.GNvpro(seed=7)}, "seed was 0, now it is 7"),
        ({"solver": None, "method": "lbfgs-vpro"}, "method was .*GNvpro.*, now it is .*LBFGSvpro"),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused_saying_which(change, told, tmp_path):
    path = tmp_path / "file"
    run("gnvpro", checkpoint=path)
    with pytest.raises(ValueError, match=told):
        run("gnvpro", checkpoint=path, resume=True, **change)


def test_a_checkpoint_of_another_model_or_other_data_is_refused(tmp_path):
    path = tmp_path / "file"
    arguments = {"loss": "least_squares", "work": 20, "checkpoint": path}
    gnvpro.train(network(1), INPUTS, TARGETS, **arguments)
    wider = nn.Sequential(NeuralODE(3, 5, depth=2, final_time=1.0), nn.Linear(5, 1)).double()
    with pytest.raises(ValueError, match="model"):
        gnvpro.train(wider, INPUTS, TARGETS, resume=True, **arguments)
    with pytest.raises(ValueError, match="inputs"):
        gnvpro.train(network(1), INPUTS + 1, TARGETS, resume=True, **arguments)
    with pytest.raises(ValueError, match="targets"):
        gnvpro.train(network(1), INPUTS, TARGETS + 1, resume=True, **arguments)


@pytest.mark.parametrize("position", [0, 10, 40, 100, -1])
def test_a_file_with_one_bad_byte_is_refused(position, tmp_path):
    path = tmp_path / "file"
    run("gnvpro", checkpoint=path)
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ValueError, match="checkpoint"):
        run("gnvpro", checkpoint=path, resume=True)


@pytest.mark.parametrize("length", [0, 5, 60, 1000])
def test_a_file_cut_short_is_refused(length, tmp_path):
    path = tmp_path / "file"
    run("gnvpro", checkpoint=path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match="checkpoint"):
        run("gnvpro", checkpoint=path, resume=True)


def test_a_refused_checkpoint_leaves_the_model_untouched(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"PK\x03\x04 something else")
    model = network(1)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match="was not written by"):
        gnvpro.train(model, INPUTS, TARGETS, loss="least_squares", checkpoint=path, resume=True)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_loading_never_executes_code(tmp_path):
    """A pickle that would call a function is refused by the loader, even with a right checksum."""
    import hashlib
    import io

    class Call:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    buffer = io.BytesIO()
    torch.save({"identity": Call()}, buffer)
    payload = buffer.getvalue()
    path = tmp_path / "file"
    path.write_bytes(checkpoint.MAGIC + hashlib.sha256(payload).hexdigest().encode() + b"\n" + payload)
    with pytest.raises(ValueError, match="checkpoint"):
        checkpoint.load(path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("make", "told"),
    [(lambda d: d, "directory"), (lambda d: d / "missing" / "file", "no directory")],
)
def test_a_place_where_no_checkpoint_can_be_written_is_refused_before_any_work(make, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        run("gnvpro", checkpoint=make(tmp_path))


def test_a_failed_write_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "file"
    checkpoint.save(path, {"a": 1})
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space left on device")))
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(path, {"a": 2})
    assert checkpoint.load(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_keyboard_interrupt_writes_the_last_iteration(tmp_path):
    path = tmp_path / "file"

    def interrupt(record):
        if record.iteration == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("adam", checkpoint=gnvpro.Checkpoint(path, every=1000), listeners=interrupt)
    assert len(checkpoint.load(path)["history"].splitlines()) == 4


if __name__ == "__main__":  # the script that is killed
    directory = Path(sys.argv[1])
    for name in RUNS:
        print(name, flush=True)
        result = run(
            name,
            checkpoint=gnvpro.Checkpoint(directory / f"{name}.checkpoint", every=2),
            resume=True,
            listeners=lambda record: time.sleep(0.01),
        )
        torch.save(result.model.state_dict(), directory / f"{name}.pt")
        (directory / f"{name}.json").write_text(json.dumps(numbers(result)))
