"""A chain of layers that can be sliced: `net[:-1]`, the features, is a plain nn.Sequential."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn


class Stack(nn.Sequential):
    """nn.Sequential for subclasses with a constructor of their own."""

    def __getitem__(self, index: slice | int) -> Any:
        # nn.Sequential would call the subclass's constructor with the layers of the slice.
        if isinstance(index, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[index]))
        return super().__getitem__(index)
