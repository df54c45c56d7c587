"""A random campaign: methods, losses, dtypes, batches, memory, weights and degenerate data, drawn by a seed.

For every random case, `train` ends in one of two ways:

    an error         ValueError or TypeError, raised by gnvpro itself, and an unchanged model (or the last level's)
    a trained model   finite, the one on record; Phi does not rise on accepted steps; work stays within the budget; a run
                      that is interrupted and resumed has the same records; all that the result claims is true (`claims`)

`make fuzz` runs it for a while and prints every seed that fails; `python tests/project/test_fuzz.py 0 SEED` runs one again.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import gnvpro
from gnvpro.methods.stochastic import NESTEROV
from gnvpro.networks import NeuralODE, ResNet

sys.path.insert(0, str(Path(__file__).parents[2]))  # if run as a file
from tests.project.claims import check_claims, check_ways

SMALL_SUITE = 24
OVERFITS = "the validation loss was"  # a warning that random data may well deserve


class Stop(Exception):
    pass


def drawn(seed):
    """The arguments of `train` that a seed stands for, the model as a function that makes it."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    dtype = draw.choice([torch.float64, torch.float64, torch.float64, torch.float32, torch.bfloat16, torch.float16])
    n, n_in, width = draw.choice([1, 2, 3, 7, 20, 41]), draw.choice([1, 3]), draw.choice([1, 4, 9])
    loss = draw.choice(["least_squares", "least_squares", "logistic", "multinomial"])
    classes = draw.choice([2, 3, 5])
    inputs = torch.randn(n, n_in, generator=generator, dtype=torch.float64)
    degenerate = draw.choice(["", "", "constant", "duplicated", "zero", "huge", "tiny", "half zero"])
    if degenerate == "constant":
        inputs[:, 0] = 1.0
    elif degenerate == "duplicated":
        inputs[:] = inputs[0].clone()
    elif degenerate == "zero":
        inputs.zero_()
    elif degenerate == "huge":
        inputs *= 10.0 ** draw.choice([3, 6, 20, 200])
    elif degenerate == "tiny":
        inputs *= 10.0 ** draw.choice([-6, -20, -200])
    if loss == "least_squares":
        outputs = draw.choice([1, 2])
        targets = torch.randn(n, outputs, generator=generator, dtype=torch.float64)
        targets *= 10.0 ** draw.choice([0, 0, 0, -30, 6, 30, 60])
    elif loss == "logistic":
        outputs, targets = 1, torch.randint(0, 2, (n,), generator=generator)
    else:
        outputs, targets = classes, torch.randint(0, max(1, classes - draw.choice([0, 1])), (n,), generator=generator)
    levels = draw.choice([1, 1, 1, 2])
    kind = draw.choice(["mlp", "relu", "linear", "resnet", "plain", "bare"]) if levels == 1 else "ode"

    def model():
        torch.manual_seed(seed)
        body = {
            "mlp": lambda: nn.Sequential(nn.Linear(n_in, width), nn.Tanh()),
            "relu": lambda: nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
            "linear": lambda: nn.Linear(n_in, width),
            "resnet": lambda: ResNet(n_in, width, 2, 1.0),
            "plain": lambda: nn.Sequential(nn.Linear(n_in, width), nn.Softmax(1)),
            "bare": lambda: None,
            "ode": lambda: NeuralODE(n_in, width, depth=2),
        }[kind]()
        bias = draw_bias
        if body is None:
            return nn.Linear(n_in, outputs, bias=bias).to(dtype)
        return nn.Sequential(body, nn.Linear(width, outputs, bias=bias)).to(dtype)

    draw_bias = draw.random() < 0.8
    batches = draw.choice([None, None, gnvpro.methods.Batches(draw.choice([1, 2, 10]), iterations=draw.choice([1, 3]))])
    method = draw.choice(
        [
            *[
                gnvpro.methods.GNvpro(solver=solver, batches=batches)
                for solver in ("auto", "dense", "krylov", "hybrid")
            ],
            gnvpro.methods.GaussNewton(batches=batches),
            gnvpro.methods.LBFGSvpro(batches=batches),
            gnvpro.methods.TorchOptimizer(torch.optim.Adam, batch_size=draw.choice([1, 8])),
            gnvpro.methods.TorchOptimizer(NESTEROV, batch_size=draw.choice([1, 8])),
            gnvpro.methods.AdamVPro(batch_size=draw.choice([2, 8])),
        ]
    )
    weights = None
    if draw.random() < 0.3:
        weights = torch.rand(n, generator=generator, dtype=torch.float64)
        weights[torch.rand(n, generator=generator) < 0.4] = 0.0
        weights = weights * 10.0 ** draw.choice([0, 0, -200, 200])
    validation = (inputs.to(dtype), targets) if draw.random() < 0.4 else None
    arguments = {
        "inputs": inputs.to(dtype),
        "targets": targets,
        "loss": loss,
        "method": replace(method, levels=levels, memory=draw.choice([None, None, 1e4, 1e6]), seed=seed),
        "work": draw.choice([0, 1, 7, 40, 90]),
        "sample_weight": weights,
        "validation": validation,
        "keep": draw.choice(["last", "best"]) if validation else "last",
    }
    if draw.random() < 0.3:
        arguments["head_penalty"] = draw.choice([0.0, 1e-12, 1.0])
        arguments["theta_penalty"] = draw.choice([0.0, 1.0])
    return model, arguments, draw


def check(seed):
    """The fault in the case of this seed, an AssertionError or any other exception; None if all is well."""
    make, arguments, draw = drawn(seed)
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    try:
        result = gnvpro.train(model, **arguments)
    except (ValueError, TypeError) as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        where = traceback.extract_tb(refused.__traceback__)[-1].filename
        assert "gnvpro" in Path(where).parts, f"raised by {where}: {refused}"
        if "level 2 cannot begin" in str(refused):
            return
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "model changed"
        return
    check_records(result, arguments)
    check_model(result, arguments)
    check_claims(result, arguments, before)
    check_resumed(make, arguments, result, draw)
    with tempfile.TemporaryDirectory() as folder:
        check_ways(make, arguments, result, draw, Path(folder))


def check_records(result, arguments):
    history, method = result.history, arguments["method"]
    batched = getattr(method, "batches", None) is not None
    epsilon = torch.finfo(next(result.model.parameters()).dtype).eps
    if not batched and not isinstance(method, gnvpro.methods.TorchOptimizer | gnvpro.methods.AdamVPro):
        for before, after in itertools.pairwise(history):
            if (
                after.accepted and after.level == before.level and after.note is None
            ):  # a note: rounded, or eliminated anew
                assert after.loss <= before.loss + 10 * epsilon * abs(before.loss), "Phi rises on an accepted step"
    least = 1.0 * method.levels + batched  # every level begins with one elimination
    assert result.work <= max(arguments["work"], least) + 1e-9, f"work {result.work} beyond {arguments['work']}"


def check_model(result, arguments):
    model, last = result.model, result.history[-1]
    assert all(torch.isfinite(p).all() for p in model.parameters()), "parameters are not finite"
    if arguments["keep"] == "best":
        return
    rest = {k: arguments[k] for k in ("loss", "sample_weight")} | {"memory": arguments["method"].memory}
    penalties = {k: arguments[k] for k in ("head_penalty", "theta_penalty") if k in arguments}
    problem = gnvpro.Problem(model, arguments["inputs"], arguments["targets"], **rest, **penalties)
    here = problem.full.at(problem.full.join(problem.theta(), problem.W()))
    accepted = [record for record in result.history if record.accepted][-1]
    batched = getattr(arguments["method"], "batches", None) is not None
    loss = last.loss if batched else accepted.loss
    dtype = torch.finfo(next(model.parameters()).dtype)  # the parameters were rounded to it after the last record
    scale = max(1e3 * dtype.eps, 1e-10)
    # below its smallest number the dtype has only zero
    lost = problem.network.n_theta * problem.theta_penalty.alpha * (dtype.smallest_normal * dtype.eps) ** 2
    size = float((problem.misfit.gradient(here.outputs).abs() * (here.Z.abs() @ here.W.abs().T)).sum())
    assert abs(here.value - loss) <= scale * (abs(loss) + size) + lost + 1e-300, (
        f"on record {loss}, stored {here.value}"
    )


def check_resumed(make, arguments, result, draw):
    """Interrupted after a random record and resumed, the run has the same records."""
    if len(result.history) < 3:
        return
    stop_at = draw.randrange(1, len(result.history) - 1)

    def listener(record):
        if record.iteration == stop_at:
            raise Stop

    with tempfile.TemporaryDirectory() as folder:
        where = gnvpro.Checkpoint(Path(folder) / "run.ckpt", every=draw.choice([1, 3]))
        with contextlib.suppress(Stop):
            gnvpro.train(make(), **arguments, checkpoint=where, listeners=listener)
        again = gnvpro.train(make(), **arguments, checkpoint=where, resume=True)
    timed = ("seconds", "inner_seconds")
    for one, other in zip(result.history, again.history, strict=True):
        a, b = ({k: v for k, v in record.to_dict().items() if k not in timed} for record in (one, other))
        assert repr(a) == repr(b), f"resumed after record {stop_at}: {a} became {b}"


@pytest.mark.slow
@pytest.mark.filterwarnings(f"ignore:{OVERFITS}")
@pytest.mark.parametrize("seed", range(SMALL_SUITE))
def test_any_case_trains_or_is_refused(seed):
    check(seed)


def test_a_head_of_a_batch_with_fewer_rows_than_features_is_found_in_little_memory():
    check(17)


def campaign(seconds, first):
    """Run cases for this many seconds, at least one, each named by its seed; return the number that failed."""
    deadline, seed, failed = time.monotonic() + seconds, first, []
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", OVERFITS)
    torch.set_num_threads(1)
    while seed == first or time.monotonic() < deadline:
        try:
            check(seed)
        except Exception as error:
            failed.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            if seconds == 0:
                traceback.print_exc()
        seed += 1
    print(f"{seed - first} cases, seeds {first} to {seed - 1}; failed: {failed or 'none'}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(bool(campaign(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns() % 10**9)))
