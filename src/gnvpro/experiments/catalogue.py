"""The experiments of the paper, as data.

`paper` holds what the paper states, with its Krylov solver. `recommended` is what we would use: the solver is chosen by
size, and where another setting is better it is said here. The budget of each method is its own; ADAM has twice as much
work as the others, as in the paper.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import nn

from gnvpro.data import Split, cdr, cifar10, data_directory, dcr, ellipse, indian_pines, peaks
from gnvpro.experiments.inner_accuracy import study
from gnvpro.experiments.settings import Experiment, Loaded, Settings, Training
from gnvpro.networks import MLP, ConvNet, NeuralODE, ResNet
from gnvpro.head.newton import NewtonKrylov

SETS = ("train", "validation", "test")
SHOWN_IMAGES = 400  # CIFAR-10 test images kept for the figure


# -- the sets


def load_ellipse(seed: int, data_dir: Path | None) -> Loaded:
    """Drawn by the seed."""
    return Loaded(ellipse.load(seed=seed), f"generated, seed {seed}")


def load_peaks(seed: int, data_dir: Path | None) -> Loaded:
    """Drawn by the seed."""
    return Loaded(peaks.load(seed=seed), f"generated, seed {seed}")


def load_cdr(seed: int, data_dir: Path | None) -> Loaded:
    """The authors' file where the data directory has it, else the set that is shipped."""
    source = "authors" if (data_directory(data_dir) / cdr.AUTHORS).is_file() else "shipped"
    return Loaded(cdr.load(source, seed=seed, data_dir=data_dir), f"{source}, split by seed {seed}")


def load_dcr(seed: int, data_dir: Path | None) -> Loaded:
    """Simulated on first use."""
    return Loaded(dcr.load(seed=seed, data_dir=data_dir), f"simulated, mesh {dcr.MESH}, split by seed {seed}")


def load_indian_pines(seed: int, data_dir: Path | None) -> Loaded:
    """With the position of every sample in the image."""
    scene = indian_pines.read(data_dir)
    parts = indian_pines.split_rows(scene.labels, seed)
    train, validation, test = (indian_pines.samples(scene, rows) for rows in parts)
    pixels = {f"pixels_{name}": scene.pixels[rows] for name, rows in zip(SETS, parts, strict=True)}
    return Loaded(Split(train, validation, test), f"{scene.source}, split by seed {seed}", pixels)


def load_cifar10(seed: int, data_dir: Path | None) -> Loaded:
    """With the first test images as they are, for a figure."""
    folder = cifar10.find(data_dir)
    images = cifar10.read(folder, (cifar10.TEST,))[0][:SHOWN_IMAGES].reshape(-1, 3, 32, 32)
    split = cifar10.load(seed=seed, data_dir=data_dir)
    return Loaded(split, f"{folder.name}, split by seed {seed}", {"images_test": images})


# -- the networks


def ellipse_network(n_inputs: int, depth: int | None) -> nn.Module:
    """2-4-4-2 tanh layers: 42 weights."""
    return MLP(n_inputs, [4, 4, 2], n_outputs=1, dtype=torch.float64)


def peaks_network(n_inputs: int, depth: int | None) -> nn.Module:
    """A residual network of width 4, eight steps to T = 5."""
    features = ResNet(n_inputs, 4, 8, 5.0, dtype=torch.float64)
    return nn.Sequential(features, nn.Linear(4, peaks.N_CLASSES, dtype=torch.float64))


def neural_ode(width: int, n_targets: int, n_inputs: int, depth: int | None) -> nn.Module:
    """A Neural ODE to T = 4 and its head."""
    features = NeuralODE(n_inputs, width, depth or 2, 4.0, dtype=torch.float64)
    return nn.Sequential(features, nn.Linear(width, n_targets, dtype=torch.float64))


def cdr_network(n_inputs: int, depth: int | None) -> nn.Module:
    """Width 8, 72 targets."""
    return neural_ode(8, cdr.N_TARGETS, n_inputs, depth)


def dcr_network(n_inputs: int, depth: int | None) -> nn.Module:
    """Width 16, 882 targets."""
    return neural_ode(16, dcr.N_TARGETS, n_inputs, depth)


def indian_pines_network(n_inputs: int, depth: int | None) -> nn.Module:
    """Width 32, 16 classes."""
    return neural_ode(32, len(indian_pines.CLASSES), n_inputs, depth)


def cifar10_network(n_inputs: int, depth: int | None) -> nn.Module:
    """Two convolutions, 53,600 weights."""
    return ConvNet(len(cifar10.CLASSES))


# -- the settings


def surrogate(work: float) -> Settings:
    """The paper's surrogates: three levels for the methods on the whole set, ADAM on the deepest network alone."""
    levels = Training(work, depth=2, levels=3)
    methods = {
        "gnvpro": levels,
        "gauss-newton": levels,
        "lbfgs-vpro": levels,
        "adam": Training(2 * work, depth=8, batch_size=2),
    }
    return Settings(methods, 1e-10, 1e-10, time_penalty=True)


CDR = surrogate(600.0)
DCR = surrogate(1200.0)

# For `--paper --solver dense`: raw inputs are about 0.02, so a bias has 1000 times the curvature of the weights beside it.
CDR_PAPER = dataclasses.replace(
    CDR, methods={**CDR.methods, "gnvpro": dataclasses.replace(CDR.methods["gnvpro"], scaling=0.75)}
)

# Deep from the start: at depth 2 the ODE is not resolved, and prolongation would change the map that was learnt.
# Inputs of about 0.018 leave tanh in its linear part: spread 0.1 uses it, and ADAM needs it to move at all.
CDR_RECOMMENDED = dataclasses.replace(
    CDR,
    methods={
        name: dataclasses.replace(training, depth=8, levels=1, solver="auto") for name, training in CDR.methods.items()
    },
    input_spread=0.1,
)

ELLIPSE = Settings(
    dict.fromkeys(("gnvpro", "gauss-newton"), Training(500.0, max_rank=10, rtol=1e-3, iterations=50)), 1e-6, 1e-8
)

PEAKS = Settings({"gnvpro": Training(200.0)}, 5e-6, 1e-8)

_PINES = Training(1500.0, depth=4, levels=3, max_rank=50, keep="best")
INDIAN_PINES = Settings(
    {
        "gnvpro": _PINES,
        "gauss-newton": _PINES,
        "lbfgs-vpro": _PINES,
        "adam": Training(3000.0, depth=16, batch_size=32, keep="best"),
    },
    1e-3,
    1e-3,
    time_penalty=True,
)

# Too many weights for a matrix, so `auto` means quasi-Newton steps between Krylov spaces, which may then be smaller.
INDIAN_PINES_RECOMMENDED = dataclasses.replace(
    INDIAN_PINES, methods={**INDIAN_PINES.methods, "gnvpro": dataclasses.replace(_PINES, max_rank=30)}
)

_CIFAR = Training(400.0, max_rank=30, batch_size=10_000, iterations_per_batch=3, sweeps=2)
CIFAR10 = Settings(
    {
        "gnvpro": _CIFAR,
        "gauss-newton": _CIFAR,
        "lbfgs-vpro": _CIFAR,
        "adam": Training(400.0, batch_size=128, learning_rate=1e-3),
        "nesterov": Training(400.0, batch_size=128, learning_rate=5e-3),
    },
    1e-4,
    1e-2,
)
# A small Krylov space and many quasi-Newton steps on each batch, as long as the budget lasts.
_CIFAR_STEPS = dataclasses.replace(_CIFAR, solver="hybrid", max_rank=10, iterations_per_batch=20, sweeps=None)
CIFAR10_RECOMMENDED = dataclasses.replace(
    CIFAR10, methods={**CIFAR10.methods, "gnvpro": _CIFAR_STEPS, "lbfgs-vpro": _CIFAR_STEPS}
)
CIFAR10_PAPER = dataclasses.replace(
    CIFAR10,
    methods={**CIFAR10.methods, "adam": CIFAR10.methods["nesterov"]},  # the paper tuned Nesterov's settings for both
    eliminator=NewtonKrylov(max_rank=100, iterations=400),
)

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "ellipse",
            "Inside or outside an ellipse",
            "5000 points of the plane, a tanh network of 42 weights, logistic loss",
            load_ellipse,
            ellipse_network,
            "logistic",
            ELLIPSE.with_solver("krylov"),
            ELLIPSE.with_solver("krylov"),  # the figure is of the paper's method
            ellipse.CLASSES,
            snapshots=True,
        ),
        Experiment(
            "cdr",
            "Convection-diffusion-reaction surrogate",
            "55 reaction coefficients -> 72 concentrations, Neural ODE of width 8, least squares",
            load_cdr,
            cdr_network,
            "least_squares",
            CDR_PAPER.with_solver("krylov"),
            CDR_RECOMMENDED,
        ),
        Experiment(
            "dcr",
            "Direct current resistivity surrogate",
            "3 parameters of an ellipsoid -> 882 potential differences, Neural ODE of width 16, least squares",
            load_dcr,
            dcr_network,
            "least_squares",
            DCR.with_solver("krylov"),
            DCR,
        ),
        Experiment(
            "indian-pines",
            "Indian Pines hyperspectral image",
            "a spectrum -> 16 crops, Neural ODE of width 32, multinomial loss",
            load_indian_pines,
            indian_pines_network,
            "multinomial",
            INDIAN_PINES.with_solver("krylov"),
            INDIAN_PINES_RECOMMENDED,
            indian_pines.CLASSES,
        ),
        Experiment(
            "cifar10",
            "CIFAR-10 images",
            "32 x 32 colour images -> 10 classes, two convolutions, multinomial loss",
            load_cifar10,
            cifar10_network,
            "multinomial",
            CIFAR10_PAPER.with_solver("krylov"),
            CIFAR10_RECOMMENDED,
            cifar10.CLASSES,
        ),
        Experiment(
            "peaks",
            "Peaks: how exact the inner solve must be",
            "five height bands of MATLAB's peaks, residual network of width 4, multinomial loss; appendix A",
            load_peaks,
            peaks_network,
            "multinomial",
            PEAKS.with_solver("krylov"),
            PEAKS.with_solver("krylov"),
            tuple(f"band {k}" for k in range(1, peaks.N_CLASSES + 1)),
            study=study,
        ),
    )
}


def spread(loaded: Loaded, target: float) -> Loaded:
    """Inputs centred and scaled to a standard deviation, by one constant each taken from the training set."""
    inputs = loaded.split.train[0]
    mean, scale = inputs.mean(), target / inputs.std()
    train, validation, test = (
        ((x - mean) * scale, c) for x, c in (loaded.split.train, loaded.split.validation, loaded.split.test)
    )
    return Loaded(Split(train, validation, test), loaded.source, loaded.extras)
