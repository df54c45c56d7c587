"""`Surrogate`: samples of a simulator in; predictions, derivatives and their uncertainty out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import qmc
from torch import Tensor

from gnvpro.arguments import check_choice, check_count, check_number
from gnvpro.files import regular_file, replacing
from gnvpro.surrogate.acquisition import GOALS, choose, make_pool
from gnvpro.surrogate.candidates import KERNELS, MOST_ROWS, Choices, FittedForm, Form, Sampled, search, spread_out
from gnvpro.surrogate.deploy import SurrogateModule, export_program, write_onnx
from gnvpro.surrogate.distribution import Inputs, Propagated
from gnvpro.surrogate.given import LEAST_SAMPLES, check_data, check_levels, finite, like, matrix
from gnvpro.surrogate.member import Derived, Member
from gnvpro.surrogate.outputs import OutputBasis
from gnvpro.surrogate.sobol import SobolIndices, sobol_indices
from gnvpro.surrogate.trend import TRENDS
from gnvpro.tensor_file import read_tensors, write_tensors

KIND = "gnvpro surrogate 1"
MOST_TRIED = 40  # evaluations of the likelihood for each point of a learning curve
BEYOND = 0.01  # share of an input's range beyond the samples at which a point counts as outside


class OutsideWarning(UserWarning):
    """Points lie outside of the box of the samples.

    >>> import warnings
    >>> from gnvpro import surrogate
    >>> model = surrogate.fit([[0.0], [0.4], [0.7], [1.0]], [0.0, 0.8, 1.4, 2.0])
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = model.predict([[3.0]])
    >>> caught[0].category.__name__
    'OutsideWarning'
    """


@dataclass(frozen=True)
class SampleBox:
    """The box of the samples."""

    low: Tensor
    high: Tensor

    def outside(self, x: Tensor) -> Tensor:
        """Return whether each point lies outside."""
        margin = BEYOND * (self.high - self.low)
        return ((x < self.low - margin) | (x > self.high + margin)).any(1)


class Surrogate:
    """A differentiable model of a simulator, from few samples.

    A kernel model with its weights eliminated; its lengths maximise the likelihood, and left-out samples choose the kernel,
    the trend, and whether logarithms are modelled.

    Args:
        kernel: "rbf", "matern52" or "matern32"; chosen from the first two by left-out samples if None.
        trend: "constant", "linear", "squares" or "quadratic"; chosen if None.
        log: whether to model the logarithm of positive targets; chosen if None.
        noise: whether targets may have noise. False interpolates them.
        random_state: seed of everything that is drawn.
        pilot_rows: choose kernel, trend and logarithm on at most so many samples, and lengths on three times as many.

    >>> X = np.linspace(0, 1, 12)[:, None]
    >>> s = Surrogate().fit(X, np.sin(6 * X[:, 0]))
    >>> bool(abs(s.predict([[0.52]]) - np.sin(6 * 0.52)) < 1e-3), s.gradient([[0.5]]).shape
    (True, (1, 1))
    """

    def __init__(
        self,
        *,
        kernel: str | None = None,
        trend: str | None = None,
        log: bool | None = None,
        noise: bool = True,
        random_state: int = 0,
        pilot_rows: int = 200,
    ) -> None:
        if kernel is not None:
            check_choice("kernel", kernel, KERNELS)
        if trend is not None:
            check_choice("trend", trend, TRENDS)
        for name, value in (("log", log), ("noise", noise)):
            if not isinstance(value, bool) and not (name == "log" and value is None):
                raise TypeError(f"{name} must be True or False, got {value!r}")
        self.kernel, self.trend, self.log, self.noise = kernel, trend, log, noise
        self.random_state, self.pilot_rows = random_state, check_count("pilot_rows", pilot_rows, 3)
        self._trials: tuple[FittedForm, ...] = ()

    def fit(self, X: Any, y: Any = None, gradients: Any = None) -> Surrogate:
        """Fit to samples.

        Args:
            X: (samples, inputs), numbers without missing values; or a list of (X, y) or (X, y, gradients), one for each
                fidelity, the cheapest first. Each model is then a column in the trend of the next.
            y: (samples,) or (samples, outputs). More than eight outputs are modelled in a basis of few.
            gradients: slopes of y in X, (samples, inputs) or (samples, outputs, inputs); NaN where one is missing.

        Returns:
            The surrogate itself.

        Raises:
            ValueError, TypeError: an argument cannot be used; the message says what to do.
        """
        return self._fit_levels(*check_levels(X, y, gradients))

    def _fit_levels(self, levels: list[Sampled], flat: bool) -> Surrogate:
        if self.log and not all(bool((level.y > 0).all()) for level in levels):
            raise ValueError("log=True needs positive targets; y has values at or below zero")
        basis = OutputBasis.of(torch.cat([level.y for level in levels]))
        log = self.log if all(bool((level.y > 0).all()) for level in levels) and basis is None else False
        fixed = Choices(self.kernel, self.trend, log, self.noise, self.pilot_rows)
        for level in levels:
            if len(level) > MOST_ROWS:
                warnings.warn(
                    f"a kernel model uses at most {MOST_ROWS} samples, evenly spread over these {len(level)}; "
                    "gnvpro.GNvproRegressor uses all",
                    UserWarning,
                    stacklevel=3,
                )
        projected = levels if basis is None else [basis.project(level) for level in levels]
        chains: list[tuple[FittedForm, ...]] = []
        for k in range(projected[0].y.shape[1]):
            if basis is not None and chains:  # the first component decides for all
                form = chains[0][-1].form
                fixed = replace(fixed, kernel=form.kernel, trend=form.trend)
            chains.append(_chain([level.output(k) for level in projected], fixed))
        self._keep(levels, flat, basis, chains)
        return self

    def _keep(
        self, levels: list[Sampled], flat: bool, basis: OutputBasis | None, chains: Sequence[tuple[FittedForm, ...]]
    ) -> None:
        self._levels, self._flat, self._basis, self._chains = levels, flat, basis, tuple(chains)
        self._data = spread_out(levels[-1], MOST_ROWS)
        self._trials = tuple(chain[-1] for chain in chains)
        self.domain_ = SampleBox(levels[-1].x.min(0).values, levels[-1].x.max(0).values)

    @property
    def n_inputs_(self) -> int:
        """The number of inputs."""
        return self._fitted().x.shape[1]

    @property
    def n_outputs_(self) -> int:
        """The number of outputs."""
        return self._fitted().y.shape[1]

    @property
    def loo_error_(self) -> Any:
        """Root mean square error at left-out samples over the deviation of the targets, for each output."""
        data = self._fitted()
        error = (self.left_out()[0].reshape(data.y.shape) - data.y.numpy()) / data.y.std(0, correction=0).numpy()
        return np.sqrt(np.square(error).mean(0))

    def _fitted(self) -> Sampled:
        if not self._trials:
            raise ValueError("this surrogate is not fitted yet; call fit(X, y) first")
        return self._data

    def _points(self, X: Any) -> Tensor:
        return finite("X", matrix("X", X, self._fitted().x.shape[1]))

    def predict(self, X: Any, return_std: bool = False, return_outside: bool = False) -> Any:
        """Predict outputs at points.

        Args:
            X: (points, inputs). A tensor gives tensors, through which gradients flow.
            return_std: whether to return the standard deviation of a new observation too. It grows away from the samples.
            return_outside: whether to return which points lie outside of the box of the samples. Without it such points
                raise an `OutsideWarning`.

        Returns:
            Means like y, (points,) or (points, outputs); a tuple with what else was requested.
        """
        x = self._points(X)
        found = [trial.member.values(x, return_std) for trial in self._trials]
        outside = self.domain_.outside(x.detach())
        if not return_outside and bool(outside.any()):
            warnings.warn(
                f"{int(outside.sum())} of {len(x)} points lie outside of the samples' box; predictions there extrapolate",
                OutsideWarning,
                stacklevel=2,
            )
        results = [self._means(X, found, values=True)]
        if return_std:
            results.append(self._stds(X, found, values=True))
        if return_outside:
            results.append(like(X, outside))
        return results[0] if len(results) == 1 else tuple(results)

    def gradient(self, X: Any, return_std: bool = False) -> Any:
        """Return slopes at points: (points, inputs), or (points, outputs, inputs) if y had two axes."""
        x = self._points(X)
        found = [trial.member.gradient(x, return_std) for trial in self._trials]
        means = self._means(X, found)
        return (means, self._stds(X, found)) if return_std else means

    def hessian(self, X: Any, return_std: bool = False) -> Any:
        """Return second derivatives at points: (points, inputs, inputs), or (points, outputs, inputs, inputs)."""
        x = self._points(X)
        found = [trial.member.hessian(x, return_std) for trial in self._trials]
        means = self._means(X, found)
        return (means, self._stds(X, found)) if return_std else means

    def _means(self, given: Any, found: Sequence[Derived], values: bool = False) -> Any:
        """Return outputs side by side, or the only one."""
        parts = [each.mean[:, 0] for each in found]
        if self._basis is not None:
            return like(given, self._basis.combined(parts, values))
        return like(given, parts[0] if self._flat else torch.stack(parts, 1))

    def _stds(self, given: Any, found: Sequence[Derived], values: bool = False) -> Any:
        """Return standard deviations side by side, or the only one."""
        parts = [each.std[:, 0] for each in found if each.std is not None]
        if self._basis is not None:
            return like(given, self._basis.spread(parts, values))
        return like(given, parts[0] if self._flat else torch.stack(parts, 1))

    def left_out(self) -> tuple[Any, Any]:
        """Predict each sample by a model without it: means and standard deviations like y."""
        found = [trial.member.left_out() for trial in self._trials]
        return self._means(None, found, values=True), self._stds(None, found, values=True)

    def sobol(
        self, distribution: Any = None, n: int = 1024, level: float = 0.95, random_state: int | None = None
    ) -> SobolIndices:
        """Return first-order and total Sobol indices of each input, with intervals.

        Args:
            distribution: one entry per input: an object with `ppf` (scipy.stats), (low, high), or None for the samples' range.
            n: points in each of 16 replicates, a power of two; each point needs inputs + 2 predictions.
            level: probability that an interval covers the index of this surrogate.
            random_state: seed; the surrogate's own if None.

        Returns:
            `first`, `total`, `first_interval`, `total_interval`: (inputs,), or (outputs, inputs) if y had two axes.
        """
        inputs = self._inputs(distribution)
        if check_count("n", n, 2) & (n - 1):
            raise ValueError(f"n must be a power of two, got {n}")
        _check_level(level)
        seed = self.random_state if random_state is None else random_state
        found = sobol_indices(self._values, inputs, n, level, seed)
        if not self._flat:
            return found
        ends = [(low[0], high[0]) for low, high in (found.first_interval, found.total_interval)]
        return SobolIndices(found.first[0], found.total[0], *ends)

    def propagate(self, distribution: Any = None, n: int = 8192, random_state: int | None = None) -> Propagated:
        """Return the distribution of the outputs for a distribution of the inputs.

        Args:
            distribution: as for `sobol`.
            n: number of points.
            random_state: seed; the surrogate's own if None.

        Returns:
            `mean`, `std`, `surrogate_std`, `samples` and `quantile(level)`.
        """
        inputs = self._inputs(distribution)
        seed = self.random_state if random_state is None else random_state
        unit = qmc.LatinHypercube(len(inputs), rng=seed).random(check_count("n", n, 2))
        x = torch.as_tensor(inputs.at(unit))
        found = [trial.member.values(x, True) for trial in self._trials]
        samples, own = self._means(None, found, values=True), self._stds(None, found, values=True)
        return Propagated(samples.mean(0), samples.std(0), np.sqrt(np.square(own).mean(0)), samples)

    def suggest(
        self,
        n: int = 1,
        goal: str = "accuracy",
        *,
        level: float | None = None,
        bounds: Sequence[tuple[float, float]] | None = None,
        constraint: Callable[[Any], Any] | None = None,
        candidates: Any = None,
        random_state: int | None = None,
    ) -> Any:
        """Return the points whose samples would serve a goal most, (n, inputs), best first.

        Args:
            n: how many. Each one counts with those before it.
            goal: "accuracy" (less variance everywhere), "minimum" (of the only output), or "contour" (where it equals `level`).
            level: value of the contour.
            bounds: (low, high) of each input; the samples' box if None.
            constraint: a function of points (points, inputs) that returns True for each one that may be chosen.
            candidates: points to choose from; if None, points of the box and around the best sample.
            random_state: seed of the candidates; by default another one for every number of samples.
        """
        data = self._fitted()
        check_count("n", n, 1)
        check_choice("goal", goal, GOALS)
        if (goal == "contour") != (level is not None):
            raise ValueError(
                f"level must be given for goal='contour' and only there; got level={level!r}, goal={goal!r}"
            )
        if goal != "accuracy" and len(self._trials) > 1:
            raise ValueError(f"goal={goal!r} needs a surrogate of one output, this one has {self.n_outputs_}")
        if goal == "contour" and self._trials[0].member.log and not level > 0:  # type: ignore[operator]
            raise ValueError(f"level must be positive for a surrogate of logarithms, got {level!r}; fit with log=False")
        if bounds is None:
            low, high = self.domain_.low.numpy(), self.domain_.high.numpy()
        else:
            low, high = np.array(bounds, dtype=np.float64).reshape(-1, 2).T
            if len(low) != self.n_inputs_ or not (low < high).all():
                raise ValueError(
                    f"bounds must have (low, high) with low < high for {self.n_inputs_} inputs, got {bounds!r}"
                )
        given = (
            None
            if candidates is None
            else finite("candidates", matrix("candidates", candidates, self.n_inputs_)).numpy()
        )
        if given is not None and len(given) < n:
            raise ValueError(f"candidates has {len(given)} points, fewer than n={n}")
        best = data.x[int(data.y[:, 0].argmin())].numpy()
        seed = self.random_state + len(data) if random_state is None else random_state
        pool = make_pool(low, high, constraint, given, best, seed)
        chosen = choose([trial.member for trial in self._trials], pool, n, goal, level)
        return pool.candidates[chosen]

    def ask(self, n: int = 1, goal: str = "accuracy", **settings: Any) -> Any:
        """Return points to run the simulator at; the same as `suggest`."""
        return self.suggest(n, goal, **settings)

    def tell(self, X: Any, y: Any, gradients: Any = None) -> Surrogate:
        """Fit again to the samples so far and these, which are of the highest fidelity."""
        self._fitted()
        data = self._levels[-1]
        new, flat = check_data(matrix("X", X, self.n_inputs_), y, gradients, least=1)
        if flat != self._flat or new.y.shape[1] != data.y.shape[1]:
            raise ValueError(f"y must have the same outputs as in the fit ({data.y.shape[1]}), got {new.y.shape[1]}")
        slopes = None
        if data.gradients is not None or new.gradients is not None:
            slopes = torch.cat([_slopes_of(data), _slopes_of(new)])
        joined = Sampled(torch.cat([data.x, new.x]), torch.cat([data.y, new.y]), slopes)
        return self._fit_levels([*self._levels[:-1], joined], flat)

    def module(self, jacobian: bool = False) -> SurrogateModule:
        """Return the surrogate as a plain module: (points, inputs) to (points, outputs), and their slopes if asked."""
        self._fitted()
        return SurrogateModule([trial.member for trial in self._trials], self._basis, jacobian)

    def export(self, path: str | Path, jacobian: bool = False) -> None:
        """Write the surrogate for other programs.

        Args:
            path: an ONNX file (.onnx; needs the extra onnx), or a program of `torch.export` (.pt2).
            jacobian: whether the slopes are a second output.
        """
        target, module = Path(path), self.module(jacobian)
        if target.suffix not in (".onnx", ".pt2"):
            raise ValueError(f"path must end in .onnx or .pt2, got {str(path)!r}")
        if target.suffix == ".onnx":
            write_onnx(module, self.n_inputs_, target, jacobian)
        else:
            with replacing(regular_file(target)) as file:
                torch.export.save(export_program(module, self.n_inputs_), file)

    def _inputs(self, distribution: Any) -> Inputs:
        self._fitted()
        return Inputs.of(distribution, self.domain_.low.numpy(), self.domain_.high.numpy())

    def _values(self, X: Any) -> Any:
        """Return means as an array (points, outputs), without warnings."""
        x = torch.as_tensor(X)
        with torch.no_grad():
            found = self._means(None, [trial.member.values(x, False) for trial in self._trials], values=True)
        return found.reshape(len(found), -1)

    def learning_curve(self) -> list[tuple[int, float]]:
        """Return counts of samples and the left-out error, in deviations, of the same kernel with a constant trend."""
        whole = self._data if self._basis is None else self._basis.project(self._data)
        curve = []
        for share in (4, 2, 1):
            count = len(whole) // share
            found = [
                replace(trial.form, trend="constant").tried(
                    spread_out(replace(whole.output(k), cheaper=self._cheaper(k)), count), [trial.numbers], MOST_TRIED
                )
                for k, trial in enumerate(self._trials)
                if count >= LEAST_SAMPLES
            ]
            known = [each for each in found if each is not None]
            if len(known) == len(self._trials):
                curve.append((count, _mean_error(known)))
        return curve

    def _cheaper(self, k: int) -> Member | None:
        return self._chains[k][-2].member if len(self._levels) > 1 else None

    def summary(self) -> str:
        """Return what was chosen and how well left-out samples are predicted, one line per output."""
        data = self._fitted()
        lines = [f"{len(data)} samples, {data.x.shape[1]} inputs, {data.y.shape[1]} outputs"]
        for k, trial in enumerate(self._trials):
            lines.append(
                f"output {k}: {trial.member.name}; error at left-out samples {self.loo_error_[k]:.2g} deviations"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        if not self._trials:
            return "Surrogate(not fitted)"
        return f"Surrogate({len(self._data)} samples, {self.n_inputs_} inputs, {self.n_outputs_} outputs)"

    def save(self, path: str | Path) -> None:
        """Write samples and choices to a file, whole or not at all; needs safetensors."""
        self._fitted()
        tensors: dict[str, Tensor] = {}
        for i, level in enumerate(self._levels):
            tensors |= {f"x{i}": level.x, f"y{i}": level.y}
            if level.gradients is not None:
                tensors[f"gradients{i}"] = level.gradients
            for k, chain in enumerate(self._chains):
                tensors[f"numbers{i}.{k}"] = torch.as_tensor(chain[i].numbers)
                tensors[f"inflation{i}.{k}"] = chain[i].member.model.inflation
        description = {
            "kind": KIND,
            "flat": self._flat,
            "forms": [[asdict(trial.form) for trial in chain] for chain in self._chains],
            "settings": [self.kernel, self.trend, self.log, self.noise, self.random_state, self.pilot_rows],
        }
        write_tensors(Path(path), tensors, description)

    @classmethod
    def load(cls, path: str | Path) -> Surrogate:
        """Read a surrogate that `save` wrote."""
        description, tensors = read_tensors(Path(path))
        if description.get("kind") != KIND:
            raise ValueError(f"{path} holds no surrogate of this version of gnvpro; write it with Surrogate.save")
        kernel, trend, log, noise, seed, rows = description["settings"]
        made = cls(kernel=kernel, trend=trend, log=log, noise=noise, random_state=seed, pilot_rows=rows)
        count = len(description["forms"][0])
        levels = [Sampled(tensors[f"x{i}"], tensors[f"y{i}"], tensors.get(f"gradients{i}")) for i in range(count)]
        basis = OutputBasis.of(torch.cat([level.y for level in levels]))
        projected = levels if basis is None else [basis.project(level) for level in levels]
        chains = []
        for k, forms in enumerate(description["forms"]):
            chain: list[FittedForm] = []
            for i, form in enumerate(forms):
                data = spread_out(
                    replace(projected[i].output(k), cheaper=chain[-1].member if chain else None), MOST_ROWS
                )
                trial = Form(**form).built(data, tensors[f"numbers{i}.{k}"].numpy(), tensors[f"inflation{i}.{k}"])
                if trial is None:
                    raise ValueError(f"output {k} of {path} cannot be computed on this machine; fit it again")
                chain.append(trial)
            chains.append(tuple(chain))
        made._keep(levels, description["flat"], basis, chains)
        return made


def _chain(levels: Sequence[Sampled], fixed: Choices) -> tuple[FittedForm, ...]:
    """Fit one output at every fidelity, each model a column of the next."""
    chain: list[FittedForm] = []
    for level in levels:
        chain.append(search(replace(level, cheaper=chain[-1].member if chain else None), fixed))
    return tuple(chain)


def _mean_error(trials: Sequence[FittedForm]) -> float:
    return float(np.sqrt(np.mean([trial.error**2 for trial in trials])))


def _slopes_of(data: Sampled) -> Tensor:
    """Return slopes, all missing if there are none."""
    if data.gradients is not None:
        return data.gradients
    return torch.full((len(data), data.y.shape[1], data.x.shape[1]), torch.nan, dtype=torch.float64)


def _check_level(level: object) -> None:
    if check_number("level", level, 0.0, strict=True) >= 1:
        raise ValueError(f"level must be below 1, got {level!r}")


def fit(X: Any, y: Any = None, gradients: Any = None, **settings: Any) -> Surrogate:
    """Fit a surrogate to samples: `Surrogate(**settings).fit(X, y, gradients)`.

    Args:
        X: inputs, (samples, inputs), or a list of pairs (X, y) from the cheapest simulator to the best one.
        y: outputs, (samples,) or (samples, outputs). Left out if X is a list of pairs.
        gradients: slopes of the outputs at the samples, (samples, inputs) or (samples, outputs, inputs). NaN where missing.
        **settings: of [`Surrogate`][gnvpro.surrogate.Surrogate], such as `random_state`.

    Returns:
        The fitted surrogate.

    Raises:
        ValueError: for arrays whose sizes differ, and for numbers that are not finite.

    >>> import numpy as np
    >>> from gnvpro import surrogate
    >>> x = np.linspace(0.0, 1.0, 8)[:, None]
    >>> model = surrogate.fit(x, np.sin(3.0 * x[:, 0]), random_state=0)
    >>> bool(abs(model.predict([[0.5]])[0] - np.sin(1.5)) < 1e-3)
    True
    """
    return Surrogate(**settings).fit(X, y, gradients)
