"""Data larger than memory: peak memory and seconds of training from files, compared with the same data in memory.

    python -m benchmarks.streams                       10^6 samples of 20 inputs, MLP 20-64-64-3: in memory and from files
    python -m benchmarks.streams --flat [--out docs/images/streams.png]     one iteration, 10^4 to 10^7 samples, from files

Steps are those of L-BFGSvpro (a value and a gradient each), of a Krylov space of five dimensions (with --flat, of
one), or of the default call within ten work units. Each run is a separate process with one thread. It reports the
processor seconds in `train` and the peak of its resident memory minus what importing torch takes. "in memory,
little" has the same memory for passes as a stream, so it repeats its linearisations too. Files are np.memmap in
--folder (10^7 samples take 1.8 GB), written once.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

INPUTS, OUTPUTS, WIDTH = 20, 3, 64
WRITTEN_TOGETHER = 50_000
LITTLE = 4e7  # bytes
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)


def peak() -> float:
    """Peak resident memory in megabytes; `getrusage` would start with the peak of the parent process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def write(folder: Path, samples: int) -> None:
    """Write noisy waves of random inputs as float32, and class labels."""
    import numpy as np

    if (folder / f"labels-{samples}.npy").exists():
        return
    shapes = {"inputs": (samples, INPUTS), "targets": (samples, OUTPUTS)}
    maps = {
        name: np.lib.format.open_memmap(folder / f"{name}-{samples}.npy", "w+", np.float32, shape)
        for name, shape in shapes.items()
    }
    labels = np.lib.format.open_memmap(folder / f"labels-{samples}.npy", "w+", np.int64, (samples,))
    generator = np.random.default_rng(0)
    A = generator.normal(size=(INPUTS, OUTPUTS)) / INPUTS**0.5
    for start in range(0, samples, WRITTEN_TOGETHER):
        here = slice(start, min(start + WRITTEN_TOGETHER, samples))
        x = generator.normal(size=(here.stop - start, INPUTS))
        y = np.sin(2 * x @ A) + 0.1 * generator.normal(size=(here.stop - start, OUTPUTS))
        maps["inputs"][here], maps["targets"][here], labels[here] = x, y, y.argmax(1)


def run(folder: Path, samples: int, how: str, loss: str, way: str, iterations: int) -> dict[str, Any]:
    """Train in this process."""
    torch.set_num_threads(1)
    before = peak()
    import numpy as np

    import gnvpro

    targets = "targets" if loss == "least_squares" else "labels"
    data: list[Any] = [np.load(folder / f"{name}-{samples}.npy", mmap_mode="r") for name in ("inputs", targets)]
    if how != "files":
        data = [torch.from_numpy(np.array(each)) for each in data]
    torch.manual_seed(0)
    layers = [torch.nn.Linear(INPUTS, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, OUTPUTS)).double()
    memory = LITTLE if how == "in memory, little" else None
    ranks = {"krylov": 5, "least": 1}
    krylov = gnvpro.methods.GNvpro(solver=gnvpro.solvers.Krylov(max_rank=ranks.get(way, 1)), memory=memory)
    ways = {"lbfgs-vpro": gnvpro.methods.LBFGSvpro(memory=memory), "default": gnvpro.methods.GNvpro(memory=memory)}
    method = ways.get(way, krylov)
    penalties = {"theta_penalty": 1e-4, "head_penalty": 1e-4}
    begun = time.process_time()
    result = gnvpro.train(
        model, *data, loss=loss, method=method, iterations=iterations, work=10 if way == "default" else 200, **penalties
    )
    seconds = time.process_time() - begun
    parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return {
        "seconds": seconds,
        "megabytes": peak() - before,
        "loss": result.history[-1].loss,
        "work": result.work,
        "parameters": parameters.tolist(),
    }


def measured(folder: Path, samples: int, how: str, loss: str, way: str, iterations: int) -> dict[str, Any]:
    """Measure the same in a separate process."""
    command = [sys.executable, "-m", "benchmarks.streams", "--folder", str(folder), "--run"]
    told = json.dumps([samples, how, loss, way, iterations])
    out = subprocess.run([*command, told], check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def compare(folder: Path, samples: int, cases: list[tuple[str, str, int]]) -> None:
    write(folder, samples)
    print(f"{samples} samples x {INPUTS} inputs, MLP {INPUTS}-{WIDTH}-{WIDTH}-{OUTPUTS}, float64, one thread")
    print(f"{'loss':14} {'steps':10} {'data':18} {'seconds':>8} {'ratio':>6} {'MB':>6} {'work':>6} {'difference':>11}")
    for loss, way, iterations in cases:
        first: dict[str, Any] | None = None
        for how in ("in memory", "in memory, little", "files"):
            found = measured(folder, samples, how, loss, way, iterations)
            first = first or found
            ours, theirs = (torch.tensor(each["parameters"], dtype=torch.float64) for each in (found, first))
            difference = float((ours - theirs).norm() / theirs.norm())
            ratio = found["seconds"] / first["seconds"]
            print(
                f"{loss:14} {way:10} {how:18} {found['seconds']:8.1f} {ratio:6.2f} {found['megabytes']:6.0f} "
                f"{found['work']:6.0f} {difference:11.1e}",
                flush=True,
            )


def flat(folder: Path, out: Path, sizes: tuple[int, ...]) -> None:
    rows = []
    for samples in sizes:
        write(folder, samples)
        found = measured(folder, samples, "files", "least_squares", "least", 1)
        rows.append((samples, found["megabytes"], found["seconds"]))
        print(f"{samples:10d} samples {found['megabytes']:6.0f} MB {found['seconds']:8.1f} s", flush=True)
    draw(rows, out)


def draw(rows: list[tuple[int, float, float]], out: Path) -> None:
    from gnvpro.drawing import BLUE, ORANGE, new_figure

    figure = new_figure(7.0, 3.2)
    left, right = figure.subplots(1, 2)
    samples = [row[0] for row in rows]
    left.loglog(samples, [row[1] for row in rows], "o-", color=BLUE, label="measured")
    held = [row * 8 * (INPUTS + OUTPUTS + WIDTH + 1) / 1e6 for row in samples]
    left.loglog(samples, held, "--", color=ORANGE, label="inputs, targets and features in float64")
    left.set(xlabel="samples", ylabel="MB above importing torch", ylim=(10, 1e4))
    left.legend(frameon=False, fontsize=8)
    right.loglog(samples, [row[2] for row in rows], "o-", color=BLUE)
    right.set(xlabel="samples", ylabel="seconds of one iteration")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "gnvpro-streams")
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--flat", action="store_true")
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--out", type=Path, default=Path("runs/streams.png"))
    parser.add_argument("--case", action="append", choices=["lbfgs-vpro", "krylov", "multinomial", "default"])
    parser.add_argument("--run", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.run:
        print(json.dumps(run(args.folder, *json.loads(args.run))))
    elif args.flat:
        flat(args.folder, args.out, tuple(size for size in SIZES if size <= args.largest))
    else:
        cases = {
            "lbfgs-vpro": ("least_squares", "lbfgs-vpro", 2),
            "krylov": ("least_squares", "krylov", 1),
            "multinomial": ("multinomial", "lbfgs-vpro", 1),
            "default": ("least_squares", "default", 1000),
        }
        compare(args.folder, args.samples, [cases[name] for name in args.case or ("lbfgs-vpro", "krylov")])


if __name__ == "__main__":
    main()
