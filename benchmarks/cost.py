"""Cost of a step as ratios: derivatives over plain passes, inner solves over everything, growth, a small evaluation.

    python benchmarks/cost.py [--repetitions 20] [--threads 1] [--data-dir DIR] [--only passes]

1. Seconds and memory against the number of samples, with slopes in log-log scale (1 is linear).
2. J v + J' u of the features over one forward and backward pass of the feature extractor by autograd, and one
   Gauss-Newton product of the reduced objective (two passes, and the head's part) over one pass of the whole network.
   Repetitions are interleaved; ratios are medians over the rounds. Goal: 1.25.
3. Seconds in inner solves over all seconds of training on an Indian-Pines-sized problem with max_rank=50. Goal: 3%.
   Synthetic spectra of that size; with --data-dir the real ones (indian_pines/Indian_pines_corrected.mat and
   Indian_pines_gt.mat below it).
4. The cost model of `gnvpro.policy.cost`: seconds of a pass, an evaluation and an exact step, measured and predicted, and
   the constants that fit the measurements best (nonnegative least squares on ratios).
5. Value and gradient of the reduced objective for a small problem (400 samples, a 3-16-16-20 tanh network): as
   gnvpro computes them, by autograd, and by nothing but the tensor operations that cannot be left out.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import scipy.io
import scipy.optimize
import torch
from torch import Tensor, nn

import gnvpro
from gnvpro.methods.costs import prices_of, sizes_of
from gnvpro.methods.protocol import Budget, Start
from gnvpro.methods.step_solvers import Dense
from gnvpro.network.passes import PassPlan
from gnvpro.networks import MLP, ConvNet, NeuralODE
from gnvpro.objectives.reduced import ReducedPoint

F64 = torch.float64


@dataclass(frozen=True)
class Case:
    """A network of the paper on random data of the right size."""

    model: nn.Sequential
    inputs: Tensor
    targets: Tensor
    loss: str
    penalty: float
    chunk: int | None = None

    def point(self) -> ReducedPoint:
        """The reduced objective at the model's own theta."""
        penalties = {"theta_penalty": self.penalty, "head_penalty": self.penalty}
        problem = gnvpro.Problem(self.model, self.inputs, self.targets, loss=self.loss, **penalties)
        problem = problem.with_passes(PassPlan(self.chunk or self.inputs.shape[0]))
        return problem.reduced.at(problem.theta())


def flow_case(samples: int, n_inputs: int, width: int, depth: int, n_targets: int, penalty: float) -> Case:
    model = nn.Sequential(NeuralODE(n_inputs, width, depth), nn.Linear(width, n_targets)).to(F64)
    targets = torch.randn(samples, n_targets, dtype=F64)
    return Case(model, torch.randn(samples, n_inputs, dtype=F64), targets, "least_squares", penalty)


def indian_pines_case(samples: int) -> Case:
    model = nn.Sequential(NeuralODE(200, 32, 16), nn.Linear(32, 16)).to(F64)
    return Case(model, *synthetic_spectra(samples), "multinomial", 1e-3)


def convnet_case(samples: int) -> Case:
    images = torch.randn(samples, 3, 32, 32)
    return Case(ConvNet(), images, torch.randint(10, (samples,)), "multinomial", 1e-2, chunk=100)


def synthetic_spectra(samples: int) -> tuple[Tensor, Tensor]:
    """Spectra of 200 smooth bands in 16 overlapping classes, standardised sample by sample."""
    labels = torch.arange(samples) % 16
    smooth = torch.randn(16, 200, dtype=F64).cumsum(1)
    variation = torch.randn(samples, 10, dtype=F64) @ torch.randn(10, 200, dtype=F64).cumsum(1)
    return standardised(smooth[labels] + variation + torch.randn(samples, 200, dtype=F64)), labels


def indian_pines(folder: Path) -> tuple[Tensor, Tensor]:
    """Load the training pixels of Indian Pines: four fifths of at most 312 per class."""
    cube = scipy.io.loadmat(folder / "Indian_pines_corrected.mat")["indian_pines_corrected"]
    truth = torch.from_numpy(
        scipy.io.loadmat(folder / "Indian_pines_gt.mat")["indian_pines_gt"].astype("int64")
    ).flatten()
    spectra = torch.from_numpy(cube.astype("float64")).reshape(-1, cube.shape[-1])
    chosen = []
    for label in range(1, 17):
        pixels = (truth == label).nonzero()[:, 0]
        pixels = pixels[torch.randperm(len(pixels))]
        taken = min(len(pixels) - 10, 312)
        chosen.append(pixels[taken // 5 : taken])
    rows = torch.cat(chosen)
    return standardised(spectra[rows]), truth[rows] - 1


def standardised(spectra: Tensor) -> Tensor:
    return (spectra - spectra.mean(1, keepdim=True)) / spectra.std(1, keepdim=True)


CASES: dict[str, Callable[[], Case]] = {
    "cdr": lambda: flow_case(400, 55, 8, 8, 72, 1e-10),
    "dcr": lambda: flow_case(8000, 3, 16, 8, 882, 1e-10),
    "indian-pines": lambda: indian_pines_case(2957),
    "cifar10": lambda: convnet_case(1000),
}


def backprop(model: nn.Module, inputs: Tensor, chunk: int | None) -> Callable[[], object]:
    """One forward and backward pass by autograd, in the same chunks."""
    weights = list(model.parameters())
    with torch.no_grad():
        cotangent = torch.randn_like(model(inputs[:1])).expand(inputs.shape[0], -1).contiguous()
    size = chunk or inputs.shape[0]

    def run() -> object:
        parts = zip(inputs.split(size), cotangent.split(size), strict=True)
        gradients = [torch.autograd.grad(model(x), weights, c) for x, c in parts]
        return [sum(pieces) for pieces in zip(*gradients, strict=True)]

    return run


def seconds_of(tasks: dict[str, Callable[[], object]], repetitions: int) -> dict[str, list[float]]:
    """Seconds of each task; the tasks take turns, after two rounds to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for repetition in range(repetitions + 2):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if repetition >= 2:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(above: list[float], below: list[float]) -> float:
    """Median of the ratios of all rounds; other load slows both tasks of a round equally."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def passes(names: list[str], repetitions: int) -> None:
    print("\nderivatives over plain passes (ms)")
    print(f"{'':14}{'backprop F':>12}{'J v + J^T u':>13}{'ratio':>8}{'backprop':>12}{'GN product':>13}{'ratio':>8}")
    for name in names:
        case = CASES[name]()
        point = case.point()
        v, u = torch.randn_like(point.x), torch.randn_like(point.linearization.features)
        jvp, vjp, product = point.linearization.jvp, point.linearization.vjp, point.curvature().mv
        tasks: dict[str, Callable[[], object]] = {
            "features": backprop(case.model[:-1], case.inputs, case.chunk),
            "both": lambda jvp=jvp, vjp=vjp, v=v, u=u: (jvp(v), vjp(u)),
            "network": backprop(case.model, case.inputs, case.chunk),
            "product": lambda product=product, v=v: product(v),
        }
        s = seconds_of(tasks, max(5, repetitions // 2) if case.chunk else repetitions)
        ms = {key: 1e3 * statistics.median(values) for key, values in s.items()}
        print(
            f"{name:14}{ms['features']:12.2f}{ms['both']:13.2f}{median_ratio(s['both'], s['features']):8.2f}"
            f"{ms['network']:12.2f}{ms['product']:13.2f}{median_ratio(s['product'], s['network']):8.2f}",
            flush=True,
        )


def growth(repetitions: int) -> None:
    """Measure at ascending sample counts, so that the peak memory of the process belongs to the last count."""
    print("\ngrowth with the samples (Indian-Pines-sized network; memory: peak of the process above its start)")
    print(f"{'samples':>8}{'linearize ms':>14}{'eliminate ms':>14}{'GN product ms':>15}{'memory MB':>11}")
    start, table = peak_memory(), []
    for samples in (2000, 4000, 8000, 16000):
        case = indian_pines_case(samples)
        begin = time.perf_counter()
        point = case.point()
        inner = point.problem.meter.inner_seconds
        whole = time.perf_counter() - begin
        v, product = torch.randn_like(point.x), point.curvature().mv
        s = seconds_of({"product": lambda product=product, v=v: product(v)}, repetitions)
        table.append((samples, whole - inner, inner, min(s["product"]), peak_memory() - start))
        print(f"{samples:8d}" + "{:14.1f}{:14.1f}{:15.1f}".format(*(1e3 * x for x in table[-1][1:4])), end="")
        print(f"{table[-1][4]:11.0f}", flush=True)
    logs = torch.tensor(table, dtype=F64).log()
    x = logs[:, 0] - logs[:, 0].mean()
    slopes = (x @ logs[:, 1:]) / (x @ x)
    print(f"{'slope':>8}" + "{:14.2f}{:14.2f}{:15.2f}{:11.2f}".format(*slopes.tolist()))


def evaluation(repetitions: int) -> None:
    """Measure how close the evaluation is to the limit of eager tensors, for sizes at which Python costs as much as
    arithmetic.
    """
    inputs, targets = torch.randn(400, 3, dtype=F64), torch.randn(400, 20, dtype=F64)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 20)).to(F64)
    penalty, n = 1e-10, len(inputs)
    first = Case(model, inputs, targets, "least_squares", penalty).point()
    objective = first.problem.reduced
    features, weights = model[:-1], list(model[:-1].parameters())
    eye = penalty * torch.eye(17, dtype=F64)

    def head(Z: Tensor) -> Tensor:
        return torch.cholesky_solve(Z.T @ targets / n, torch.linalg.cholesky(Z.T @ Z / n + eye)).T

    def ours() -> object:
        point = objective.at(first.x, first)
        return point.value, point.gradient()

    def by_autograd() -> object:
        Z = nn.functional.pad(features(inputs), (0, 1), value=1.0)
        W = head(Z.detach())
        value = 0.5 * (Z @ W.T - targets).square().sum() / n + 0.5 * penalty * sum(w.square().sum() for w in weights)
        return float(value.detach()), torch.autograd.grad(value, weights)

    K0, b0, K1, b1 = (w.detach() for w in weights)

    def bare() -> object:
        u0 = torch.tanh(torch.addmm(b0, inputs, K0.T))
        u1 = torch.tanh(torch.addmm(b1, u0, K1.T))
        Z = nn.functional.pad(u1, (0, 1), value=1.0)
        W = head(Z)
        G = (Z @ W.T).sub_(targets)
        value = float(torch.linalg.vector_norm(G))
        c1 = (G @ W[:, :-1]).mul_(1 - u1 * u1)
        c0 = (c1 @ K1).mul_(1 - u0 * u0)
        return value, (c0.T @ inputs, c0.sum(0), c1.T @ u0, c1.sum(0))

    s = seconds_of({"gnvpro": ours, "autograd": by_autograd, "bare": bare}, 20 * repetitions)
    ms = {key: 1e3 * statistics.median(values) for key, values in s.items()}
    print(
        f"\nvalue and gradient, 400 samples, 3-16-16-20 (ms): gnvpro {ms['gnvpro']:.2f}, by autograd {ms['autograd']:.2f}, "
        f"bare operations {ms['bare']:.2f}; gnvpro / autograd {median_ratio(s['gnvpro'], s['autograd']):.2f}, "
        f"bare / autograd {median_ratio(s['bare'], s['autograd']):.2f}"
    )


MODEL_CASES: dict[str, tuple[int, int, list[int], int]] = {  # samples, inputs, widths, outputs
    "100 2-5-1": (100, 2, [5], 1),
    "400 3-16-16-20": (400, 3, [16, 16], 20),
    "2000 8-16-1": (2000, 8, [16], 1),
    "10000 3-30-1": (10_000, 3, [30], 1),
    "2000 20-32-32-1": (2000, 20, [32, 32], 1),
    "20000 20-32-2": (20_000, 20, [32], 2),
    "5000 50-32-10": (5000, 50, [32], 10),
}


def quickest(task: Callable[[], object], repetitions: int) -> float:
    """Least processor seconds of a task."""
    taken = []
    for _ in range(repetitions):
        begun = time.process_time()
        task()
        taken.append(time.process_time() - begun)
    return min(taken)


def model_cases() -> dict[str, gnvpro.Problem]:
    """Problems of several sizes, with layers that are dense or run several times."""
    made = {name: (MLP(i, w, n_outputs=o, dtype=F64), n, i, o) for name, (n, i, w, o) in MODEL_CASES.items()}
    cdr = nn.Sequential(NeuralODE(55, 8, 8, 4.0), nn.Linear(8, 72)).to(F64)
    made["cdr"] = (cdr, 400, 55, 72)
    return {
        name: gnvpro.Problem(model, torch.randn(n, i, dtype=F64), torch.randn(n, o, dtype=F64), loss="least_squares")
        for name, (model, n, i, o) in made.items()
    }


def cost_model(repetitions: int) -> None:
    """Measured and predicted costs, and the constants that fit best."""
    rows, seconds = [], []
    print("\ncost model (ms, measured / predicted)")
    print(f"{'':18}{'pass':>18}{'evaluation':>18}{'exact step':>20}")
    for name, problem in model_cases().items():
        sizes = sizes_of(problem)
        point = problem.reduced.at(problem.theta())
        v, u = torch.randn_like(point.x), torch.randn_like(point.linearization.features)
        both = (lambda lin=point.linearization, v=v: lin.jvp(v), lambda lin=point.linearization, u=u: lin.vjp(u))
        each = sum(quickest(task, repetitions) for task in both) / 2
        evaluation = quickest(lambda at=point: at.problem.reduced.at(at.x, at).value, repetitions)
        steps = Dense().begin(problem, Start(problem.theta()), Budget(problem.meter, math.inf), None)
        exact = []
        for _ in range(6):
            begun = time.process_time()
            report = steps.iterate()
            if report is not None and report.accepted:
                exact.append(time.process_time() - begun)
        prices = prices_of(Dense(), problem, sizes)
        measured = each, evaluation, statistics.median(exact[1:] or exact or [math.nan])
        predicted = prices.of_pass, prices.of_pass + prices.of_step, prices.of_exact_step
        pairs = zip(measured, predicted, strict=True)
        print(f"{name:18}" + "".join(f"{1e3 * a:10.2f} /{1e3 * b:7.2f}" for a, b in pairs), flush=True)
        rows.append([sizes.calls, sizes.samples * sizes.products, sizes.samples * sizes.numbers])
        seconds.append(each)
    best, _ = scipy.optimize.nnls(torch.tensor(rows) / torch.tensor(seconds)[:, None], torch.ones(len(rows)))
    print("a pass is fitted best by call {:.1e} s, product {:.1e} s, number {:.1e} s".format(*best))


def peak_memory() -> float:
    """Peak resident memory in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def inner_share(folder: Path | None, work: float) -> None:
    inputs, labels = synthetic_spectra(2957) if folder is None else indian_pines(folder)
    model = nn.Sequential(NeuralODE(200, 32, 16), nn.Linear(32, 16)).to(F64)
    settings = {"loss": "multinomial", "theta_penalty": 1e-3, "head_penalty": 1e-3, "solver": gnvpro.solvers.Krylov(50)}
    result = gnvpro.train(model, inputs, labels, work=work, **settings)
    last = result.history[-1]
    print(
        f"\ninner solves, Indian Pines ({'synthetic' if folder is None else 'real'}, {len(inputs)} pixels): "
        f"{last.inner_seconds:.2f} of {last.seconds:.1f} s = {100 * last.inner_seconds / last.seconds:.1f}% "
        f"; {last.iteration} iterations, {last.work:.0f} work units, "
        f"loss {result.history[0].loss:.3f} -> {last.loss:.3f}, accuracy {100 * (last.accuracy or math.nan):.1f}%"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=float, default=400.0, help="budget of the training run")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="of the ratios")
    parser.add_argument("--only", choices=["growth", "passes", "inner", "evaluation", "model"], help="one part")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {arguments.threads} thread(s)")
    if arguments.only in (None, "growth"):
        growth(arguments.repetitions)
    if arguments.only in (None, "passes"):
        passes(arguments.cases, arguments.repetitions)
    if arguments.only in (None, "model"):
        cost_model(arguments.repetitions)
    if arguments.only in (None, "evaluation"):
        evaluation(arguments.repetitions)
    if arguments.only in (None, "inner"):
        inner_share(arguments.data_dir and arguments.data_dir / "indian_pines", arguments.work)


if __name__ == "__main__":
    main()
