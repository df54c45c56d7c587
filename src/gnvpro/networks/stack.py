"""A chain of layers that can be sliced: `net[:-1]`, the features, is a plain nn.Sequential."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn


class Stack(nn.Sequential):
    """nn.Sequential for subclasses with a different constructor."""

    def __getitem__(self, index: slice | int) -> Any:
        # nn.Sequential would pass the layers of the slice to the subclass's constructor.
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)
