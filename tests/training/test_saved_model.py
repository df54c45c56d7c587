"""`result.save` and `gnvpro.load`: what is read back predicts the same; what does not fit is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import gnvpro
from gnvpro.networks import MLP, ConvNet, NeuralODE, ResNet
from gnvpro.networks.architecture import KINDS, layers_of, module_of

FORMATS = ["m.safetensors", "m.pt"]


class Custom(nn.Module):
    """A user's own module."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, width), nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.sin(self.first(x)))


def trained(model: nn.Module) -> gnvpro.Result:
    torch.manual_seed(0)
    x = torch.rand(30, 2, dtype=torch.float64)
    return gnvpro.train(model.double(), x, x.sum(1, keepdim=True).sin(), loss="mse", work=10)


MODELS = {
    "Sequential": lambda: nn.Sequential(nn.Linear(2, 5), nn.Softplus(beta=2.0), nn.Linear(5, 1, bias=False)),
    "MLP": lambda: MLP(2, [4, 3], nn.SiLU, n_outputs=1),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.Tanh()), nn.Dropout(0.1), nn.Linear(3, 1)),
    "normalised": lambda: nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 1)),
    "ResNet": lambda: nn.Sequential(ResNet(2, 4, 3, 2.0), nn.Linear(4, 1)),
    "NeuralODE": lambda: nn.Sequential(NeuralODE(2, 4, 3, gamma=0.1), nn.Linear(4, 1)),
}


@pytest.mark.filterwarnings("ignore:the model has Dropout")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", MODELS)
def test_a_loaded_model_predicts_the_same(kind: str, name: str, tmp_path: Path) -> None:
    result = trained(MODELS[kind]())
    result.save(tmp_path / name)
    model = gnvpro.load(tmp_path / name)
    assert not model.training
    x = torch.rand(7, 2, dtype=torch.float64)
    assert torch.equal(model(x), result.model.eval()(x))


def test_a_convolutional_network_comes_back_with_its_settings() -> None:
    again = module_of(layers_of(ConvNet(channels=(3, 5))))
    assert [repr(layer) for layer in again] == [repr(layer) for layer in ConvNet(channels=(3, 5))]


@pytest.mark.parametrize("name", FORMATS)
def test_a_model_of_own_code_is_loaded_into_one_that_is_built_like_it(name: str, tmp_path: Path) -> None:
    result = trained(Custom())
    result.save(tmp_path / name)
    with pytest.raises(ValueError, match=r"weights of Custom.*load\(path, model=...\)"):
        gnvpro.load(tmp_path / name)
    x = torch.rand(7, 2, dtype=torch.float64)
    assert torch.equal(gnvpro.load(tmp_path / name, Custom().double())(x), result.model(x))
    with pytest.raises(ValueError, match=r"first.weight is of shape \(4, 2\) in the file, but of shape \(9, 2\)"):
        gnvpro.load(tmp_path / name, Custom(9).double())


def hooked() -> nn.Module:
    model = MODELS["Sequential"]()
    model[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


def tied() -> nn.Module:
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(2, 1))


@pytest.mark.parametrize(
    "model",
    [Custom(), hooked(), tied(), nn.utils.parametrizations.weight_norm(nn.Linear(2, 1))],
    ids=["own code", "a hook", "a layer used twice", "parametrized"],
)
def test_what_layers_do_not_say_is_not_rebuilt_from_them(model: nn.Module) -> None:
    assert layers_of(model) is None


def rewritten(source: Path, target: Path, **changes: str) -> Path:
    """Write the tensors with another header."""
    with safe_open(source, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        header = file.metadata() | changes
    save_file(tensors, target, header)
    return target


def test_an_edited_file_is_refused_by_its_checksum(tmp_path: Path) -> None:
    trained(MODELS["Sequential"]()).save(tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", "pt") as file:
        description = file.metadata()["gnvpro"]
    edited = rewritten(tmp_path / "m.safetensors", tmp_path / "e.safetensors", gnvpro=description.replace("2.0", "3.0"))
    with pytest.raises(ValueError, match="damaged, or was edited"):
        gnvpro.load(edited)


def test_a_description_of_other_layers_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    huge = {"kind": "Linear", "settings": {"in_features": 10**7, "out_features": 10**7, "bias": True}}
    state = gnvpro.training.saved_model.OrderedDict(weight=torch.zeros(1, 1), bias=torch.zeros(1))
    state.gnvpro = json.dumps({"format": "gnvpro model 1", "layers": huge})
    torch.save(state, tmp_path / "huge.pt")
    with pytest.raises(ValueError, match="weight is of shape"):
        gnvpro.load(tmp_path / "huge.pt")


@pytest.mark.parametrize(
    "layers",
    [
        {"kind": "Bilinear", "settings": {}},
        {"kind": "Linear", "settings": {"in_features": "a"}},
        {"kind": "Linear", "settings": {"in_features": -1, "out_features": 2, "bias": True}},
        {"kind": "Linear"},
        {"kind": "Sequential", "parts": [1]},
        {"kind": "Sequential", "parts": [["a.b", {"kind": "Tanh", "settings": {}}]]},
        [],
        "Linear",
    ],
)
def test_layers_that_cannot_be_built_are_refused(layers: object) -> None:
    with pytest.raises(ValueError, match=r"cannot be built|not known"):
        module_of(layers)


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "no weights"), (b"text", "no weights"), (None, "there is no file")]
)
def test_other_files_are_refused_in_one_sentence(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "m.pt").write_bytes(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        gnvpro.load(tmp_path / "m.pt")


def test_the_cards_of_two_formats_lie_side_by_side(tmp_path: Path) -> None:
    result = trained(MODELS["Sequential"]())
    first, second = (
        result.save(tmp_path / "model.safetensors", notes="One."),
        result.save(tmp_path / "model.pt", notes="Two."),
    )
    assert "One." in first.read_text()
    assert "Two." in second.read_text()


def test_a_result_has_the_problem_that_was_solved() -> None:
    result = trained(MODELS["Sequential"]())
    point = result.problem.reduced.at(result.problem.theta())
    assert point.value == pytest.approx(result.history[-1].loss, rel=1e-12)


@pytest.mark.parametrize("kind", [name for name in KINDS if hasattr(nn, name)])
def test_every_known_layer_is_described_and_rebuilt(kind: str) -> None:
    sizes = {"Linear": (2, 3), "Dropout": (0.3,), "GroupNorm": (2, 4), "LayerNorm": ([4, 5],)}
    first = sizes.get(kind, ())
    if kind.startswith("Conv"):
        first = (2, 3, 3)
    if kind.startswith(("BatchNorm", "AvgPool", "MaxPool", "Adaptive")):
        first = (2,)
    layer = KINDS[kind](*first)
    again = module_of(json.loads(json.dumps(layers_of(layer))))
    assert repr(again) == repr(layer)
