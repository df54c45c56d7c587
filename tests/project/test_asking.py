"""Objects with a protocol are not asked whether they have a member: `getattr` and `hasattr` are for foreign objects."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "gnvpro"
MOST = 15  # calls on our own objects or a user's module
# modules that look at objects of other libraries, and why
FOREIGN = {
    "__init__.py": "names of a module",
    "curves/fit_arguments.py": "tables of pandas or others",
    "data/cifar10.py": "versions of Python",
    "data/simulation.py": "systems",
    "head/newton_cg.py": "versions of torch",
    "network/evaluation.py": "compiled modules of torch",
    "network/find_head.py": "layers of torch",
    "network/operations.py": "functions of torch",
    "network/precision.py": "functions of torch",
    "network/training_mode.py": "layers of torch",
    "networks/architecture.py": "layers of torch",
    "processes.py": "versions of torch",
    "samples/arrays.py": "arrays of other libraries",
    "samples/tables.py": "tables of pandas or others",
    "sklearn/base.py": "attributes that scikit-learn sets late",
    "sklearn/encoding.py": "tables of pandas or others",
    "training/fingerprint.py": "any object",
    "training/saved_model.py": "files of torch",
}


def test_objects_with_a_protocol_are_not_asked_what_they_have() -> None:
    asked: Counter[str] = Counter()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("getattr", "hasattr")
            ):
                asked[file.relative_to(SOURCE).as_posix()] += 1
    assert not [name for name in FOREIGN if not asked[name]]
    ours = {name: count for name, count in asked.items() if name not in FOREIGN}
    assert sum(ours.values()) <= MOST, ours
    assert asked.total() <= 67
