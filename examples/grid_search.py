# %% [markdown]
# # Grid search in a pipeline
#
# Chooses width and penalty of a regression on the diabetes data by cross-validation in a scikit-learn pipeline.

# %%
from __future__ import annotations

import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer

import gnvpro

torch.set_num_threads(1)
X, y = load_diabetes(return_X_y=True, as_frame=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

# %%
pipeline = make_pipeline(
    QuantileTransformer(n_quantiles=100, output_distribution="normal"),
    gnvpro.GNvproRegressor(work=60, random_state=0),
)
search = GridSearchCV(
    pipeline,
    {"gnvproregressor__hidden": [(4,), (16,)], "gnvproregressor__theta_penalty": [1e-4, 1e-2, 1e-1]},
    cv=3,
).fit(X_train, y_train)

# %%
for parameters, score in zip(search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True):
    print({key.split("__")[1]: value for key, value in parameters.items()}, f"R2 = {score:.3f}")
print("best:", search.best_params_, f"test R2 = {search.score(X_test, y_test):.3f}")
assert search.best_params_["gnvproregressor__theta_penalty"] > 1e-4  # half of the variance is noise
assert search.score(X_test, y_test) > 0.3

# %% [markdown]
# The best model reports its uncertainty: 95% of new patients should be within two standard deviations.

# %%
mean, std = search.best_estimator_.predict(X_test, return_std=True)
covered = (abs(y_test - mean) < 1.96 * std).mean()
print(f"within the 95% interval: {covered:.1%}")
assert 0.85 < covered <= 1
