"""A fitted estimator as one safetensors file: weights, and in its header everything else that predicting takes.

Nothing in the file is code: layers are named, and rebuilt from their names.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnvpro.extras import need
from gnvpro.files import replacing
from gnvpro.network.subspace import Subspace
from gnvpro.objectives.joint_posterior import JointPosterior
from gnvpro.objectives.posterior import HeadPosterior
from gnvpro.sklearn import GNvproClassifier, GNvproRegressor
from gnvpro.sklearn.base import ACTIVATIONS
from gnvpro.sklearn.linear import LinearSpread
from gnvpro.sklearn.parts import Beside, PartPosteriors, Posterior
from gnvpro.sklearn.scaling import CompressTails, Pieces, Rescale, Rotate, Standardize
from gnvpro.tabular.read import Columns

FORMAT = "gnvpro table model 1"
JOINT = ("theta", "W", "mix", "seeds", "factor", "follow", "head_root", "scale")  # tensors of a JointPosterior
LINEAR = ("directions", "squares", "alphas")
SUBSPACE = ("kept", "mirror", "scale")
Estimator = GNvproRegressor | GNvproClassifier


@dataclass(frozen=True)
class TableModel:
    """A fitted estimator and the columns it takes."""

    estimator: Estimator
    columns: Columns

    @property
    def classifies(self) -> bool:
        """Whether the targets are classes."""
        return isinstance(self.estimator, GNvproClassifier)


def save(path: Path, model: TableModel) -> None:
    """Write the model."""
    estimator = model.estimator
    tensors = {f"module.{name}": value for name, value in estimator.module_.state_dict().items()}
    parts, facts = posterior_parts(estimator._posterior)
    tensors |= {f"posterior.{name}": value for name, value in parts.items()}
    header: dict[str, Any] = {
        "format": FORMAT,
        "layers": layers_of(estimator.module_),
        "inputs": {name: list(values) for name, values in model.columns.inputs.items()},
        "targets": list(model.columns.targets),
        "posterior": facts,
        "classes": np.asarray(estimator.classes_).tolist() if isinstance(estimator, GNvproClassifier) else None,
    }
    if isinstance(estimator, GNvproRegressor):
        tensors["noise_std"] = torch.as_tensor(np.asarray(estimator.noise_std_))
    content = need("safetensors.torch", "tabular").save(
        {name: value.detach().clone().contiguous() for name, value in tensors.items()}, {"gnvpro": json.dumps(header)}
    )
    with replacing(path) as file:
        file.write(content)


def load(path: Path) -> TableModel:
    """Read a model; a ValueError says what is wrong with the file."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; gnvpro train writes it as OUT/model.safetensors")
    try:
        with need("safetensors", "tabular").safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {}).get("gnvpro", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    except ImportError:
        raise
    except Exception as error:  # safetensors has an exception of its own
        raise ValueError(f"{path} is no safetensors file ({error}); give one that gnvpro train wrote") from error
    if header.get("format") != FORMAT:
        raise ValueError(f"{path} holds weights, but no model of a table; give one that gnvpro train wrote")
    return rebuilt(header, tensors)


def rebuilt(header: dict[str, Any], tensors: dict[str, Tensor]) -> TableModel:
    """The estimator as it was after `fit`."""
    module = module_of(header["layers"])
    module.load_state_dict(below("module.", tensors))
    columns = Columns({name: tuple(values) for name, values in header["inputs"].items()}, tuple(header["targets"]))
    estimator: Any = GNvproRegressor() if header["classes"] is None else GNvproClassifier()
    estimator.module_ = module.eval()
    estimator.n_features_in_ = len(columns.encoded)
    estimator._posterior = posterior_of(below("posterior.", tensors), header["posterior"])
    if header["classes"] is None:
        estimator.noise_std_ = tensors["noise_std"].numpy()
        estimator._flat = len(columns.targets) == 1
    else:
        estimator.classes_ = np.asarray(header["classes"])
    return TableModel(estimator, columns)


def below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin so, without the prefix."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def posterior_parts(posterior: Posterior | PartPosteriors | None) -> tuple[dict[str, Tensor], Any]:
    """What is not known about the parameters, as tensors and as facts for the header."""
    if posterior is None:
        return {}, None
    if isinstance(posterior, PartPosteriors):
        found = {name: posterior_parts(each) for name, each in posterior.posteriors.items()}
        tensors = {f"{name}.{key}": value for name, (parts, _) in found.items() for key, value in parts.items()}
        if posterior.linear is not None:
            tensors |= {f"linear.{name}": getattr(posterior.linear, name) for name in LINEAR}
        facts = {"of": "parts", "sources": [list(source) for source in posterior.sources], "total": posterior.total}
        return tensors, facts | {"parts": {name: each for name, (_, each) in found.items()}}
    if isinstance(posterior, HeadPosterior):
        return {str(k): factor for k, factor in enumerate(posterior.factors)}, {"of": "head"}
    tensors = {name: getattr(posterior, name) for name in JOINT}
    tensors |= {f"subspace.{name}": getattr(posterior.subspace, name) for name in SUBSPACE}
    parameters = [[name, list(shape)] for name, shape in posterior.subspace.parameters]
    return tensors, {"of": "theta and head", "parameters": parameters, "n_samples": posterior.n_samples}


def posterior_of(tensors: dict[str, Tensor], facts: Any) -> Any:
    """The same, rebuilt."""
    if facts is None:
        return None
    if facts["of"] == "parts":
        parts = {name: posterior_of(below(f"{name}.", tensors), each) for name, each in facts["parts"].items()}
        own, total = below("linear.", tensors), facts["total"]
        linear = LinearSpread(**{name: own[name] for name in LINEAR}, total=total) if own else None
        return PartPosteriors(parts, linear, tuple((name, column) for name, column in facts["sources"]), total)
    if facts["of"] == "head":
        return HeadPosterior(tuple(tensors[str(k)] for k in range(len(tensors))))
    parameters = [(name, tuple(shape)) for name, shape in facts["parameters"]]
    subspace = Subspace(parameters, len(tensors["theta"]), *(tensors[f"subspace.{name}"] for name in SUBSPACE))
    return JointPosterior(**{name: tensors[name] for name in JOINT}, subspace=subspace, n_samples=facts["n_samples"])


def layers_of(module: nn.Module) -> Any:
    """The architecture as lists and names."""
    if isinstance(module, nn.Sequential):
        return [[name, layers_of(part)] for name, part in module.named_children()]
    if isinstance(module, Beside):
        return {"beside": [[name, layers_of(part)] for name, part in module.parts.items()]}
    if isinstance(module, nn.Linear):
        return {"linear": [module.in_features, module.out_features]}
    if isinstance(module, Rescale):
        return {"rescale": len(module.factor)}
    if isinstance(module, Rotate):
        return {"rotate": list(module.directions.shape)}
    if isinstance(module, Standardize):
        return {"standardize": len(module.mean)}
    if isinstance(module, CompressTails):
        return {"compress_tails": len(module.width)}
    if isinstance(module, Pieces):
        return {"pieces": len(module.column)}
    for name, activation in ACTIVATIONS.items():
        if type(module) is activation:
            return {"activation": name}
    raise TypeError(f"a layer {type(module).__name__} cannot be written into the file of a table model")


def module_of(layers: Any) -> nn.Module:
    """The architecture rebuilt, with any weights."""
    if isinstance(layers, list):
        return nn.Sequential(OrderedDict((name, module_of(part)) for name, part in layers))
    if "linear" in layers:
        n_inputs, n_outputs = layers["linear"]
        return nn.Linear(n_inputs, n_outputs, dtype=torch.float64)
    if "beside" in layers:
        return Beside({name: module_of(part) for name, part in layers["beside"]})
    if "rescale" in layers:
        return Rescale(np.ones(layers["rescale"]))
    if "rotate" in layers:
        return Rotate(torch.zeros(layers["rotate"], dtype=torch.float64))
    if "standardize" in layers:
        zeros = np.zeros(layers["standardize"])
        return Standardize(zeros, zeros + 1)
    if "compress_tails" in layers:
        zeros = np.zeros(layers["compress_tails"])
        return CompressTails(zeros, zeros)
    if "pieces" in layers:
        zeros = np.zeros(layers["pieces"])
        return Pieces(zeros, zeros, zeros + 1)
    return ACTIVATIONS[layers["activation"]]()
