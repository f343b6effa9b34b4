"""A list of all passes as text, and passes loaded from a file."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from xdsl.passes import ModulePass, get_pass_option_infos

from lazytpu.passes.phases import ORDER, PHASES
from lazytpu.passes.registry import RegisteredPass, passes


def load(sources: Iterable[str]) -> None:
    """Import Python files, and modules by name, for the passes that they register.

    Raises ValueError for one that is missing, fails, or registers no pass.
    """
    for source in sources:
        before = dict(passes())
        try:
            if source.endswith(".py"):
                _import_file(Path(source))
            else:
                import_module(source)
        except Exception as error:
            raise ValueError(f"cannot load passes from {source}: {type(error).__name__}: {error}") from error
        if passes() == before:
            raise ValueError(f'{source} registers no pass; register one by @register("its-name") of lazytpu.passes')


def _import_file(path: Path) -> None:
    name = str(path.resolve())  # cannot collide with the name of an ordinary module
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def catalogue() -> str:
    """List every pass: first the pipeline's passes and phases, in order, then the passes that only run by name."""
    registered = passes()
    lines: list[str] = []
    for entry in dict.fromkeys(ORDER):
        phase = entry.strip("<>")
        if entry in registered:
            lines += _describe(registered[entry])
        else:
            lines.append(f"{phase}: {PHASES[phase]}")
            for pass_ in registered.values():
                if pass_.phase == phase:
                    lines += ("    " + line for line in _describe(pass_))
    by_name = [pass_ for pass_ in registered.values() if pass_.phase is None and pass_.name not in ORDER]
    if by_name:
        lines.append("only if a pipeline names them:")
        lines += ("    " + line for pass_ in by_name for line in _describe(pass_))
    return "\n".join(lines)


def _describe(pass_: RegisteredPass) -> list[str]:
    cls = pass_.load()
    options = " ".join(f"{o.name.replace('_', '-')}={o.default_value}" for o in get_pass_option_infos(cls))
    targets = f"  for {', '.join(pass_.targets)}" if pass_.targets else ""
    return [f"{pass_.name}{{{options}}}{targets}" if options else pass_.name + targets, f"    {summary(cls)}"]


def summary(cls: type[ModulePass]) -> str:
    """Return the first sentence of a pass's documentation: of its module for lazytpu's own passes, else of its
    class."""
    built_in = cls.__module__.startswith("lazytpu.")
    text = (inspect.getdoc(sys.modules[cls.__module__]) if built_in else vars(cls).get("__doc__")) or "not documented"
    first = inspect.cleandoc(text).split("\n\n")[0].replace("\n", " ")
    sentence = re.match(r"(.*?[.:])(\s|$)", first.removeprefix(f"`{cls.name}`: "))
    return (sentence[1] if sentence else first).rstrip(".:")
