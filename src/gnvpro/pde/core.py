"""Everything that solving equations uses from the rest of the library, in one place.

The loop (`TrustRegion`), the rule for its damping, records, listeners and checkpoints are the same as for training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from gnvpro.linalg.operators import LinearOperator, symmetric
from gnvpro.minimize.status import Status
from gnvpro.minimize.step_rules import Damping, NielsenRule
from gnvpro.minimize.trust_region import StepReport, TrustRegion
from gnvpro.network.evaluation import evaluating, warn_of_modes
from gnvpro.state import loaded, saved
from gnvpro.training.agreement import agreed
from gnvpro.training.checkpoint import Checkpoint, taken_up
from gnvpro.training.checkpoint import load as load_checkpoint
from gnvpro.training.fingerprint import describe, digest, model_parts
from gnvpro.training.history import History, Record
from gnvpro.training.journal import Journal
from gnvpro.training.listeners import Listener, as_listeners
from gnvpro.training.summary import summary_of

__all__ = [
    "Checkpoint",
    "Damping",
    "History",
    "Journal",
    "LinearOperator",
    "Listener",
    "NielsenRule",
    "Record",
    "Status",
    "StepReport",
    "TrustRegion",
    "agreed",
    "as_listeners",
    "evaluating",
    "fingerprint",
    "load_checkpoint",
    "loaded",
    "saved",
    "summary_of",
    "symmetric",
    "taken_up",
    "warn_of_modes",
]


def fingerprint(model: nn.Module, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the identity of a run, which `resume` compares."""
    return {
        **model_parts(model),
        **{name: digest([tensor]) for name, tensor in tensors.items()},
        **{name: describe(name, value) for name, value in settings.items()},
    }
