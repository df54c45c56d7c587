"""Examples run from start to end in an empty directory; they assert what they claim."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
EXTRAS = {"own_loop_lightning": ("pytorch_lightning", "lightning")}  # that the extra dev may be installed without


def run(script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    return subprocess.run([sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_its_claims_hold(example: Path, tmp_path: Path) -> None:
    module, extra = EXTRAS.get(example.stem, ("torch", ""))
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: it is the extra {extra}")
    done = run(example, tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}  # which git ignores


def test_an_example_whose_claim_fails_is_noticed(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("assert 1 > 2\n")
    assert run(script, tmp_path).returncode != 0
