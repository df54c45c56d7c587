# %% [markdown]
# # Taking the model away: state_dict, safetensors, torch.export, ONNX
#
# A trained model is the same plain module as before, so everything that PyTorch does with modules still works.

# %%
from __future__ import annotations

import math
from pathlib import Path

import torch

import gnvpro

torch.manual_seed(0)
inputs = torch.rand(300, 2, dtype=torch.float64)
targets = torch.stack([torch.sin(math.pi * inputs[:, 0]), inputs.prod(dim=1)], dim=1)
model = gnvpro.networks.MLP(2, [12], n_outputs=2, dtype=torch.float64)
gnvpro.train(model, inputs, targets, loss="least_squares", work=100)
new_inputs = torch.rand(7, 2, dtype=torch.float64)
with torch.no_grad():
    expected = model(new_inputs)
folder = Path("runs/export")
folder.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# The usual way in PyTorch. Training does not change the keys.

# %%
torch.save(model.state_dict(), folder / "surrogate.pt")
again = gnvpro.networks.MLP(2, [12], n_outputs=2, dtype=torch.float64)
again.load_state_dict(torch.load(folder / "surrogate.pt", weights_only=True))
with torch.no_grad():
    assert torch.equal(again(new_inputs), expected)

# %% [markdown]
# Weights alone, in a format that can be read safely from anywhere. Needs `pip install safetensors`.

# %%
try:
    from safetensors.torch import load_model, save_model
except ImportError:
    print("SKIPPED: safetensors is not installed (pip install safetensors)")
else:
    metadata = {"n_inputs": "2", "widths": "12", "n_outputs": "2"}
    save_model(model, str(folder / "surrogate.safetensors"), metadata=metadata)
    again = gnvpro.networks.MLP(2, [12], n_outputs=2, dtype=torch.float64)
    load_model(again, folder / "surrogate.safetensors")
    with torch.no_grad():
        assert torch.equal(again(new_inputs), expected)

# %% [markdown]
# A graph that needs neither the model's class nor gnvpro.

# %%
any_number = ({0: torch.export.Dim("samples")},)
program = torch.export.export(model, (inputs,), dynamic_shapes=any_number)
torch.export.save(program, folder / "surrogate.pt2")
outputs = torch.export.load(folder / "surrogate.pt2").module()(new_inputs)
difference = float((outputs - expected).abs().max().detach())
print(f"largest difference of the exported program: {difference:.1e}")
assert difference < 1e-12

# %% [markdown]
# For C++, C#, JavaScript or a phone. Needs `pip install onnx onnxruntime onnxscript`.

# %%
try:
    import onnxruntime
    import onnxscript  # noqa: F401, torch.onnx needs it
except ImportError as error:
    print(f"SKIPPED: {error.name} is not installed (pip install onnx onnxruntime onnxscript)")
else:
    torch.onnx.export(
        model.eval(), (inputs,), folder / "surrogate.onnx", input_names=["inputs"], output_names=["outputs"],
        dynamic_shapes=any_number, dynamo=True, external_data=False, verbose=False,
    )  # fmt: skip
    session = onnxruntime.InferenceSession(folder / "surrogate.onnx", providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {"inputs": new_inputs.numpy()})
    difference = float((torch.from_numpy(outputs) - expected).abs().max())
    print(f"largest difference of onnxruntime: {difference:.1e}")
    assert difference < 1e-6

# %% [markdown]
# A fitted scikit-learn estimator contains such a module too. It maps unscaled inputs to unscaled targets.

# %%
estimator = gnvpro.GNvproRegressor(work=50, random_state=0).fit(inputs.numpy(), 100 * targets.numpy())
with torch.no_grad():
    assert torch.allclose(estimator.module_(new_inputs), torch.from_numpy(estimator.predict(new_inputs.numpy())))
