# %% [markdown]
# # A table to try `gnvpro train` on
#
# The resonance of a damped oscillator: frequency, damping and shape in, amplitude out. `python examples/make_table.py FILE.csv`
# writes 400 rows; then `gnvpro train FILE.csv --target amplitude`.

# %%
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas

random = np.random.default_rng(0)
n = 400
table = pandas.DataFrame(
    {
        "frequency": random.uniform(0.2, 2.0, n),
        "damping": random.uniform(0.1, 0.4, n),
        "shape": random.choice(["beam", "plate"], n),
    }
)
stiffness = np.where(table["shape"] == "plate", 1.3, 1.0)
table["amplitude"] = 1 / np.sqrt((stiffness - table.frequency**2) ** 2 + (2 * table.damping * table.frequency) ** 2)

path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()) / "resonance.csv"
table.to_csv(path, index=False)
print(f"{n} rows: {path}")
assert len(pandas.read_csv(path)) == n
