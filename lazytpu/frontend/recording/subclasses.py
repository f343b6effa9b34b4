"""Arguments whose class overrides torch's methods: a subclass may override `shape`, `stride()` or `__torch_function__`.

torch's kernels are C++ and never call these; kernels in Python would. They get an alias without the subclass instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lazytpu.frontend.observed import is_overriding, plain


def has_overriding(args: Sequence[Any]) -> bool:
    """Return whether the class of an argument, or of a list's element, overrides attributes that kernels read."""
    return any(has_overriding(arg) if type(arg) in (list, tuple) else is_overriding(arg) for arg in args)


def with_plain(call: Callable[[Sequence[Any]], Any], args: Sequence[Any]) -> Any:
    """Call a kernel with plain aliases. An alias that it returns, because it wrote it, is replaced by the argument
    itself."""
    originals: dict[int, tuple[Any, Any]] = {}

    def alias(arg: Any) -> Any:
        if type(arg) in (list, tuple):
            return [alias(element) for element in arg]
        plain_alias = plain(arg)
        originals[id(plain_alias)] = plain_alias, arg
        return plain_alias

    def original(result: Any) -> Any:
        if type(result) in (list, tuple):
            return type(result)([original(element) for element in result])
        return originals[id(result)][1] if id(result) in originals else result

    return original(call([alias(arg) for arg in args]))
