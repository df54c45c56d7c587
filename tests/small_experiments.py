"""Every experiment on sets so small that it runs in a second, with the catalogue's own networks and methods."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from gnvpro.data import Split, cifar10, ellipse, indian_pines, peaks
from gnvpro.experiments import inner_accuracy
from gnvpro.experiments.catalogue import EXPERIMENTS
from gnvpro.experiments.settings import ThreeSets


def small_ellipse(seed, data_dir):
    return ThreeSets(ellipse.load((200, 100, 100), seed=seed), "generated")


def small_peaks(seed, data_dir):
    return ThreeSets(peaks.load((100, 50, 50), seed=seed), "generated")


def regression(n_inputs, n_targets):
    def load(seed, data_dir):
        generator = torch.Generator().manual_seed(seed)
        mixing = torch.randn(n_inputs, n_targets, generator=generator, dtype=torch.float64)
        parts = []
        for samples in (24, 12, 12):
            inputs = torch.rand(samples, n_inputs, generator=generator, dtype=torch.float64)
            parts.append((inputs, torch.tanh(inputs @ mixing)))
        return ThreeSets(Split(*parts), "made up")

    return load


def small_pines(seed, data_dir):
    labels = np.repeat(np.arange(16), 16)
    rows = indian_pines.split_rows(labels, seed)
    spectra = np.random.default_rng(seed).normal(size=(len(labels), 20)) + labels[:, None] / 4
    parts = [(torch.from_numpy(spectra[r]), torch.from_numpy(labels[r])) for r in rows]
    pixels = {f"pixels_{name}": r * 7 for name, r in zip(("train", "validation", "test"), rows, strict=True)}
    return ThreeSets(Split(*parts), "made up", pixels)


def small_cifar(seed, data_dir):
    generator = np.random.default_rng(seed)
    images = [generator.integers(0, 256, (n, 3072)).astype(np.uint8) for n in (20, 10, 10)]
    labels = [torch.arange(len(part)) % 10 for part in images]
    parts = [(cifar10.standardised(part), label) for part, label in zip(images, labels, strict=True)]
    return ThreeSets(Split(*parts), "made up", {"images_test": images[2].reshape(-1, 3, 32, 32)})


LOADERS = {
    "ellipse": small_ellipse,
    "cdr": regression(55, 72),
    "dcr": regression(3, 882),
    "indian-pines": small_pines,
    "cifar10": small_cifar,
    "peaks": small_peaks,
}


def make_small(monkeypatch):
    """Put the small sets in place of the real ones."""
    monkeypatch.setattr(inner_accuracy, "TOLERANCES", (1e-2, 1e-10))
    monkeypatch.setattr(inner_accuracy, "RANKS", (5, 20))
    monkeypatch.setattr(inner_accuracy, "STEPS", (1e-1, 1e-2, 1e-3))
    for name, load in LOADERS.items():
        monkeypatch.setitem(EXPERIMENTS, name, dataclasses.replace(EXPERIMENTS[name], load=load))
