"""Cost of training: one model of seconds and bytes, counted and never measured while training runs.

    pass          c calls + n (p a + v b)            forward or backward, over n samples
    matrix        (n m (q^2 / 2) + q^3 / 3) e + 3 n m q b
                                                     squares of the Jacobian's rows, and its factors
    head          n f (f + k) e + 10 n (f + k) b     one fit of a least-squares head; others take several like it
    cheap step    2 passes + head + step
    exact step    passes + matrix + head + step

The constants were fixed on one core of one machine, so the same call takes the same decisions on every machine, busy or
not. Most rules depend on ratios of costs alone; limits in seconds refer to the machine that fixed the constants.

Legend: n -> samples, p -> products, v -> numbers, q -> directions, m -> seeds, f -> features, k -> outputs,
a -> product, e -> square, b -> number, c -> call.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnvpro.policy.row import row

COST = "python -m benchmarks.cost --only model"


@dataclass(frozen=True)
class CostPolicy:
    """Constants of the cost model."""

    product: float = row(8e-11, "s", "time of a multiplication and addition in a pass", COST)
    square: float = row(4e-11, "s", "time of a multiplication and addition in a large matrix product", COST)
    number: float = row(1e-9, "s", "time of a number that a layer returns", COST)
    call: float = row(7e-6, "s", "overhead of a tensor operation in a pass", COST)
    step: float = row(4e-4, "s", "overhead of a step beside its passes", COST)


@dataclass(frozen=True)
class Sizes:
    """The sizes that costs depend on."""

    samples: int
    directions: int  # in which theta can move the features
    features: int
    outputs: int
    squares: bool  # whether the loss is least squares
    products: float  # multiplications of a forward pass, per sample
    numbers: float = 0.0  # that tensor operations return in a forward pass, per sample
    calls: int = 1  # tensor operations of a forward pass


def seconds_of_pass(cost: CostPolicy, sizes: Sizes) -> float:
    """Seconds of a forward or a backward pass."""
    each = sizes.products * cost.product + sizes.numbers * cost.number
    return sizes.calls * cost.call + sizes.samples * each


def operations_of_matrix(rows: float, directions: int) -> float:
    """Multiplications and additions that square these rows of the Jacobian and factorise the matrix."""
    return 0.5 * rows * directions**2 + directions**3 / 3


def seconds_of_matrix(cost: CostPolicy, sizes: Sizes, seeds: int) -> float:
    """Seconds for the Gauss-Newton matrix from `seeds` rows of the Jacobian per sample, and for its factors."""
    n, q = sizes.samples * seeds, sizes.directions
    entries = 3 * n * q * (1 if sizes.squares else 1 + sizes.outputs)  # other losses couple each row with each output
    return operations_of_matrix(n, q) * cost.square + entries * cost.number


def seconds_of_joint_matrix(cost: CostPolicy, directions: int, rows: float) -> float:
    """Seconds for the joint matrix of theta and head, its eigenvalues and its inverse."""
    q = directions
    return (0.5 * rows * q**2 + 10 * q**3) * cost.square + 3 * rows * q * cost.number


def seconds_of_step(cost: CostPolicy, sizes: Sizes) -> float:
    """Seconds of a step without its passes and its matrix: a fit of the head, and overhead."""
    n, f, k = sizes.samples, sizes.features + 1, sizes.outputs
    return cost.step + (n * f * (f + k) + f**3 / 3) * cost.square + 10 * n * (f + k) * cost.number


def seconds_of_cheap_step(cost: CostPolicy, sizes: Sizes) -> float:
    """Seconds of a quasi-Newton step: a point and its gradient."""
    return 2 * seconds_of_pass(cost, sizes) + seconds_of_step(cost, sizes)


def bytes_of_matrices(directions: int) -> float:
    """Bytes of the four matrices that an exact step holds."""
    return 4 * 8.0 * directions**2
