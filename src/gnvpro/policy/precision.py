"""Precision of the passes of a model whose parameters are in float32 or less."""

from __future__ import annotations

from dataclasses import dataclass

from gnvpro.policy.rows import row


@dataclass(frozen=True)
class PrecisionPolicy:
    """Precision of the passes of a model whose parameters are in float32 or less."""

    double_flops: float = row(
        2e9,
        "operations of a forward pass over all samples",
        "run passes in float64 up to this cost",
        "python -m benchmarks.precision",
    )
    convolutions: float = row(
        5.0,
        "times",
        "count operations of convolutions this often, which float64 slows down far more than matrix products",
        "python -m benchmarks.precision",
    )
    double_memory: float = row(
        0.25,
        "share of the memory budget",
        "copy the model to float64 if its parameters take at most this share there",
        "python -m benchmarks.precision",
    )
