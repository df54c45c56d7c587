"""Train RBF support vector machines on the inputs and splits of Indian Pines, for comparison in docs/lab/paper.md.

python benchmarks/indian_pines_svm.py [DATA_DIR]

One machine uses the same inputs. The other uses inputs that, like our network, favour directions that change slowly
from band to band:

    (I + roughness D'D)^(-1/2) x        D: differences between neighbouring bands

Its C = 1000 has the better validation accuracy of 100 and 1000 on seeds 5 to 9.
"""

from __future__ import annotations

import sys
import time

import torch
from sklearn.svm import SVC

from gnvpro.experiments.catalogue import EXPERIMENTS, scaled


def smoothing(bands: int, roughness: float) -> torch.Tensor:
    eye = torch.eye(bands, dtype=torch.float64)
    differences = eye.diff(dim=0)
    values, vectors = torch.linalg.eigh(eye + roughness * differences.T @ differences)
    return vectors @ (vectors / values.sqrt()).T


if __name__ == "__main__":
    for seed in range(5):
        experiment = EXPERIMENTS["indian-pines"]
        settings = experiment.recommended
        split = scaled(experiment.load(seed, sys.argv[1] if len(sys.argv) > 1 else None), settings).split
        for name, C, roughness in (("as they are", 100, 0.0), ("smoothed", 1000, settings.roughness)):
            S = smoothing(split.train[0].shape[1], roughness)
            begun = time.process_time()
            model = SVC(C=C, gamma="scale").fit((split.train[0] @ S).numpy(), split.train[1].numpy())
            scores = [100 * model.score((x @ S).numpy(), c.numpy()) for x, c in (split.validation, split.test)]
            print(
                f"seed {seed}, inputs {name}, C {C}: validation {scores[0]:.2f}, test {scores[1]:.2f}, "
                f"{time.process_time() - begun:.0f} s",
                flush=True,
            )
