"""The house has one of each thing: what must not come back."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import gnvpro

SOURCE = Path(gnvpro.__file__).parent
TREES = {file.relative_to(SOURCE).as_posix(): ast.parse(file.read_text()) for file in SOURCE.rglob("*.py")}


def test_states_are_loaded_by_one_function_and_nothing_resumes_itself() -> None:
    functions = {
        (file, node.name)
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name in ("resume", "resumed", "of_state")
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
