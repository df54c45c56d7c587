# %% [markdown]
# # Resuming after a kill
#
# With `checkpoint=` the state of a run is written to a file every few iterations; with `resume=True` the same call
# continues from that file. The file is replaced in one step, so a kill at any moment leaves a complete one. A resumed
# run ends with the same bits as an uninterrupted one.
#
# This script starts itself as a child process, kills it in the middle of its training, and resumes.

# %%
from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import gnvpro

WAIT = 0.05  # seconds that the child sleeps after each iteration, which leaves time to kill it


def run(checkpoint: Path | None, slowly: bool = False, head_penalty: float = 1e-10) -> gnvpro.Result:
    """Make the call that is killed and then repeated: same data, same first weights, same settings."""
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 200, dtype=torch.float64)[:, None]
    y = torch.sin(4 * x) * torch.exp(x)
    model = gnvpro.networks.MLP(1, [12, 12], n_outputs=1, dtype=torch.float64)
    return gnvpro.train(
        model,
        x,
        y,
        loss="least_squares",
        head_penalty=head_penalty,
        iterations=25,
        work=5000,
        checkpoint=None if checkpoint is None else gnvpro.Checkpoint(checkpoint, every=2),
        resume=checkpoint is not None,
        listeners=[lambda record: time.sleep(WAIT)] if slowly else [],
    )


if len(sys.argv) > 1:  # the child
    run(Path(sys.argv[1]), slowly=True)
    sys.exit()

# %% [markdown]
# Train in a child process until it has written a checkpoint, then kill it. SIGKILL cannot be caught: the process has no
# chance to save anything.

# %%
folder = tempfile.TemporaryDirectory()
checkpoint = Path(folder.name) / "run.ckpt"
child = subprocess.Popen([sys.executable, __file__, str(checkpoint)])
deadline = time.monotonic() + 60
while not checkpoint.exists() and child.poll() is None and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(4 * WAIT)  # a few iterations more
child.send_signal(signal.SIGKILL)
assert child.wait() == -signal.SIGKILL, "the child ended before it was killed"
assert checkpoint.exists()

# %% [markdown]
# Resume, and compare with an uninterrupted run.

# %%
resumed = run(checkpoint)
undisturbed = run(None)
assert len(resumed.history) == len(undisturbed.history)
for ours, theirs in zip(resumed.history, undisturbed.history, strict=True):
    assert (ours.loss, ours.work, ours.gradient_norm) == (theirs.loss, theirs.work, theirs.gradient_norm)
for name, value in resumed.model.state_dict().items():
    assert torch.equal(value, undisturbed.model.state_dict()[name]), name
print(f"killed, resumed, {len(resumed.history)} records: every loss and every weight is the same to the last bit")

# %% [markdown]
# A checkpoint belongs to one run. Resuming a different run with it raises an error that names the first difference.

# %%
refusal = ""
try:
    run(checkpoint, head_penalty=1e-6)
except ValueError as error:
    refusal = str(error)
print(f"refused: {refusal.partition(': ')[2]}")
assert "head_penalty was 1e-10, now it is 1e-06" in refusal
folder.cleanup()
