"""Rows of a policy: a threshold together with its unit, what it decides, and the command that measured it.

@dataclass(frozen=True)
class BatchPolicy:
    begin_from: int | None = row(10_000, "samples", "start on random batches", "python -m benchmarks.stochastic")
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One threshold of a policy, in printable form."""

    subject: str
    name: str
    value: object
    unit: str
    decides: str
    measured_by: str


def row(default: Any, unit: str, decides: str, measured_by: str) -> Any:
    """Return a dataclass field with this default that describes itself."""
    return field(default=default, metadata={"unit": unit, "decides": decides, "measured_by": measured_by})


def rows_of(policy: Any, subject: str = "") -> Iterator[Row]:
    """Yield every row of a policy, subject by subject."""
    for each in fields(policy):
        value = vars(policy)[each.name]
        if is_dataclass(value):
            yield from rows_of(value, each.name)
        else:
            yield Row(subject, each.name, value, **each.metadata)


def because(quantity: str, sign: str, name: str, threshold: object, then: str) -> str:
    """Return the sentence of a decision: what was compared with which row, and what follows.

    >>> because("12,000 samples", ">=", "batches.begin_from", 10_000, "starts on random batches")
    '12,000 samples >= batches.begin_from = 10,000: starts on random batches'
    """
    return f"{quantity} {sign} {name} = {shown(threshold)}: {then}"


def shown(value: object) -> str:
    """Return the printed form of a threshold."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def markdown(policy: Any) -> str:
    """Return the page of the documentation about a policy."""
    lines = [
        "# The policy",
        "",
        "Every threshold that chooses an algorithm is a row of `gnvpro.policy.Policy`. Another policy is passed as a value:",
        "",
        "```python",
        "from gnvpro.policy import BatchPolicy, Policy",
        "",
        "gnvpro.train(model, inputs, targets, loss=loss, policy=Policy(batches=BatchPolicy(begin_from=None)))",
        "```",
        "",
        "`result.plan` and `gnvpro.inspect` say which rows decided for a run. `gnvpro policy` prints these tables, and",
        "`gnvpro policy --markdown > docs/api/policy.md` writes this page.",
    ]
    for each in fields(policy):
        rows = [row for row in rows_of(policy) if row.subject == each.name]
        about = (type(vars(policy)[each.name]).__doc__ or "").splitlines()[0]
        lines += [
            "",
            f"## {each.name}",
            "",
            about,
            "",
            "| row | value | unit | decides | measured by |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| `{row.name}` | {shown(row.value)} | {row.unit} | {row.decides} | `{row.measured_by}` |" for row in rows
        ]
    return "\n".join(lines) + "\n"
