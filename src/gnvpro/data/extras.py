"""Optional libraries, imported where they are needed and asked for by name where they are missing."""

from importlib import import_module
from types import ModuleType


def need(module: str, extra: str) -> ModuleType:
    """The module, or an ImportError that says which extra of this package brings it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise ImportError(f"{error.name} is not installed; get it with: pip install 'gnvpro[{extra}]'") from error
