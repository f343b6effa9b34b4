"""The passes as a list to read, and passes loaded from a file."""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from xdsl.passes import ModulePass, get_pass_option_infos

from lazytpu.passes.phases import ORDER, PHASES
from lazytpu.passes.registry import RegisteredPass, passes


def load(source: str) -> None:
    """Import a Python file, or a module by its name, for the passes that it registers.

    Raises ValueError when it is not there, fails, or registers none.
    """
    before = dict(passes())
    try:
        if source.endswith(".py"):
            _import_file(Path(source))
        else:
            import_module(source)
    except Exception as error:
        raise ValueError(f"cannot load passes from {source}: {type(error).__name__}: {error}") from error
    if passes() == before:
        raise ValueError(f'{source} registers no pass; one is registered by @register("its-name") of lazytpu.passes')


def _import_file(path: Path) -> None:
    name = str(path.resolve())  # no module that is imported otherwise has such a name
    spec = spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def catalogue() -> str:
    """Every pass: first those that all programs go through and the phases, in order, then those run by name alone."""
    known = passes()
    lines: list[str] = []
    for entry in dict.fromkeys(ORDER):
        phase = entry.strip("<>")
        if entry in known:
            lines += _describe(known[entry])
        else:
            lines.append(f"{phase}: {PHASES[phase]}")
            for each in known.values():
                if each.phase == phase:
                    lines += ("    " + line for line in _describe(each))
    named = [each for each in known.values() if each.phase is None and each.name not in ORDER]
    if named:
        lines.append("where a pipeline names them:")
        lines += ("    " + line for each in named for line in _describe(each))
    return "\n".join(lines)


def _describe(each: RegisteredPass) -> list[str]:
    made = each.load()
    options = " ".join(f"{o.name.replace('_', '-')}={o.default_value}" for o in get_pass_option_infos(made))
    targets = f"  for {', '.join(each.targets)}" if each.targets else ""
    return [f"{each.name}{{{options}}}{targets}" if options else each.name + targets, f"    {summary(made)}"]


def summary(made: type[ModulePass]) -> str:
    """The first sentence of what is written about a pass: in its file for lazytpu's own, else in its class."""
    own = made.__module__.startswith("lazytpu.")
    text = (inspect.getdoc(sys.modules[made.__module__]) if own else vars(made).get("__doc__")) or "not documented"
    first = inspect.cleandoc(text).split("\n\n")[0].replace("\n", " ")
    sentence = re.match(r"(.*?[.:])(\s|$)", first.removeprefix(f"`{made.name}`: "))
    return (sentence[1] if sentence else first).rstrip(".:")
