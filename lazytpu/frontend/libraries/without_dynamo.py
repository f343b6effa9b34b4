"""Keeps torch from importing dynamo, a second of CPU, where nothing is compiled with it.

Some functions of torch import dynamo when they are first called, to be told what calls them untraced: the meta
functions of many ops, and methods of optimizers (whose steps import it themselves). Before dynamo is there, nothing
traces, and they are called as they are. From its import on, by `torch.compile` say, they are told as without lazytpu.
"""

from __future__ import annotations

import sys
from typing import Any

from lazytpu.frontend import torch_private as private
from lazytpu.frontend.libraries.on_import import when_imported


def install() -> None:
    """Until dynamo is imported, call such functions as they are."""
    if private.DYNAMO in sys.modules:
        return
    # The wrapper of these functions looks this attribute up by `getattr`, a name that its module may have, too.
    module: Any = private.untraced_calls
    module.getattr = _getattr

    def put_back(dynamo: Any) -> None:
        del module.getattr

    when_imported(private.DYNAMO, put_back)


def _getattr(function: Any, name: str, default: Any) -> Any:
    loaded = name != private.UNTRACED or private.DYNAMO in sys.modules
    return getattr(function, name, default if loaded else function)
