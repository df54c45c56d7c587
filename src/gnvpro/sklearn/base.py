"""The common part of regressor and classifier: from arrays to a trained module.

    scale inputs (and targets)  ->  features: an MLP or a module of your own  ->  linear head, eliminated

The fitted model is the plain module `module_`. It takes raw inputs and returns raw targets, or logits: scaling the inputs is
its first layer, and scaling the targets is folded into its head. Everything is computed in double precision. Attributes that
end in an underscore exist after `fit`, as everywhere in scikit-learn.

Penalties maximise the evidence (`gnvpro.objectives.evidence`) unless they are given as numbers.
"""

from __future__ import annotations

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.model_selection import train_test_split
from sklearn.utils import check_array, check_random_state, check_X_y
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from gnvpro.arguments import EPOCHS, RATE, check_choice, check_count, with_advice
from gnvpro.methods.adam_vpro import AdamVPro
from gnvpro.methods.names import as_method
from gnvpro.methods.protocol import Method, Solver
from gnvpro.methods.step_solvers import Dense
from gnvpro.network.evaluation import evaluating
from gnvpro.networks import MLP
from gnvpro.objectives.joint_posterior import JointPosterior
from gnvpro.objectives.posterior import HeadPosterior
from gnvpro.objectives.problem import Problem
from gnvpro.policy import EstimatorPolicy, Policy, as_policy
from gnvpro.policy.cost import operations_of_matrix
from gnvpro.sklearn.encoding import Encoding, needs_encoding
from gnvpro.sklearn.relevance import column_scales, half_way
from gnvpro.sklearn.scaling import Rotate, Scaling, cut_into_pieces, row_directions, scalings_of
from gnvpro.sklearn.trained import Array, Found, RowSet, RowSets, Trained, spread_of
from gnvpro.training.history import Record
from gnvpro.training.judgement import is_affordable
from gnvpro.training.listeners import StageProgress
from gnvpro.training.train import train

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "elu": nn.ELU,
    "softplus": nn.Softplus,
    "logistic": nn.Sigmoid,
}
FORMS: tuple[tuple[bool, str | None], ...] = (
    (False, None),
    (False, "silu"),
    (True, None),
)  # of members: pieces, activation
FOLDS_OF_DOUBT = 5  # they check a network by rows left out. Fewer than two rows for each judge nothing
USUAL_PENALTY = 1.0  # divided by the number of samples; for many samples if work is capped, and for methods on batches

WRITE_INSTEAD = {
    "hidden_layer_sizes": "write hidden=...",
    "epochs": EPOCHS,
    "max_epochs": EPOCHS,
    "iterations": "write max_iter=...",
    "lr": RATE,
    "learning_rate": RATE,
    "learning_rate_init": RATE,
    "batch_size": RATE,
    "optimizer": "write method=...",
    "alpha": "write theta_penalty=... and head_penalty=...",
    "seed": "write random_state=...",
    "n_estimators": "write n_members=...",
    "n_iter_no_change": "write patience=..., with early_stopping=True",
    "tol": "a fit ends when its objective has settled; write work=... or max_iter=... to end it earlier",
}


class NetworkEstimator(BaseEstimator, ABC):  # type: ignore[misc]  # scikit-learn has no annotations
    """The common base of the regressor and the classifier."""

    module_: nn.Sequential
    encoding_: Encoding
    _n_inputs: int  # columns of the raw inputs
    _columns: Tensor  # factors of the scaled inputs
    _form: bool | None = None  # of a member of a mean: whether columns are in pieces
    _stages = ""  # which network of several, for the progress
    _stage = "network"  # the next training and its reason, for the progress

    @with_advice(WRITE_INSTEAD)
    def __init__(
        self,
        hidden: int | Sequence[int] | None = None,
        activation: str | Callable[[], nn.Module] = "tanh",
        features: nn.Module | Callable[[int], nn.Module] | None = None,
        *,
        method: str | Method = "gnvpro",
        solver: str | Solver | None = None,
        work: float | None = None,
        theta_penalty: float | str = "auto",
        head_penalty: float | str = "auto",
        max_iter: int | None = None,
        standardize: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: bool | int = False,
        memory: float | None = None,
        policy: Policy | None = None,
        n_members: int | None = None,
    ) -> None:
        self.n_members = n_members
        self.hidden, self.activation, self.features = hidden, activation, features
        self.method, self.solver, self.work, self.max_iter = method, solver, work, max_iter
        self.theta_penalty, self.head_penalty = theta_penalty, head_penalty
        self.standardize, self.early_stopping = standardize, early_stopping
        self.validation_fraction, self.patience = validation_fraction, patience
        self.warm_start, self.random_state = warm_start, random_state
        self.verbose, self.memory, self.policy = verbose, memory, policy

    @property
    def _rules(self) -> EstimatorPolicy:
        """The thresholds that choose networks, solvers and samples."""
        return as_policy(self.policy).estimator

    def _find(
        self,
        X: Array,
        targets: Array,
        loss: str,
        weights: Array,
        labels: Array | None,
        seed: int,
        most: int | None = None,
    ) -> Found:
        """Train a network on inputs and targets in their final form, for at most `most` iterations."""
        n_outputs = int(labels.max()) + 1 if loss == "multinomial" and labels is not None else targets[:1].size
        self._stage = "first network"
        begins = not (self._goes_on() and self._n_inputs == X.shape[1])
        if begins:
            if hasattr(self, "module_"):
                del self.module_  # it has other columns, so it cannot be the start
            cuts = (self._form,) if self._form is not None else self._cuts(float(weights.sum()))
            cuts = cuts if self.standardize else ()
            seen = targets if labels is None else np.eye(max(n_outputs, 2))[labels]
            scalings = [*scalings_of(X, seen, weights, cuts)] if cuts else [OrderedDict()]
        else:
            scalings = [OrderedDict([*self.module_.named_children()][:-2])]
        goals, shares = torch.tensor(targets), torch.tensor(weights)
        rows, held_out = np.arange(len(X)), None
        if self.early_stopping:
            rows, held_out = train_test_split(
                rows, test_size=self.validation_fraction, random_state=seed, stratify=labels
            )

        def scaled(scaling: Scaling) -> RowSets:
            whole = RowSet(nn.Sequential(scaling)(torch.tensor(X)), goals, shares)
            return RowSets(whole.take(rows), None if held_out is None else whole.take(held_out))

        if begins and self._seeks_relevances() and most is None:
            forms = [scaled(scaling) for scaling in scalings]
            trained, which, columns = self._train_by_relevance(loss, forms, n_outputs, seed)
            scaling = scalings[which]
            scaling["scaling"] = scaling["scaling"].times(columns)
        else:
            scaling = scalings[0]
            trained = self._train_in_units(loss, scaled(scaling), n_outputs, seed, most)
            n_columns = trained.samples.part.inputs.shape[1]
            columns = torch.ones(n_columns, dtype=torch.float64) if begins else self._columns
        if trained.directions is not None:
            scaling["directions"] = Rotate(trained.directions)
        return Found(trained, scaling, columns)

    def _find_members(
        self,
        X: Array,
        targets: Array,
        loss: str,
        weights: Array,
        labels: Array | None,
        seed: int,
        most: int | None = None,
    ) -> list[tuple[Any, Found]]:
        """Train the networks whose mean is the model; each with the estimator of one member that trained it.

        They differ in what they can bend at: smooth units, units without an upper limit, columns in pieces. Rows that are left
        out (in closed form) find their weights, so networks too wide for that do not count.
        """
        count = self._count_members(len(X), targets[:1].size) if most is None else 1
        found: list[tuple[Any, Found]] = []
        for k in range(count):
            pieces, activation = FORMS[k % len(FORMS)]
            member: Any = self
            if count > 1:
                member = clone(self).set_params(n_members=1, activation=activation or self.activation)
                member._form, member._stages = pieces, f"network {k + 1} of {count}: "
                inputs = len(cut_into_pieces(X, weights).column) if pieces else X.shape[1]
                if pieces and inputs == X.shape[1]:
                    continue  # no column has more than two values
                features = member._make_features(min(inputs, len(X)), float(weights.sum()), seed)
                wide = not is_affordable(as_policy(self.policy), sum(p.numel() for p in features.parameters()), 0.0)
                if wide and k:
                    continue
            found.append((member, member._find(X, targets, loss, weights, labels, seed + k, most)))
            if count > 1 and found[0][1].trained.joint is None:
                if self.n_members is not None:
                    warnings.warn(
                        f"n_members={count} is not used: the network is too wide, or rows are too many, to leave rows out in "
                        "closed form. Set hidden to fewer units, or n_members=1",
                        UserWarning,
                        stacklevel=4,
                    )
                break
        return [(member, each) for member, each in found if each.trained.joint is not None] or found[:1]

    def _count_members(self, n_samples: int, n_targets: int) -> int:
        """Return how many networks to train."""
        free = self._seeks_relevances() and self.head_penalty == "auto" and self._has_own_layers()
        free = free and not self.warm_start and not self.early_stopping
        if self.n_members is None:
            few = 2 * FOLDS_OF_DOUBT <= n_samples <= self._rules.members_up_to and n_targets == 1
            return len(FORMS) if free and self.activation == "tanh" and few else 1
        count = check_count("n_members", self.n_members, 1)
        if count > 1 and not free:
            raise ValueError(
                f"n_members={count} needs penalties that are found from the data, the network of `hidden` and a fit without "
                "limits: leave features, theta_penalty, head_penalty, work, max_iter, early_stopping, warm_start, "
                "standardize=False and methods on batches out, or set n_members=1"
            )
        return count

    def _keep(self, found: Found, n_inputs: int) -> None:
        """Set the attributes that describe how a network was found."""
        result = found.trained.result
        self._columns, self._n_inputs = found.columns, n_inputs
        self.chosen_, self.history_, self.status_ = result.chosen, result.history, result.status
        self.loss_curve_ = result.history.column("loss")
        self.n_iter_ = sum(record.note is None for record in result.history) - 1

    def _seed(self) -> int:
        """Return a seed drawn from `random_state`."""
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _seeks_relevances(self) -> bool:
        """Return whether columns may be scaled by relevance: theta's penalty is searched for and work is not capped."""
        searches = self.theta_penalty == "auto" and self._searches(as_method(self.method, None))
        return searches and self.standardize and self.features is None and self.work is None and self.max_iter is None

    def _searches(self, method: Method) -> bool:
        """Return whether penalties that are "auto" can be searched for."""
        return method.parts() is None and method.whole_set

    def _are_many(self, n_samples: int) -> bool:
        """Return whether this many samples are trained on in batches, which an explicit method or solver prevents."""
        return self.method == "gnvpro" and self.solver is None and n_samples >= self._rules.batches_from

    def _train_by_relevance(
        self, loss: str, seen: list[RowSets], n_outputs: int, seed: int
    ) -> tuple[Trained, int, Tensor]:
        """Return a model, the index of the form of the inputs that it uses, and the factors of the columns.

        A first model of each form decides: the form with the highest sum of its evidence and the gain expected from relevances.
        With many samples, first models are trained on a part. With few, a first model is the result unless relevances raise
        its evidence.
        """
        n = len(seen[0].part.inputs)
        in_batches = self._are_many(n)
        rules = self._rules
        size = rules.part_rows if in_batches else max(rules.part_rows, int(rules.part_share * n))
        many = n >= 2 * size
        drawn = np.random.RandomState(seed).permutation(n)[:size]
        found: list[tuple[Trained, Tensor | None, float]] = []
        for samples in seen:
            few = RowSets(samples.part.take(drawn), None) if many else samples
            if found and not self._may_be_cut(loss, found[0][0], few.part, n_outputs, seed):
                break
            part = f" on {len(drawn)} of {n} rows" if many else ""
            self._stage = f"with columns in pieces, for steps along a column{part}" if found else f"first network{part}"
            model = self._train_in_units(loss, few, n_outputs, seed, rules.part_iterations if many else None)
            scales, gain = column_scales(model)
            found.append((model, scales, model.log_evidence + gain))
        which = max(range(len(found)), key=lambda i: found[i][-1])
        (first, scales, _), samples = found[which], seen[which]
        ones = samples.part.inputs.new_ones(samples.part.inputs.shape[1])
        if scales is None and not many:
            return first, which, ones
        columns = ones if scales is None else scales
        if in_batches:
            columns = half_way(columns)
            return self._train_like(first, loss, samples.scaled(columns), n_outputs, seed), which, columns
        self._stage = f"again{' on all rows' if many else ''}, columns scaled by importance"
        again = self._train_in_units(loss, samples.scaled(columns), n_outputs, seed)
        return (again, which, columns) if many or again.log_evidence > first.log_evidence else (first, which, ones)

    def _train_like(self, first: Trained, loss: str, samples: RowSets, n_outputs: int, seed: int) -> Trained:
        """Train on very many samples with the priors found on a part of them, in the units of that part's model.

        A prior has the precision n alpha / v for any number n of samples, so penalties alpha are inversely proportional to n.
        If there is noise, random batches suffice; for a smooth function exact steps reach much smaller errors.
        """
        squares, n = loss == "least_squares", len(samples.part.inputs)
        share = first.problem.n_observed / float(samples.part.weights.sum())
        found = {"theta_penalty": first.problem.theta_penalty.alpha, "head_penalty": first.problem.head_penalty}
        settings: dict[str, Any] = {
            name: share * value if getattr(self, name) == "auto" else value for name, value in found.items()
        }
        rules = self._rules
        if not (squares and first.noise <= rules.smooth_below):
            method = AdamVPro(seed=seed, memory=self.memory)
            epochs = rules.batch_steps * method.samples_per_batch(n, squares) / n
            work = min(max(2 * epochs, rules.least_work), rules.most_work)
            settings |= {"method": method, "work": work, "n_layers": 2}
        self._stage = "again on all rows, with the penalties found on a part of them"
        trained = self._train(loss, samples.in_units(first.units), n_outputs, seed, **settings)
        return replace(trained, units=first.units)

    def _may_be_cut(self, loss: str, whole: Trained, cut: RowSet, n_outputs: int, seed: int) -> bool:
        """Return whether it is worth training on columns in pieces, after a model of whole columns.

        It is not if the matrix is too large for exact evidence, if nothing is left to learn, or if pieces are far behind after
        a few iterations on a few of many samples, as is usual for smooth functions.
        """
        rules, features = self._rules, self._make_features(cut.inputs.shape[1], float(cut.weights.sum()), seed)
        weights = sum(p.numel() for p in features.parameters())
        if not is_affordable(as_policy(self.policy), weights, 0.0) or whole.noise <= rules.smooth_below:
            return False
        if len(cut.inputs) < 2 * rules.pilot_rows:
            return True
        drawn = np.random.RandomState(seed).permutation(len(cut.inputs))[: rules.pilot_rows]
        pilots = [
            RowSets(replace(cut, inputs=inputs).take(drawn), None) for inputs in (whole.samples.part.inputs, cut.inputs)
        ]
        most, self._stage = rules.pilot_iterations, "trial on few rows: do columns in pieces pay?"
        first, second = (self._train(loss, pilot, n_outputs, seed, most).log_evidence for pilot in pilots)
        return second - first > -rules.pilot_behind * rules.pilot_rows * n_outputs

    def _train_in_units(
        self, loss: str, samples: RowSets, n_outputs: int, seed: int, most: int | None = None
    ) -> Trained:
        """Train a model, with targets in suitable units, for at most `most` iterations."""
        return self._train(loss, samples, n_outputs, seed, most)

    def _train(
        self,
        loss: str,
        samples: RowSets,
        n_outputs: int,
        seed: int,
        most: int | None = None,
        n_layers: int = 1,
        **settings: Any,
    ) -> Trained:
        """Train a model of these samples for at most `most` iterations; held-out samples decide when to stop.

        `n_layers` counts if no layers are given; `settings` of `train` replace the usual ones.
        """
        directions = row_directions(samples.part.inputs) if self._may_rotate() else None
        samples = samples if directions is None else samples.along(directions)
        part, rest = samples.part, samples.rest
        features = self._make_features(part.inputs.shape[1], float(part.weights.sum()), seed, n_layers)
        head = nn.Linear(_n_features(features, part.inputs[:2]), n_outputs).double()
        model = nn.Sequential(OrderedDict(features=features, head=head))
        result = train(
            model,
            part.inputs,
            part.targets,
            validation=None if rest is None else (rest.inputs, rest.targets, rest.weights),
            keep="last" if rest is None else "best",
            patience=None if rest is None else self.patience,
            iterations=self.max_iter if most is None else most,
            listeners=self._watchers(loss),
            policy=self.policy,
            **self._training(loss, part, model, seed) | settings,
        )
        last = result.history[-1]
        problem = Problem(
            model,
            part.inputs,
            part.targets,
            loss=loss,
            theta_penalty=last.theta_penalty,
            head_penalty=last.head_penalty,
            sample_weight=part.weights,
            memory=self.memory,
            policy=self.policy,
        )
        return Trained(model, result, problem, samples, directions=directions)

    def _watchers(self, loss: str) -> str | StageProgress:
        """Choose what shows the progress of a training: nothing, one line per stage, or every step."""
        if not self.verbose:
            return "silent"

        def describe(record: Record) -> str:
            if loss == "least_squares":
                return f"error {math.sqrt(2 * record.misfit):.3g}"
            return f"log loss {record.misfit:.3g}"

        return StageProgress(self._stages + self._stage, describe, every_step=self.verbose > 1)

    def _training(self, loss: str, part: RowSet, model: nn.Module, seed: int) -> dict[str, Any]:
        """Return loss, method, work and penalties as arguments of `train`."""
        # solvers belong to "gnvpro" and "gauss-newton"; other methods do not take the default one
        takes_solver = not isinstance(self.method, str) or self.method in ("gnvpro", "gauss-newton")
        solver = (
            usual_solver(self._rules, loss, part, model)
            if self.solver is None and self.method == "gnvpro"
            else self.solver
        )
        method = as_method(self.method, solver if takes_solver else None)
        method = replace(method, seed=seed, memory=self.memory)
        penalties = {"theta_penalty": self.theta_penalty, "head_penalty": self.head_penalty}
        if not self._searches(method) or self._are_many(len(part.inputs)):
            usual = USUAL_PENALTY / float(part.weights.sum())
            penalties = {name: usual if value == "auto" else value for name, value in penalties.items()}
        return {"loss": loss, "method": method, "work": self.work, "sample_weight": part.weights, **penalties}

    @abstractmethod
    def _cuts(self, n_samples: float) -> tuple[bool, ...]:
        """Return whether to cut columns into pieces: (False, True) lets the evidence choose, else the first counts."""

    def _blends(self, found: Found) -> bool:
        """Return whether to weigh the network against simple models, which needs our own network and penalties."""
        searched = found.trained.result.chosen is not None or self._are_many(len(found.trained.samples.part.inputs))
        ours = self._has_own_layers() and self.standardize and not self.warm_start
        return searched and ours and found.trained.samples.rest is None

    def _may_rotate(self) -> bool:
        """Return whether inputs may be replaced by coordinates: our own first layer penalises all directions alike."""
        return self._has_own_layers() and self.standardize and not self._goes_on()

    def _has_own_layers(self) -> bool:
        """Return whether the network before the head is our MLP with at least one layer."""
        return self.features is None and (self.hidden is None or np.size(self.hidden) > 0)

    def _goes_on(self) -> bool:
        """Return whether to start from the last fit's model."""
        return bool(self.warm_start) and hasattr(self, "module_")

    def _make_features(self, n_inputs: int, n_samples: float, seed: int, n_layers: int = 1) -> nn.Module:
        """Return the feature extractor in double precision, with random weights of this seed."""
        if self._goes_on():
            return copy.deepcopy(self.module_.get_submodule("features"))
        if isinstance(self.features, nn.Module):
            return copy.deepcopy(self.features).double()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.features is not None:
                made = self.features(n_inputs) if callable(self.features) else None
                if not isinstance(made, nn.Module):
                    raise TypeError(
                        "features must be a torch.nn.Module, or a function of the number of inputs that returns one, "
                        f"got {self.features!r}"
                    )
                return made.double()
            wanted = usual_hidden(self._rules, n_samples, n_layers) if self.hidden is None else self.hidden
            hidden = [wanted] if isinstance(wanted, int | np.integer) else list(wanted)
            widths = [check_count("hidden", width, 1) for width in hidden]
            activation = self.activation
            if isinstance(activation, str):
                activation = ACTIVATIONS[check_choice("activation", activation, ACTIVATIONS)]
            return MLP(n_inputs, widths, activation, dtype=torch.float64)

    def _check_weights(self, X: Array, *others: Array, sample_weight: Any) -> list[Array]:
        """Return everything without the samples of weight zero, and the weights."""
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        kept = weights > 0
        if not kept.any():
            raise ValueError("sample_weight is zero for every sample: there is nothing to fit")
        return [X, *others, weights] if kept.all() else [a[kept] for a in (X, *others, weights)]

    def _inputs(self, X: Any) -> Tensor:
        check_is_fitted(self)
        codes = self._checked(X, reset=False)
        return torch.from_numpy(np.require(self.encoding_.expand(codes), requirements="W"))

    def _checked(self, X: Any, reset: bool = True, **settings: Any) -> Any:
        """Return one number per cell of the inputs (`gnvpro.sklearn.encoding`), with the targets if there are any."""
        encodes = needs_encoding(X) if reset else needs_encoding(X) or not self.encoding_.is_plain
        if not encodes:
            checked = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=reset, **settings)
            codes = checked[0] if "y" in settings else checked
            if reset:
                self.encoding_ = Encoding.plain(self._names(codes.shape[1]))
            elif np.isnan(codes).any():
                self.encoding_.codes(codes, doubts=True)
            return checked
        X = X if hasattr(X, "columns") else np.asarray(X, dtype=object)
        validate_data(
            self, X, reset=reset, skip_check_array=True, **({"y": "no_validation"} if "y" in settings else {})
        )
        if reset:
            self.encoding_ = Encoding.of(X)
        codes = self.encoding_.codes(X, doubts=not reset)
        limits: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan", "estimator": self} | settings
        return check_X_y(codes, **limits) if "y" in settings else check_array(codes, **limits)

    def _names(self, count: int) -> list[str]:
        """Return the names of the columns of X."""
        return [*map(str, getattr(self, "feature_names_in_", [f"x{j}" for j in range(count)]))]

    def _encode(self, codes: Array, targets: Array, weights: Array) -> Array:
        """Return the inputs of the network for the training rows; `targets` may teach levels of long categories."""
        self.encoding_, inputs = self.encoding_.learn(codes, targets, weights, self._rules.one_hot_up_to)
        return inputs

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the numbers that `module_` takes: one or more for each column of X."""
        check_is_fitted(self)
        if input_features is not None and [*map(str, input_features)] != [c.name for c in self.encoding_.columns]:
            raise ValueError(
                f"input_features must be the columns of the fit, {[c.name for c in self.encoding_.columns]}, "
                f"got {[*input_features]}"
            )
        return np.array(self.encoding_.names_out, dtype=object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    @property
    def partial_fit(self) -> Any:
        """Raise: every step needs all samples."""
        raise AttributeError(
            f"{type(self).__name__} has no partial_fit: every step needs all samples. Call fit with all of them "
            "(warm_start=True begins from the last model), or gnvpro.train with arrays on disk where they do not fit"
        )

    def _outputs(self, X: Any) -> tuple[Tensor, Tensor]:
        """Return the module's outputs, and the inputs."""
        with torch.no_grad():
            inputs = self._inputs(X)
            return self.module_(inputs), inputs

    def _spread(self, posterior: JointPosterior | HeadPosterior, inputs: Tensor) -> Tensor:
        """Return the variance of the outputs over the noise's, from a posterior of theta and head or of the head alone."""
        with torch.no_grad():
            return spread_of(posterior, self.module_[-2:], self.module_[:-2](inputs))


def usual_hidden(rules: EstimatorPolicy, n_samples: float, n_layers: int) -> list[int]:
    """Return widths of the layers: 16 units up to 2000 samples, then growing with the root of n; split among the layers."""
    width = max(rules.narrowest, rules.narrowest * math.sqrt(n_samples / 2000))
    return [int(min(rules.widest, width / n_layers))] * n_layers


def usual_solver(rules: EstimatorPolicy, loss: str, part: RowSet, model: nn.Module) -> str | Solver:
    """Choose exact steps if they are cheap, exact steps on a sample if those are, else quasi-Newton between Krylov spaces.

    For very many samples, whose penalties are not searched for, choose the default of `train`: random batches first.
    """
    if len(part.targets) >= rules.batches_from:
        return "auto"
    q = sum(p.numel() for p in model[:-1].parameters() if p.requires_grad)  # type: ignore[index]
    n_targets = part.targets.shape[-1] if loss == "least_squares" else 1

    def operations(rows: int) -> float:
        return operations_of_matrix(rows * min(n_targets, q), q)

    if loss != "multinomial" and operations(len(part.targets)) <= rules.exact_below:
        return "dense"
    many = loss == "least_squares" and len(part.targets) > rules.matrix_rows
    affordable = many and operations(rules.matrix_rows) <= rules.matrix_below
    return Dense(samples=rules.matrix_rows) if affordable else "hybrid"


def _n_features(features: nn.Module, inputs: Tensor) -> int:
    """Return the number of features by running the module; inputs have one row per sample."""
    with evaluating(features), torch.no_grad():
        Z = features(inputs)
    if not isinstance(Z, Tensor) or Z.ndim != 2 or len(Z) != len(inputs):
        shape = tuple(Z.shape) if isinstance(Z, Tensor) else type(Z).__name__
        raise ValueError(f"features must return (samples, features) for {tuple(inputs.shape)} inputs, got {shape}")
    return Z.shape[1]
