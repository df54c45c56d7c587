"""The regressor for scikit-learn: `fit`, `predict`, `score`, pipelines, grid searches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from torch import Tensor

from gnvpro.objectives.evidence import noise_by_target
from gnvpro.objectives.joint_posterior import JointPosterior
from gnvpro.objectives.posterior import HeadPosterior, covering, head_posterior, held_out_variance, noise_variance
from gnvpro.problem.misfit import Misfit
from gnvpro.sklearn.base import FOLDS_OF_DOUBT, NetworkEstimator
from gnvpro.sklearn.blend import blend, mean_of_outputs
from gnvpro.sklearn.combine import (
    LEAST_UNEXPLAINED,
    NO_BLEND,
    NO_EDGE,
    Choice,
    Edge,
    Fold,
    Option,
    assembled,
    is_plain,
    judged,
    mean_of,
    noise_of,
    plain,
    taken,
)
from gnvpro.sklearn.edge import edge_rows, linear_beyond
from gnvpro.sklearn.equal_rows import merge_equal_rows
from gnvpro.sklearn.linear import fit_linear
from gnvpro.sklearn.parts import PartPosteriors, Posterior
from gnvpro.sklearn.scaling import TargetUnits, plain_scaling
from gnvpro.sklearn.trained import Array, Found, RowSet, RowSets, Trained, features_of, spread_of, trained_point


class GNvproRegressor(MultiOutputMixin, RegressorMixin, NetworkEstimator):  # type: ignore[misc]
    """Least-squares regression by a network whose head is eliminated; for one or more targets.

    Args:
        hidden: widths of the layers of an MLP. Default: one layer of 16 units up to 2000 samples, growing with the root of n
            up to 64 units; with 15,000 samples or more two layers of half as many units.
        activation: of the MLP's layers: "tanh", "relu", "silu", "gelu", "elu", "softplus", "logistic", or a module class.
        features: instead of the MLP, a module that maps inputs to features (a copy is trained), or a function of the
            number of inputs that returns one.
        method, solver, work, memory: see `gnvpro.train`; work limits the passes over the training set. By default the fit
            ends when its objective has settled, and solver is "dense" if exact steps are cheap,
            `gnvpro.solvers.Dense(samples=2000)` if steps on 2000 samples are cheap, and otherwise "hybrid"; with 15,000
            samples or more training starts on random batches.
        theta_penalty, head_penalty: alpha in alpha/2 |theta|^2 and alpha/2 |W|^2, added to the mean of half the squared
            (standardised) errors. "auto" (default) finds them from the data (docs/penalties.md). Methods on batches cannot
            search; there "auto" means 1 / n. With 15,000 samples or more the search uses 4000 of them.
        max_iter: largest number of iterations.
        standardize: whether inputs and targets are brought to mean zero and variance one; undone at prediction.
        early_stopping: whether to hold out `validation_fraction` of the samples, stop when their error has not
            improved for `patience` iterations, and keep the best model.
        warm_start: whether another fit starts from the features of the last one.
        random_state: seed of the first weights and the held-out samples.
        verbose: True for one line per stage of the fit with its root mean square error in standard deviations of the targets,
            and a progress bar on a terminal; 2 for every step.
        n_members: number of networks whose mean is the model, with weights by predictions of left-out rows: one of tanh units,
            one of SiLU units, one with columns in pieces, and so on with other seeds. Default: three for one target and up to
            4000 samples (or fewer, if they would be too wide); one for more, or if penalties, features, another activation,
            `work`, `max_iter`, `early_stopping` or `warm_start` are given.
        policy: the thresholds that choose the network, the solver and the samples (see `gnvpro.policy`).

    Attributes: `module_` (the fitted nn.Module, from raw inputs to raw targets), `encoding_` (makes numbers of a DataFrame with
    text, dates or missing values: `module_` takes `encoding_.expand(encoding_.codes(X))`), `chosen_` (penalties, noise and
    evidence found; None if none were searched for), `history_`, `loss_curve_`, `n_iter_`, `status_`, `noise_std_` (of each
    target), `n_features_in_`, `feature_names_in_`, `n_outputs_`.

    With 500 samples or more, columns are cut into pieces if the evidence is higher with them (`gnvpro.sklearn.scaling`); such
    a model is constant beyond the values seen.

    >>> X = np.linspace(0, 1, 100)[:, None]
    >>> model = GNvproRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0]))
    >>> mean, std = model.predict(X, return_std=True)
    >>> mean.shape, std.shape
    ((100,), (100,))
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> GNvproRegressor:
        """Fit to inputs and targets.

        Args:
            X: (samples, features): numbers, or a DataFrame with columns of numbers, text, categories, bools and dates. Values
                may be missing (`gnvpro.sklearn.encoding`).
            y: (samples,) or (samples, targets).
            sample_weight: (samples,), not negative; a weight of two counts as a sample that occurs twice.

        Returns:
            The fitted estimator itself.

        Raises:
            ValueError: y has missing values or words, a column of X mixes numbers and text, or the weights are all zero.
        """
        X, y = self._checked(X, y=y, multi_output=True, y_numeric=True)
        self._flat = y.ndim == 1
        targets = np.asarray(y, dtype=np.float64).reshape(len(y), -1)
        X, targets, weights = merge_equal_rows(*self._check_weights(X, targets, sample_weight=sample_weight))
        self.n_outputs_ = targets.shape[1]
        units = TargetUnits.of(targets, weights) if self.standardize else TargetUnits.none(self.n_outputs_)
        scaled = units.scaled(targets)
        variance = self._fit_scaled(self._encode(X, scaled, weights), scaled, weights, self._seed())
        head = self.module_.get_submodule("head")
        with torch.no_grad():
            head.get_parameter("weight").mul_(units.scale[:, None])
            head.get_parameter("bias").mul_(units.scale).add_(units.mean)
        self.noise_std_ = variance.sqrt().numpy() * units.scale.numpy()
        return self

    def _fit_scaled(self, X: Array, targets: Array, weights: Array, seed: int) -> Tensor:
        """Fit one network to all standardised targets, others to noisy targets alone, and weigh them against simple models.

        Returns the variance of each target's noise.
        """
        count = targets.shape[1]
        varied = [k for k in range(count) if (targets[:, k] != targets[0, k]).any()]
        nothing = not varied and self.standardize
        every = varied if self.standardize and varied else list(range(count))
        found = self._find_members(X, targets[:, every], "least_squares", weights, None, seed, 0 if nothing else None)
        whole = found[0][1]
        self._keep(whole, X.shape[1])
        goals, shares = torch.tensor(targets), torch.tensor(weights)
        linear, columns = None, plain_scaling(X, weights)
        if nothing:
            choices = [Choice(None, 0, NO_BLEND)] * count
        elif not self._blends(whole):
            choices = taken(self._option(whole, every, None), count)
        else:
            linear, rows = fit_linear(columns(torch.tensor(X)), goals, shares), edge_rows(X, weights)
            edge = Edge(rows, linear_beyond(X, goals, weights, rows) if len(rows) else None)
            options = [mean_option(found, every, goals[:, every], shares, seed, rows)]
            for k in self._worth_a_network(options[0], goals, shares):
                alone = self._find_members(X, targets[:, [k]], "least_squares", weights, None, seed)
                options.append(mean_option(alone, [k], goals[:, [k]], shares, seed, rows))
            choices = judged(options, linear, goals, shares, edge)
        if is_plain(choices):
            assert choices[0].option is not None
            self.module_ = plain(choices)
            self._posterior: Posterior | PartPosteriors = choices[0].option.posterior
        else:
            coefficients, spread = (None, None) if linear is None else (linear.coefficients, linear.spread)
            self.module_, posteriors, sources = assembled(choices, coefficients, columns, X.shape[1])
            self._posterior = PartPosteriors(posteriors, spread, sources, float(weights.sum()))
        alone_used = [c.option for c in choices if c.option and c.blend.is_network and not c.option.members]
        noises = {id(option): self._noise(option, seed) for option in alone_used}
        return torch.stack(
            [
                noises[id(c.option)][c.column]
                if id(c.option) in noises and c.blend.is_network
                else noise_of(c, k, goals[:, k], shares, linear)
                for k, c in enumerate(choices)
            ]
        )

    def _worth_a_network(self, whole: Option, targets: Tensor, weights: Tensor) -> list[int]:
        """Return targets that may gain from a separate network, noisiest first."""
        if len(whole.targets) < 2:
            return []
        errors = (weights[:, None] * (targets[:, list(whole.targets)] - whole.left_out).square()).sum(0) / weights.sum()
        worst = [whole.targets[int(i)] for i in errors.argsort(descending=True) if errors[i] > SMALL_ERROR]
        return worst[: self._rules.targets_alone]

    def _option(
        self, found: Found, targets: list[int], seed: int | None, edge: Array = NO_EDGE.rows, doubts: bool = True
    ) -> Option:
        """Collect a network's posterior and, if there is a seed, its predictions of left-out rows."""
        trained, part = found.trained, found.trained.samples.part
        posterior, _, fitted = posterior_and_noise(trained)
        residuals, weights = residuals_of(trained, part), part.weights[:, None]
        size = sum(p.numel() for p in trained.model.parameters()) / residuals.shape[1]
        leverage = torch.full_like(residuals, min(size / len(residuals), 0.5))
        unknown = trained.joint is None and size > FEW_PARAMETERS * len(residuals)
        folds: tuple[Fold, ...] = ()
        if seed is not None and (unknown or self._fits_most(trained, fitted)):
            folds = tuple(self._folds(part, seed, FOLDS))
            left = torch.zeros_like(residuals)
            for model, rest, rows in folds:
                left[rows] = residuals_of(model, rest)
        else:
            if trained.joint is not None:
                with torch.no_grad():
                    leverage = weights * spread_of(posterior, trained.model, part.inputs)
            left = residuals / (1 - leverage).clamp_min(LEAST_UNEXPLAINED)
        units = 1.0 if trained.units is None else trained.units
        beyond = self._beyond(part, edge, seed) * units if len(edge) and seed is not None else None
        judges = seed is not None and doubts and not folds
        again = self._again(part, part.targets - left, seed or 0) * units if judges else None
        return Option(found, targets, posterior, (part.targets - left) * units, leverage, beyond, folds, again)

    def _again(self, part: RowSet, left_out: Tensor, seed: int) -> Tensor:
        """Predict left-out rows of targets that may be noise by models that have seen nothing of them; NaN for other targets.

        Weights, penalties and relevances have seen the rows that leverages leave out, so those predictions are too good. Of few
        rows that are mostly noise, they make a large share of chance. Models of fewer rows are worse than the network: the
        truth is in between.
        """
        again, rows = torch.full_like(left_out, torch.nan), len(part.inputs)
        if not 2 * FOLDS_OF_DOUBT <= rows < self._rules.doubted_rows:
            return again
        columns, nothing = zip(left_out.T, part.targets.T, strict=True), torch.zeros(rows, dtype=torch.float64)
        shares = [blend(each, nothing, target, part.weights).network for each, target in columns]
        doubtful = [k for k, share in enumerate(shares) if 0 < share < SURE]
        for model, rest, held_out in self._folds(part, seed, FOLDS_OF_DOUBT) if doubtful else ():
            found = rest.targets - residuals_of(model, rest)
            again[held_out[:, None], doubtful] = found[:, doubtful]
        return again

    def _beyond(self, part: RowSet, edge: Array, seed: int) -> Tensor:
        """Predict rows at the edge of the table by a network that has seen none of them."""
        inside = np.setdiff1d(np.arange(len(part.inputs)), edge)
        inside = np.random.RandomState(seed).permutation(inside)[: self._rules.part_rows]
        self._stage = "without the rows that are farthest out, to see how it goes on there"
        model, rest = self._without(part, inside, edge, seed)
        return rest.targets - residuals_of(model, rest)

    def _without(self, part: RowSet, seen: Array, rows: Array, seed: int) -> tuple[Trained, RowSet]:
        """Train a model of some rows; return it and other rows in its coordinates."""
        model = self._train("least_squares", RowSets(part.take(seen), None), part.targets.shape[1], seed)
        rest = part.take(rows)
        return model, rest if model.directions is None else rest.along(model.directions)

    @staticmethod
    def _fits_most(trained: Trained, fitted: float) -> bool:
        """Return whether the fit is so close that residuals and leverages say little about left-out rows."""
        return fitted > MAX_FITTED * trained.problem.n_independent and len(trained.samples.part.inputs) >= 2 * FOLDS

    def _cuts(self, n_samples: float) -> tuple[bool, ...]:
        return (False, True) if self._has_own_layers() and n_samples >= self._rules.pieces_from else (False,)

    def _train_in_units(
        self, loss: str, samples: RowSets, n_outputs: int, seed: int, most: int | None = None
    ) -> Trained:
        """Train repeatedly with targets in units of their noise, while these units change and the evidence grows."""
        found, units = None, torch.ones(n_outputs, dtype=torch.float64)
        for _ in range(MAX_TRAININGS):
            trained = self._train(loss, samples.in_units(units), n_outputs, seed, most)
            chosen = trained.result.chosen
            if chosen is None:
                return trained
            log = chosen.log_evidence - trained.problem.n_observed * float(units.log().sum())
            if found is not None and log <= found.log_evidence:
                break
            self._stage = "again, targets in units of their noise"
            noise = units * units.new_tensor(chosen.noise)
            chosen = replace(chosen, noise=tuple(noise.tolist()), log_evidence=log)
            found = replace(trained, result=replace(trained.result, chosen=chosen), units=units)
            if float((noise / units).max()) <= SIMILAR_NOISE * float((noise / units).min()):
                break
            units = (noise / noise.max()).clamp_min(LEAST_UNIT)
        assert found is not None
        return found

    def _noise(self, option: Option, seed: int) -> Tensor:
        """Return the variance of each target's noise around an unblended network, in units of the standardised targets."""
        trained, posterior = option.found.trained, option.posterior
        part, rest = trained.samples.part, trained.samples.rest
        _, variance, fitted = posterior_and_noise(trained)
        by_hand = trained.result.chosen is None
        most, folds = (MAX_FITTED_BY_HAND, FOLDS_BY_HAND) if by_hand else (MAX_FITTED, FOLDS)
        if rest is not None:
            variance = noise_on(rest, trained, posterior)
        elif fitted > most * trained.problem.n_independent and len(part.inputs) >= 2 * folds:
            variance = self._noise_by_hand(option, part, seed) if by_hand else self._cross_validated_noise(option, seed)
        else:
            few, most_rows = part, self._rules.calibration_rows
            if len(part.inputs) > most_rows:
                few = part.take(np.random.RandomState(seed).permutation(len(part.inputs))[:most_rows])
                variance = variance * mean_square(trained, few) / mean_square(trained, part)  # few may lack an outlier
            scores = residuals_of(trained, few) / unexplained(option, few).sqrt()
            variance = covering(variance, scores, few.weights[:, None])
        return variance if trained.units is None else variance * trained.units.square()

    def _folds(self, part: RowSet, seed: int, n: int) -> Iterator[Fold]:
        """Yield models trained without a part of the samples, and that part. A close fit makes training residuals too small."""
        for fold in np.array_split(np.random.RandomState(seed).permutation(len(part.inputs)), n):
            self._stage = "without some rows, which measure the noise"
            seen = np.setdiff1d(np.arange(len(part.inputs)), fold)
            yield *self._without(part, seen, fold, seed), fold

    def _cross_validated_noise(self, option: Option, seed: int) -> Tensor:
        """Estimate the noise from residuals of folds over the variance that their models expect."""
        pairs = option.folds or self._folds(option.found.trained.samples.part, seed, FOLDS)
        return torch.stack([noise_on(rest, model, posterior_and_noise(model)[0]) for model, rest, _ in pairs]).mean(0)

    def _noise_by_hand(self, option: Option, part: RowSet, seed: int) -> Tensor:
        """Estimate the noise from residuals of folds over the variance that this model expects at left-out samples.

        If penalties are far too small, models of fewer samples fit nearly all of them, and expect many times that variance.
        """
        found = [
            (residuals_of(model, rest), part.take(rows), rest.weights)
            for model, rest, rows in self._folds(part, seed, FOLDS_BY_HAND)
        ]
        scores = torch.cat([residuals * unexplained(option, rest).sqrt() for residuals, rest, _ in found])
        weights = torch.cat([weights for *_, weights in found])[:, None]
        return covering((weights * scores.square()).sum(0) / weights.sum(), scores, weights)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the targets.

        Args:
            X: (samples, features).
            return_std: whether to return the standard deviations of new observations too.

        Returns:
            Means of the shape of the training targets, (samples,) or (samples, targets); with `return_std` a pair of means
            and standard deviations.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X has other columns than at the fit, or text where there were numbers.
        """
        outputs, inputs = self._outputs(X)
        mean = outputs[:, 0].numpy() if self._flat else outputs.numpy()
        if not return_std:
            return mean
        std = np.sqrt(1 + self._spread_at(inputs).numpy()) * self.noise_std_
        return mean, std[:, 0] if self._flat else std

    def _spread_at(self, inputs: Tensor) -> Tensor:
        """Return the variance of predictions over the variance of the noise, for each row and target."""
        if isinstance(self._posterior, PartPosteriors):
            with torch.no_grad():
                return self._posterior.spread(self.module_, inputs)
        return self._spread(self._posterior, inputs)


def mean_option(
    found: list[tuple[Any, Found]], targets: list[int], goals: Tensor, weights: Tensor, seed: int, edge: Array
) -> Option:
    """Return the mean of networks that predicts left-out rows best; the heaviest one is tested without rows at the edge."""
    if len(found) == 1:
        return found[0][0]._option(found[0][1], targets, seed, edge)  # type: ignore[no-any-return]
    options = [member._option(each, targets, seed, doubts=False) for member, each in found]
    columns = [mean_of_outputs([o.left_out[:, k] for o in options], goals[:, k], weights) for k in range(len(targets))]
    shares = torch.tensor(np.stack(columns, 1))
    heaviest = int(shares.sum(1).argmax())
    member, each = found[heaviest]
    options[heaviest] = member._option(each, targets, seed, edge)
    return mean_of(options, shares)


MAX_TRAININGS = 4  # each in other units
SIMILAR_NOISE = 4.0  # ratio of the largest to the smallest noise of the targets, in the units of the training
LEAST_UNIT = 1e-3  # smallest unit of a target over the largest
FOLDS = 3
FOLDS_BY_HAND = 8
SURE = 0.8  # a share of the network in a blend from which on it is not doubted
SMALL_ERROR = 0.01  # share of a target's variance: another network cannot gain more
FEW_PARAMETERS = 0.25  # parameters per row; a network with fewer cannot fit much noise
MAX_FITTED = 0.5  # effective parameters per sample; beyond this residuals underestimate the noise
MAX_FITTED_BY_HAND = 0.2  # the same limit if penalties were given, not found by the evidence


def posterior_and_noise(trained: Trained) -> tuple[JointPosterior | HeadPosterior, Tensor, float]:
    """Return the posterior at the model's theta, the variance of each target's noise, and parameters fitted per target."""
    problem = trained.problem
    if trained.joint is not None:
        point, posterior, found = trained.joint
        return posterior, noise_by_target(point, found, problem.n_independent), found.gamma / len(point.W)
    point = trained_point(problem)
    head = head_posterior(point.Z, problem.misfit, point.outputs, problem.head_penalty, problem.n_observed)
    return head, noise_variance(point, head, problem.n_observed), 0.0


def unexplained(option: Option, part: RowSet) -> Tensor:
    """Return 1 - h for leverages h of training samples. For left-out samples, spread is h / (1 - h), residuals r / (1 - h)."""
    with torch.no_grad():
        spread = spread_of(option.posterior, option.found.trained.model, part.inputs)
        return (1 - part.weights[:, None] * spread).clamp_min(LEAST_UNEXPLAINED)


def residuals_of(trained: Trained, part: RowSet) -> Tensor:
    """Return targets minus predictions."""
    with torch.no_grad():
        residuals: Tensor = part.targets - trained.model(part.inputs)
        return residuals


def mean_square(trained: Trained, part: RowSet) -> Tensor:
    """Return the mean square residual of each target, at least a tiny positive number."""
    squares = part.weights[:, None] * residuals_of(trained, part).square()
    return (squares.sum(0) / part.weights.sum()).clamp_min(torch.finfo(torch.float64).tiny)


def noise_on(rest: RowSet, trained: Trained, posterior: JointPosterior | HeadPosterior) -> Tensor:
    """Return the variance of each target's noise, from samples that the model was not trained on."""
    Z, problem = features_of(trained.model, rest.inputs), trained.problem
    spread = spread_of(posterior, trained.model, rest.inputs)
    return held_out_variance(Misfit.mean(problem.loss, rest.targets, rest.weights), Z @ problem.W().T, spread)
