"""Dense against Krylov steps on the authors' CDR data: `python benchmarks/dense_cdr.py path/to/CDR_Data.mat [options]`."""

from __future__ import annotations

import argparse
import time

import scipy.io
import torch
from torch import Tensor, nn

import gnvpro
from gnvpro.networks import NeuralODE


def load(path: str, seed: int, scaled: bool) -> tuple[tuple[Tensor, Tensor], ...]:
    data = scipy.io.loadmat(path)
    Y, C = (torch.as_tensor(data[key].T, dtype=torch.float64) for key in ("Y", "C"))
    order = torch.randperm(len(Y), generator=torch.Generator().manual_seed(seed))
    parts = order.split([400, 200, 200])
    if scaled:
        train = Y[parts[0]]
        Y = 0.1 * (Y - train.mean(0)) / (train - train.mean(0)).std()
    return tuple((Y[part], C[part]) for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--split", type=int, help="one split of the data for all seeds; each seed its own by default")
    parser.add_argument("--raw", action="store_true")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--work", type=float, default=600)
    parser.add_argument("--solver", default="dense")
    parser.add_argument("--radius", action="store_true")
    parser.add_argument("--straight", action="store_true", help="no geodesic correction")
    parser.add_argument("--full", action="store_true", help="with the residual's coupling")
    args = parser.parse_args()
    torch.set_num_threads(1)
    control = "radius" if args.radius else "damping"
    exact = gnvpro.solvers.Dense(step_control=control, geodesic=not args.straight, residual_term=args.full)
    for seed in args.seeds:
        train, _, test = load(args.path, seed if args.split is None else args.split, not args.raw)
        torch.manual_seed(seed)
        model = nn.Sequential(NeuralODE(55, 8, args.depth, final_time=4.0), nn.Linear(8, 72)).double()
        start, cpu = time.perf_counter(), time.process_time()
        result = gnvpro.train(
            model,
            *train,
            loss="least_squares",
            solver=exact if args.solver == "dense" else args.solver,
            work=args.work,
            theta_penalty=gnvpro.Tikhonov(1e-10, gnvpro.time_differences),
            head_penalty=1e-10,
        )
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        with torch.no_grad():
            errors = [(((model(y) - c).norm(dim=1) / c.norm(dim=1)).mean().item()) for y, c in (train, test)]
        trials = len(result.history) - 1
        accepted = sum(result.history.column("accepted")[1:])
        rate = 1e3 * cpu / max(trials, 1)
        print(
            f"seed {seed}  train {errors[0]:.5f}  test {errors[1]:.5f}  {seconds:.1f} s ({cpu:.1f} of the processor)",
            f"{trials} trials, {accepted} accepted  {rate:.0f} ms a trial  {result.work:g} WU  {result.status.name}",
            sep="  ",
            flush=True,
        )


if __name__ == "__main__":
    main()
