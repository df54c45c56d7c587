"""An RBF support vector machine on the inputs and splits of Indian Pines: the row beside ours in docs/results.md.

python benchmarks/indian_pines_svm.py [DATA_DIR]
"""

from __future__ import annotations

import sys
import time

from sklearn.svm import SVC

from gnvpro.experiments.catalogue import EXPERIMENTS, scaled

if __name__ == "__main__":
    for seed in range(5):
        experiment = EXPERIMENTS["indian-pines"]
        loaded = experiment.load(seed, sys.argv[1] if len(sys.argv) > 1 else None)
        split = scaled(loaded, experiment.recommended).split
        begun = time.process_time()
        model = SVC(C=100, gamma="scale").fit(*(part.numpy() for part in split.train))
        scores = [100 * model.score(x.numpy(), c.numpy()) for x, c in (split.validation, split.test)]
        print(
            f"seed {seed}: validation {scores[0]:.2f}, test {scores[1]:.2f}, {time.process_time() - begun:.0f} s",
            flush=True,
        )
