"""The house has one of each thing: what must not come back."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import gnvpro

SOURCE = Path(gnvpro.__file__).parent
TREES = {file.relative_to(SOURCE).as_posix(): ast.parse(file.read_text()) for file in SOURCE.rglob("*.py")}


def test_states_are_loaded_by_one_function_and_nothing_resumes_itself() -> None:
    functions = {
        (file, node.name)
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in ("state", "resume", "resumed", "of_state")
    }
    assert functions == set()


def test_one_loop_takes_the_steps_of_every_run() -> None:
    """`method.step` is called in the loop of `Run`, and by methods that pass the call on to their parts."""
    callers = {
        file
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "step" and isinstance(node.value, ast.Attribute)
        if ast.unparse(node.value) == "self.method"
    }
    assert callers == {"training/run.py"}


def test_no_class_and_no_module_has_the_name_of_another() -> None:
    classes = [node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    modules = [Path(file).stem for file in TREES if not file.endswith("__init__.py")]
    assert repeated(classes) == repeated(modules) == []


def repeated(names: list[str]) -> list[str]:
    """The names that stand in the list more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


# Words of sizes, times and costs. A number of the code that is compared with one of these selects behaviour.
SIZES = re.compile(
    r"\b(len|numel|count|shape|n_\w+|rows(?!\.)|samples|entries|directions|size|\w*bytes|problem\.memory|seconds|since|time"
    r"|monotonic|perf_counter|work|passes|passes_left|operations|flops|cost|costs|numbers)\b"
)
# Packages whose numbers select no algorithm.
ALLOWED = {
    "tabular": "reads files and prints tables",
    "cli": "reads arguments and prints tables",
    "experiments": "reproduces the paper's choices",
    "data": "simulates the paper's data",
    "curves": "refuses what cannot be computed; a summary's length",
}
ALLOWED_NAMES = {
    "CANDIDATES": "enough points were drawn",
    "FAILURES": "ends a run that failed so often",
    "FEWEST_POINTS": "least part of the points that a process can take",
    "FEW_PARAMETERS": "a ratio of statistics: parameters to rows",
    "FOLDS": "a table has enough rows for two of each",
    "FOLDS_OF_DOUBT": "a table has enough rows for two of each",
    "FEW_OUTPUTS": "a basis of few outputs would save nothing",
    "HARDLY_MORE": "a ratio of statistics: effective parameters to those of a linear model",
    "LEAST_SAMPLES": "refuses what cannot be computed",
    "LONGEST": "longest container of a model that is searched for tensors",
    "MAX_CONFIG_BYTES": "largest file that is read",
    "MAX_FITTED": "a ratio of statistics: parameters to rows",
    "MOST_DIRECTIONS": "largest linear model of an estimator",
    "MOST_NAMED": "length of a message",
    "MOST_OPERATIONS": "largest linear model of an estimator",
    "MOST_ROWS": "largest Cholesky factor of a kernel model; a warning names it",
    "MOST_TRIED": "ends a search that found nothing",
    "N_PIECES": "number of pieces of a column",
    "PASSES": "the work of one point",
    "SAME": "rounding error of a column",
    "SAMPLES_PER_COLUMN": "a ratio of statistics: samples to columns of a trend",
    "SHARE": "the part of the rows at the edge is at least one row",
    "STEPS_PER_DIMENSION": "a schedule of steps",
}


def is_number(value: ast.expr) -> bool:
    """Return whether an expression consists of numbers alone."""
    parts = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Tuple, ast.operator, ast.unaryop, ast.expr_context)
    inside = list(ast.walk(value))
    numbers = [type(part.value) in (int, float) for part in inside if isinstance(part, ast.Constant)]
    return bool(numbers) and all(numbers) and all(isinstance(part, parts) for part in inside)


def thresholds_of(tree: ast.Module) -> Iterator[str]:
    """Names of the module's numbers that are compared with a size, a time or a cost."""
    given = [node for node in tree.body if isinstance(node, ast.Assign) and is_number(node.value)]
    numbers = {part.id for node in given for t in node.targets for part in ast.walk(t) if isinstance(part, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and SIZES.search(ast.unparse(node)):
            yield from (part.id for part in ast.walk(node) if isinstance(part, ast.Name) and part.id in numbers)


def test_thresholds_of_sizes_times_and_costs_are_rows_of_the_policy() -> None:
    found = {
        (file, name)
        for file, tree in TREES.items()
        if file.split("/")[0] not in (*ALLOWED, "policy")
        for name in thresholds_of(tree)
        if name not in ALLOWED_NAMES
    }
    assert found == set()


def test_a_threshold_outside_the_policy_is_found() -> None:
    assert list(thresholds_of(ast.parse("MANY = 10_000\n\ndef choose(n_samples):\n    return n_samples > MANY"))) == [
        "MANY"
    ]
    assert list(thresholds_of(ast.parse("SMALL = 1e-9\n\ndef ends(norm):\n    return norm <= SMALL"))) == []
