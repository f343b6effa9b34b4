"""Writes the recording kernel of one op as Python source, from its schema.

A kernel computes the record's key, walks one step of the trie and makes the results; a generic kernel that loops over
its arguments costs about twice as much. `source(op, facts)` shows what is run.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch._ops import OpOverload

from lazytpu.frontend.ports import OpFacts

_STATIC_SCALARS = ("number", "Scalar")


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel: `kind` says how it enters the key (see `_TOKENS`)."""

    name: str
    kind: str
    keyword: bool
    default: bool
    written: bool


def arguments(op: OpOverload, facts: OpFacts) -> list[Argument]:
    """The kernel's arguments, in schema order."""
    found: list[Argument] = []
    for a in op._schema.arguments:
        written = a.alias_info is not None and a.alias_info.is_write
        kind = _kind(str(a.type), a.name, facts)
        found.append(Argument(_safe(a.name), kind, a.kwarg_only, a.has_default_value(), written))
    return found


def _safe(name: str) -> str:
    return "from_" if name == "from" else name


def _kind(type_: str, name: str, facts: OpFacts) -> str:
    many = "List[" in type_ or type_.endswith("]") and "Optional" not in type_
    if "Tensor" in type_:
        return "tensors" if many else "tensor"
    if "Generator" in type_:
        return "generator"
    if name in facts.numbers:
        return "numbers" if many else "number"
    if many:
        return "floats" if "float" in type_ or "number" in type_ else "list"
    if any(s in type_ for s in _STATIC_SCALARS):
        return "scalar"
    return "float" if "float" in type_ else "static"


# How an argument becomes part of the key. Indented for the body of the kernel; {a} is the argument, {k} its token.
_TOKENS = {
    "tensor": """\
            try:
                v = {a}.untyped_storage()._value
            except AttributeError:
                {k} = foreign(r, {a})
            else:
                {k} = v.slot if v.epoch == e else r.admit(v)
                o = v.layout
                if not ({a}.shape == o.shape and {a}.stride() == o.stride
                        and not {a}.storage_offset() and {a}.dtype is o.dtype):
                    {k} = ({k}, {a}.shape, {a}.stride(), {a}.storage_offset(), {a}.dtype)
""",
    "tensors": "            {k} = operands(r, {a})\n",
    "number": """\
            if {a} is None or {a} is ABSENT:
                {k} = {a}
            else:
                r.numbers.append({a})
                {k} = type({a})
""",
    "numbers": """\
            if {a} is None:
                {k} = None
            else:
                r.numbers.extend({a})
                {k} = tuple(map(type, {a}))
""",
    "list": "            {k} = None if {a} is None else tuple({a})\n",
    "floats": "            {k} = None if {a} is None else tuple(map(exact, {a}))\n",
    "scalar": "            {k} = exact({a})\n",
    "float": "            {k} = exact({a})\n",
    "static": "            {k} = {a}\n",
    "generator": "",
}



def source(op: OpOverload, facts: OpFacts) -> str:
    """The kernel's source. Names it uses: see `lazytpu.frontend.kernels.namespace`."""
    args = arguments(op, facts)
    lines = [f"def {function_name(op)}({_parameters(args)}):\n"]
    lines.append("    try:\n        r = thread_stash(STASH)\n    except RuntimeError:\n        r = recorder()\n")
    if facts.random:
        generator = next((a.name for a in args if a.kind == "generator"), "None")
        lines.append(f"    seed, offset = draw({generator})\n")
    lines.append("    try:\n        with r.lock:\n            e = r.epoch\n")
    tokens: list[str] = []
    for i, a in enumerate(args):
        lines.append(_TOKENS[a.kind].format(a=a.name, k=f"k{i}"))
        if a.kind != "generator":
            tokens.append(f"k{i}")
    if facts.random:
        lines.append("            r.numbers.append(seed)\n            r.numbers.append(offset)\n")
    if facts.uses_precision:
        tokens.append("precision()")
    lines.append(f"            key = (NAME, {''.join(t + ', ' for t in tokens)})\n")
    lines.append("            s = r.state.next.get(key)\n            if s is None:\n")
    lines.append(f"                s = miss(KERNEL, r, key, ({''.join(a.name + ', ' for a in args)}))\n")
    lines.append("            r.state = s\n")
    made, result = _results(op)
    lines.append(made)
    lines.extend(_write(a) for a in args if a.written)
    lines.append("    except BaseException as error:\n")
    lines.append(f"        return failed(KERNEL, r, error, ({''.join(a.name + ', ' for a in args)}))\n")
    lines.append(result)
    return "".join(lines)


def function_name(op: OpOverload) -> str:
    """`aten_add_Tensor` for aten.add.Tensor."""
    return str(op).replace(".", "_")


def _parameters(args: list[Argument]) -> str:
    parts: list[str] = []
    star = False
    for a in args:
        if a.keyword and not star:
            star = True
            parts.append("*")
        absent = "ABSENT" if a.kind in ("number",) else f"DEFAULTS[{a.name!r}]"
        parts.append(f"{a.name}={absent}" if a.default else a.name)
    return ", ".join(parts)


def _write(a: Argument) -> str:
    """A written argument's storage gets a new value of its old layout."""
    if a.kind == "tensors":
        return (
            f"            for t in {a.name} or ():\n"
            "                t = t.untyped_storage()\n"
            "                t._value = r.produce(t._value.layout)\n"
        )
    return (
        f"            if {a.name} is not None:\n"
        f"                t = {a.name}.untyped_storage()\n"
        "                t._value = r.produce(t._value.layout)\n"
    )


_ONE = """\
            o = s.outs
            v = Value(o, e, r.slots, None, r)
            r.slots += 1
            r.values.append(ref(v))
"""
_MAKE = """\
    t = empty_tensor(o.shape, o.dtype)
    if not o.contiguous:
        t = as_strided(META, t, o.shape, o.stride, 0)
    t.untyped_storage()._value = v
    return t
"""


def _results(op: OpOverload) -> tuple[str, str]:
    """How new values are made under the lock, and the tensors returned after it."""
    written = {
        alias: _safe(a.name)
        for a in op._schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
        for alias in a.alias_info.before_set
    }
    parts: list[str] = []
    for i, r in enumerate(op._schema.returns):
        alias = next((written[s] for s in r.alias_info.before_set if s in written), None) if r.alias_info else None
        many = "List[" in str(r.type)
        parts.append(alias or f"{'wrap_all' if many else 'wrap_one'}(vs[{i}])")
    fresh = [p for p in parts if p.startswith("wrap_")]
    if len(parts) == 1 and parts[0].startswith("wrap_one"):
        return _ONE, _MAKE
    made = "            vs = produce_all(r, s.outs)\n" if fresh else ""
    if not parts:
        return made, "    return None\n"
    return made, f"    return {parts[0] if len(parts) == 1 else '(' + ', '.join(parts) + ')'}\n"
