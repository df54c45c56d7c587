# %% [markdown]
# # Taking the model away: ONNX
#
# For C++, C#, JavaScript or a phone. Needs `pip install onnx onnxruntime onnxscript`.

# %%
from __future__ import annotations

import math

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

# %%
try:
    import onnxruntime
    import onnxscript  # noqa: F401, what torch.onnx translates with
except ImportError as error:
    print(f"SKIPPED: {error.name} is not installed (pip install onnx onnxruntime onnxscript)")
    raise SystemExit(0) from None

samples = torch.export.Dim("samples")
torch.onnx.export(
    model.eval(), (inputs,), "surrogate.onnx", input_names=["inputs"], output_names=["outputs"],
    dynamic_shapes=({0: samples},), dynamo=True, external_data=False, verbose=False,
)  # fmt: skip

# %%
session = onnxruntime.InferenceSession("surrogate.onnx", providers=["CPUExecutionProvider"])
(outputs,) = session.run(None, {"inputs": new_inputs.numpy()})
difference = float((torch.from_numpy(outputs) - expected).abs().max())
print(f"largest difference of onnxruntime: {difference:.1e}")
assert difference < 1e-6
