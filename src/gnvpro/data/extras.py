"""Optional libraries: imported where they are needed, requested by name where they are missing."""

from importlib import import_module
from types import ModuleType


def need(module: str, extra: str) -> ModuleType:
    """The module, or an ImportError that names the extra of this package that installs it."""
    library = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise  # the library is installed, but something that it needs is not
        raise ImportError(f"{library} is not installed; get it with: pip install 'gnvpro[{extra}]'") from error
