"""Show how rounding stops a run on Poisson's equation: head by QR or normal equations, steps by QR or Gram matrices.

    python -m benchmarks.equation_factors --seconds 4

All runs share network, points, weights and penalty (1e-15); processor seconds on one core.
"""

from __future__ import annotations

import argparse
import time
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gnvpro import pde
from gnvpro.experiments.equations import EQUATIONS
from gnvpro.minimize import row_model as model
from gnvpro.pde import field_head as eliminate

NEVER, ALWAYS = 1e99, 0.0  # damping above which steps use a Gram matrix


def by_normal_equations(self: Any) -> tuple[Tensor, Tensor]:
    """Return Q and R of [Z; sqrt(alpha) I] from the Cholesky factor of its Gram matrix."""
    width = self.Z.shape[1]
    rows = torch.cat([self.Z, self.root * torch.eye(width, dtype=self.Z.dtype)])
    gram, added = rows.T @ rows, 0.0
    while True:
        factor, info = torch.linalg.cholesky_ex(gram + added * torch.eye(width, dtype=gram.dtype))
        if not info.item():
            R = factor.T.contiguous()
            return torch.linalg.solve_triangular(R, rows, upper=True, left=False), R
        added = max(10 * added, 1e-16 * float(gram.diagonal().max()))


def run(label: str, gram_above: float, factors: Any, seconds: float) -> None:
    """Run one variant and print its row."""
    model.GRAM_IS_SAFE = gram_above
    own = cached_property(factors)
    own.__set_name__(eliminate.Factored, "factors")
    eliminate.Factored.factors = own  # type: ignore[assignment]
    posed = EQUATIONS["poisson2d"].pose(0)
    result = pde.solve(
        posed.field, posed.equations, seconds=seconds, clock=time.process_time, grow=False, head_penalty=1e-15
    )
    with torch.no_grad():
        error = float((posed.field(posed.check)[:, 0] - posed.exact(posed.check)).square().mean().sqrt())
    last = result.history[-1]
    print(f"{label:32} {last.loss:9.1e} {error:9.1e} {last.iteration:6} {last.seconds:6.1f}  {result.status.name}")


def main() -> None:
    """Run all four variants."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    seconds = parser.parse_args().seconds
    torch.set_num_threads(1)
    qr, safe = eliminate.Factored.factors.func, model.GRAM_IS_SAFE  # type: ignore[attr-defined]
    print(f"{'head and steps':32} {'Phi':>9} {'error':>9} {'steps':>6} {'s':>6}  ended")
    run("QR, QR", NEVER, qr, seconds)
    run("QR, Gram where damped (default)", safe, qr, seconds)
    run("QR, Gram", ALWAYS, qr, seconds)
    run("normal equations, QR", NEVER, by_normal_equations, seconds)


if __name__ == "__main__":
    main()
