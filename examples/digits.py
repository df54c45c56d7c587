# %% [markdown]
# # A classifier on digits with the scikit-learn interface
#
# 1797 images of 8 x 8 pixels. Use `GNvproClassifier` like any other scikit-learn classifier: labels may be strings, and
# `predict_proba` returns probabilities.

# %%
from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import confusion_matrix, log_loss
from sklearn.model_selection import train_test_split

import gnvpro

torch.set_num_threads(1)
NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])

X, digits = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, NAMES[digits], random_state=0)

# %%
model = gnvpro.GNvproClassifier(random_state=0).fit(X_train, y_train)
accuracy = model.score(X_test, y_test)
print(f"{accuracy:.1%} of {len(y_test)} test images right after {model.n_iter_} iterations: {model.status_}")
assert accuracy > 0.95
assert set(model.predict(X_test)) == set(NAMES)

# %% [markdown]
# Which digits are confused, and how certain is the model when it is wrong?

# %%
print(confusion_matrix(y_test, model.predict(X_test), labels=NAMES))
sure = model.predict_proba(X_test).max(1)
right = model.predict(X_test) == y_test
print(f"mean confidence: {sure[right].mean():.3f} where right, {sure[~right].mean():.3f} where wrong")
assert sure[right].mean() > sure[~right].mean() + 0.1
assert log_loss(y_test, model.predict_proba(X_test), labels=model.classes_) < 0.25

# %%
try:
    import matplotlib.pyplot as plt
except ImportError:
    print("no figure: matplotlib is not installed")
else:
    figure, axes = plt.subplots(1, 6, figsize=(9, 2), layout="constrained")
    for axis, i in zip(axes, np.argsort(sure)[:6], strict=True):
        axis.imshow(X_test[i].reshape(8, 8), cmap="gray_r")
        axis.set_title(f"{y_test[i]}?\n{model.predict(X_test[i : i + 1])[0]} ({sure[i]:.0%})", fontsize=9)
        axis.axis("off")
    Path("runs").mkdir(exist_ok=True)
    figure.savefig("runs/digits.png", dpi=120)
