"""Arguments whose class answers in torch's place: a subclass may override `shape`, `stride()` or `__torch_function__`.

torch's kernels are C++ and never ask it; kernels in Python would. They get an alias without the subclass instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lazytpu.frontend.observed import is_overriding, plain


def has_overriding(args: Sequence[Any]) -> bool:
    """Whether the class of an argument, or of one in a list, overrides what kernels read of it."""
    return any(has_overriding(arg) if type(arg) in (list, tuple) else is_overriding(arg) for arg in args)


def with_plain(call: Callable[[Sequence[Any]], Any], args: Sequence[Any]) -> Any:
    """Call a kernel with plain aliases. Where it returns one, which it wrote, the result is the argument itself."""
    given: dict[int, tuple[Any, Any]] = {}

    def alias(arg: Any) -> Any:
        if type(arg) in (list, tuple):
            return [alias(each) for each in arg]
        made = plain(arg)
        given[id(made)] = made, arg
        return made

    def original(result: Any) -> Any:
        if type(result) in (list, tuple):
            return type(result)([original(each) for each in result])
        return given[id(result)][1] if id(result) in given else result

    return original(call([alias(arg) for arg in args]))
