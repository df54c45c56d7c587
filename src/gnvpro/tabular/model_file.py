"""A fitted estimator as one safetensors file: weights, and in its header everything else that predicting takes.

Nothing in the file is code: layers are named, and rebuilt from their names. A file is taken for a model only if its checksum
is right, its layers have the shapes of its tensors, and it can predict a row.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnvpro.extras import need
from gnvpro.network.subspace import Subspace
from gnvpro.networks.architecture import KINDS, Kinds, filled, layers_of, module_of
from gnvpro.objectives.joint_posterior import JointPosterior
from gnvpro.objectives.posterior import HeadPosterior
from gnvpro.sklearn import GNvproClassifier, GNvproRegressor, scaling
from gnvpro.sklearn.encoding import EncodedColumn, Encoding
from gnvpro.sklearn.linear import LinearSpread
from gnvpro.sklearn.parts import PartPosteriors, Posterior, SideBySide
from gnvpro.tabular.order import Reading
from gnvpro.tabular.table_columns import Columns
from gnvpro.tensor_file import read_tensors, write_tensors

FORMAT = "gnvpro table model 3"
KIND_OF = {"number": "number", "date": "date", "levels": "category"}  # in a table, by that of the encoding
JOINT = ("theta", "W", "mix", "seeds", "factor", "follow", "head_root", "scale")  # tensors of a JointPosterior
LINEAR = ("directions", "squares", "alphas")
SUBSPACE = ("kept", "mirror", "scale")
SCALINGS = {
    name: kind for name, kind in vars(scaling).items() if isinstance(kind, type) and issubclass(kind, nn.Module)
}
LAYERS: Kinds = {**KINDS, **SCALINGS, "SideBySide": SideBySide}
Estimator = GNvproRegressor | GNvproClassifier


@dataclass(frozen=True)
class TableModel:
    """A fitted estimator and the columns it takes."""

    estimator: Estimator
    columns: Columns

    @property
    def classifies(self) -> bool:
        """True if the targets are classes."""
        return isinstance(self.estimator, GNvproClassifier)


def save(path: Path, model: TableModel) -> None:
    """Write the model."""
    estimator = model.estimator
    layers = layers_of(estimator.module_, LAYERS)
    if layers is None:
        raise TypeError("a layer of the model cannot be written into the file of a table model")
    tensors = {f"module.{name}": value for name, value in estimator.module_.state_dict().items()}
    parts, facts = posterior_parts(estimator._posterior)
    tensors |= {f"posterior.{name}": value for name, value in parts.items()}
    if isinstance(estimator, GNvproRegressor):
        tensors["noise_std"] = torch.as_tensor(np.asarray(estimator.noise_std_))
    description = {
        "format": FORMAT,
        "layers": layers,
        "inputs": dict(model.columns.inputs),
        "encoding": {column.name: asdict(column) for column in estimator.encoding_.columns},
        "targets": list(model.columns.targets),
        "reading": asdict(model.columns.reading),
        "posterior": facts,
        "classes": np.asarray(estimator.classes_).tolist() if isinstance(estimator, GNvproClassifier) else None,
    }
    write_tensors(path, tensors, description)


def load(path: Path) -> TableModel:
    """Read a model.

    Raises:
        ValueError: the file is damaged, or holds no model of a table.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; gnvpro train writes it as OUT/model.safetensors")
    try:
        header, tensors = read_tensors(path)
    except ValueError as error:
        raise ValueError(f"{error}; give a file that gnvpro train wrote") from error
    if header.get("format") != FORMAT:
        raise ValueError(f"{path} holds weights, but no model of a table; give one that gnvpro train wrote")
    try:
        model = rebuilt(header, tensors)
        predicts(model)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no sound model of a table ({error}); give one that gnvpro train wrote") from error
    return model


def rebuilt(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> TableModel:
    """Return the fitted estimator."""
    columns = columns_of(header)
    module = filled(module_of(header["layers"], LAYERS), below("module.", tensors))
    estimator: Any = GNvproRegressor() if header["classes"] is None else GNvproClassifier()
    estimator.module_ = module.eval()
    described = header["encoding"]
    if list(described) != list(columns.inputs):
        raise ValueError("its columns and their encoding differ")
    estimator.encoding_ = Encoding(tuple(EncodedColumn.of_facts(name, facts) for name, facts in described.items()))
    if any(
        kind != KIND_OF[each.kind]
        for each, kind in zip(estimator.encoding_.columns, columns.inputs.values(), strict=True)
    ):
        raise ValueError("its columns and their encoding differ")
    estimator.n_features_in_, estimator.feature_names_in_ = len(described), np.array([*described], dtype=object)
    estimator._posterior = posterior_of(below("posterior.", tensors), header["posterior"])
    if header["classes"] is None:
        estimator.noise_std_ = tensors["noise_std"].numpy()
        estimator._flat = len(columns.targets) == 1
    else:
        estimator.classes_ = np.asarray(header["classes"])
    return TableModel(estimator, columns)


def columns_of(header: Mapping[str, Any]) -> Columns:
    """Return the columns that a header names, after checking their types."""
    inputs, targets, classes = header["inputs"], header["targets"], header["classes"]
    names = [*targets, *inputs, *inputs.values()]
    lists = [targets, *([] if classes is None else [classes])]
    if not all(isinstance(name, str) for name in names) or not all(isinstance(each, list) for each in lists):
        raise ValueError("its columns are no lists of names")
    if not inputs or not targets or any(len(set(each)) < len(each) for each in lists):
        raise ValueError("its columns, targets or classes are none, or are named twice")
    if classes is not None and (len(targets) != 1 or len(classes) < 2):
        raise ValueError("its classes are fewer than two, or of several targets")
    given = header["reading"]
    reading = Reading(given["decimal"], tuple(given["missing"]), tuple(given["categories"]))
    return Columns(dict(inputs), tuple(targets), reading)


def predicts(model: TableModel) -> None:
    """Raise if the model cannot predict a row of its columns."""
    estimator = model.estimator
    cells = {"number": np.zeros(1), "category": np.array([None]), "date": np.zeros(1, "datetime64[us]")}
    row = need("pandas", "tabular").DataFrame({name: cells[kind] for name, kind in model.columns.inputs.items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a missing level
        check_row(model, estimator, row)


def check_row(model: TableModel, estimator: Estimator, row: Any) -> None:
    """Raise if the predictions of a row are not as many as there are targets or classes."""
    if isinstance(estimator, GNvproClassifier):
        found = estimator.predict_proba(row).shape[1], len(estimator.predict(row))
        wanted = len(estimator.classes_), 1
    else:
        mean, std = (np.reshape(part, (1, -1)) for part in estimator.predict(row, return_std=True))
        found, wanted = (mean.shape[1], std.shape[1]), (len(model.columns.targets),) * 2
    if found != wanted:
        raise ValueError(f"it predicts {found[0]} numbers per row instead of {wanted[0]}")


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names begin so, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def posterior_parts(posterior: Posterior | PartPosteriors | None) -> tuple[dict[str, Tensor], Any]:
    """Return the uncertainty of the parameters as tensors and as facts for the header."""
    if posterior is None:
        return {}, None
    if isinstance(posterior, PartPosteriors):
        found = {name: posterior_parts(each) for name, each in posterior.posteriors.items()}
        tensors = {f"{name}.{key}": value for name, (parts, _) in found.items() for key, value in parts.items()}
        if posterior.linear is not None:
            tensors |= {f"linear.{name}": vars(posterior.linear)[name] for name in LINEAR}
        facts = {
            "of": "parts",
            "sources": [[list(part) for part in target] for target in posterior.sources],
            "total": posterior.total,
        }
        return tensors, facts | {"parts": {name: each for name, (_, each) in found.items()}}
    if isinstance(posterior, HeadPosterior):
        return {str(k): factor for k, factor in enumerate(posterior.factors)}, {"of": "head"}
    tensors = {name: vars(posterior)[name] for name in JOINT}
    tensors |= {f"subspace.{name}": vars(posterior.subspace)[name] for name in SUBSPACE}
    parameters = [[name, list(shape)] for name, shape in posterior.subspace.parameters]
    return tensors, {"of": "theta and head", "parameters": parameters, "n_samples": posterior.n_samples}


def posterior_of(tensors: Mapping[str, Tensor], facts: Any) -> Any:
    """Return the uncertainty of the parameters, rebuilt."""
    if facts is None:
        return None
    if facts["of"] == "parts":
        parts = {name: posterior_of(below(f"{name}.", tensors), each) for name, each in facts["parts"].items()}
        own, total = below("linear.", tensors), facts["total"]
        linear = LinearSpread(**{name: own[name] for name in LINEAR}, total=total) if own else None
        return PartPosteriors(
            parts,
            linear,
            tuple(tuple((name, k, share) for name, k, share in target) for target in facts["sources"]),
            total,
        )
    if facts["of"] == "head":
        return HeadPosterior(tuple(tensors[str(k)] for k in range(len(tensors))))
    parameters = [(name, tuple(shape)) for name, shape in facts["parameters"]]
    subspace = Subspace(parameters, len(tensors["theta"]), *(tensors[f"subspace.{name}"] for name in SUBSPACE))
    return JointPosterior(**{name: tensors[name] for name in JOINT}, subspace=subspace, n_samples=facts["n_samples"])
