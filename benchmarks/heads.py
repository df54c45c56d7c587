"""Measure large heads: seconds, products of conjugate gradients and peak memory of one elimination by Newton's method.

    python -m benchmarks.heads [--features 512] [--classes 200] [--samples 5000] [--kind tanh ...] [--threads 2]

Kinds of features: "gauss" are independent, "tanh" and "relu" come from a random layer on 50 inputs. Classes are
drawn ("...-random"), or are the largest of as many random linear functions of the features. Goals: 512 x 200 on 5000
samples in 5 s; 4096 x 1000 on 10,000 samples in two minutes and 2 GB; each to a gradient of 1e-8 of the gradient at
W = 0. The first elimination starts from zero, the second from its result, with features changed by 1%.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch
from torch import Tensor
from torch.nn import functional as F

from gnvpro.head import newton_cg
from gnvpro.head.newton import HeadObjective
from gnvpro.heads import NewtonCG
from gnvpro.losses import Multinomial
from gnvpro.problem.misfit import Misfit

KINDS = ("gauss-random", "gauss", "tanh-random", "tanh", "relu")
F64 = torch.float64


def case(kind: str, samples: int, features: int, classes: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    if kind.startswith("gauss"):
        Z = torch.randn(samples, features, generator=draw, dtype=F64)
    else:
        inputs = torch.randn(samples, 50, generator=draw, dtype=F64)
        A, b = (torch.randn(n, features, generator=draw, dtype=F64) for n in (50, 1))
        Z = (torch.tanh if kind.startswith("tanh") else torch.relu)(inputs @ A / 50**0.5 + b)
    if kind.endswith("random"):
        labels = torch.randint(0, classes, (samples,), generator=draw)
    else:
        labels = (Z @ torch.randn(features, classes, generator=draw, dtype=F64)).argmax(1)
    return torch.cat([Z, torch.ones(samples, 1, dtype=F64)], 1), labels


def timed(Z: Tensor, misfit: Misfit, penalty: float, start, made: list[int]):  # type: ignore[no-untyped-def]
    made[0], clock, cpu = 0, time.perf_counter(), time.process_time()
    fit = NewtonCG().fit(Z, misfit, penalty, start)
    return fit, time.perf_counter() - clock, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--penalty", type=float, default=1e-4)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    made, plain = [0], newton_cg.conjugate_gradients

    def counting(apply, *arguments):  # type: ignore[no-untyped-def]
        def call(D: Tensor) -> Tensor:
            made[0] += 1
            return apply(D)

        return plain(call, *arguments)

    newton_cg.conjugate_gradients = counting
    print(f"{args.features} x {args.classes}, {args.samples} samples, penalty {args.penalty:g}, {args.threads} threads")
    for kind in args.kind or KINDS:
        Z, labels = case(kind, args.samples, args.features, args.classes)
        misfit = Misfit.mean(Multinomial(), F.one_hot(labels, args.classes).to(F64))
        start = None
        for way in ("from zero", "from near by"):
            fit, seconds, cpu = timed(Z, misfit, args.penalty, start, made)
            inner = HeadObjective(Z, misfit, args.penalty)
            zero = inner.at_W(torch.zeros_like(fit.W)).gradient_norm
            print(
                f"{kind:13} {way:12} {seconds:6.1f} s by the clock, {cpu:6.1f} s of processors, {fit.iterations:3d} steps, "
                f"{made[0]:4d} products, gradient {inner.at_W(fit.W).gradient_norm / zero:.1e}, {fit.status.name}, at most "
                f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB",
                flush=True,
            )
            start = fit.warm_start
            Z = Z * (1 + 0.01 * torch.randn(Z.shape, generator=torch.Generator().manual_seed(1), dtype=F64))


if __name__ == "__main__":
    main()
