"""Code generation: write the recording kernel of one op as Python source, from its schema.

A kernel computes the record's key, takes one step in the trie and creates the results. A generic kernel that loops over
its arguments would cost about twice as much. `source(op, facts)` shows the code.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import indent

from torch._ops import OpOverload

from lazytpu.ports import OpFacts

_STATIC_SCALARS = ("number", "Scalar")


@dataclass(frozen=True)
class KernelArgument:
    """One argument of a kernel. `kind` tells how it enters the key (see `_TOKENS`)."""

    name: str
    kind: str
    keyword: bool
    default: bool
    written: bool


def arguments(op: OpOverload, facts: OpFacts) -> list[KernelArgument]:
    """Return the kernel's arguments, in schema order."""
    parsed: list[KernelArgument] = []
    for a in op._schema.arguments:
        written = a.alias_info is not None and a.alias_info.is_write
        kind = _kind(str(a.type), a.name, facts)
        parsed.append(KernelArgument(safe(a.name), kind, a.kwarg_only, a.has_default_value(), written))
    return parsed


def safe(name: str) -> str:
    """Return the argument's name as a Python parameter."""
    return "from_" if name == "from" else name


def _kind(type_: str, name: str, facts: OpFacts) -> str:
    many = "List[" in type_ or (type_.endswith("]") and "Optional" not in type_)
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


# The code that adds an argument to the key, indented for the body of the kernel. {a} is the argument, {k} its token.
_TOKENS = {
    "tensor": """\
            try:
                _v = {a}.untyped_storage()._value
            except AttributeError:
                {k} = foreign(_r, {a})
            else:
                {k} = _v.slot if _v.epoch == _e else _r.admit(_v)
                _o = _v.layout
                if not ({a}.shape == _o.shape and {a}.stride() == _o.stride
                        and not {a}.storage_offset() and {a}.dtype is _o.dtype):
                    {k} = ({k}, {a}.shape, {a}.stride(), {a}.storage_offset(), {a}.dtype)
""",
    "tensor or number": """\
            _n = type({a})
            if _n is float or _n is int:
                _r.numbers.append({a})
                {k} = _n
            else:
{tensor}""",
    "tensors": "            {k} = operands(_r, {a})\n",
    "number": """\
            if {a} is None or {a} is ABSENT:
                {k} = {a}
            else:
                _r.numbers.append({a})
                {k} = type({a})
                if ({k} is not float and {k} is not int) or not -127 <= {a} <= 127:
                    {k} = number_type({a})
""",
    "numbers": """\
            if {a} is None:
                {k} = None
            else:
                _r.numbers.extend({a})
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
    """Return the kernel's source.

    Its own names begin with an underscore, so that no schema's argument hides them. The other names come from the
    namespace in `lazytpu.frontend.recording.kernels`.
    """
    args = arguments(op, facts)
    lines = [f"def {function_name(op)}({_parameters(args)}):\n"]
    lines.append("    try:\n        _r = thread_stash(STASH)\n    except RuntimeError:\n        _r = recorder()\n")
    generator = next((a.name for a in args if a.kind == "generator"), "None")
    if facts.random:
        lines.append(f"    _seed, _offset = draw({generator})\n")
    if facts.uses_precision:  # torch passes lazily conjugated tensors to products
        for a in args:
            if a.kind == "tensor" and not a.written:
                lines.append(f"    if {a.name} is not None and {a.name}.is_conj():\n")
                lines.append(f"        {a.name} = {a.name}.resolve_conj()\n")
            elif a.kind == "tensor" and not a.keyword:
                lines.append(_through_memory(op, args, a))
    lines.append("    with _r.lock:\n        try:\n            _e = _r.epoch\n")
    tokens: list[str] = []
    for i, a in enumerate(args):
        lines.append(_token(a, f"_k{i}", facts))
        if a.kind != "generator":
            tokens.append(f"_k{i}")
    if facts.random:
        lines.append("            _r.numbers.append(_seed)\n            _r.numbers.append(_offset)\n")
    lines.append(f"            _key = (NAME, {''.join(t + ', ' for t in tokens)})\n")
    lines.append("            _p = _r.state\n            _s = _p.expected\n            if _s.key != _key:\n")
    lines.append("                _s = _p.next.get(_key)\n                if _s is None:\n")
    lines.append(f"                    _s = miss(KERNEL, _r, _key, ({''.join(a.name + ', ' for a in args)}))\n")
    lines.append("                _p.expected = _s\n            _r.state = _s\n")
    values, result = _results(op)
    lines.append(values)
    lines.extend(_write(a) for a in args if a.written)
    lines.append("        except BaseException as _error:\n            _r.rollback()\n            _failure = _error\n")
    lines.append("        else:\n            _failure = None\n")
    lines.append("    if _failure is not None:\n        try:\n")
    if facts.random:
        lines.append(f"            undraw({generator}, _offset)\n")
    lines.append(f"            return failed(KERNEL, _r, _failure, ({''.join(a.name + ', ' for a in args)}))\n")
    lines.append("        finally:\n            del _failure\n")  # its traceback refers to this frame (R4)
    if "foreach" in str(op):  # torch counts the writes to a tensor, but not to tensors in a list
        lines.extend(f"    wrote({a.name})\n" for a in args if a.written and a.kind == "tensors")
    # An overwritten value is dead, and may be donated, once no name here refers to it (R4).
    lines.append(f"    if _r.eager:\n{'' if values is _ONE else '        _v = None' + chr(10)}        run_now(_r)\n")
    lines.append(result)
    return "".join(lines)


def _token(a: KernelArgument, token: str, facts: OpFacts) -> str:
    tensor = _TOKENS["tensor"].format(a=a.name, k=token)
    if a.kind == "tensor" and a.name in facts.numbers:  # x * 2.0 is mul.Tensor; an exception costs 2 us
        return _TOKENS["tensor or number"].format(a=a.name, k=token, tensor=indent(tensor, "    "))
    return _TOKENS[a.kind].format(a=a.name, k=token)


def _through_memory(op: OpOverload, args: list[KernelArgument], written: KernelArgument) -> str:
    """Return code that computes a write to a conjugated tensor in an unconjugated one, and copies it."""
    call = ", ".join(f"{a.name}={a.name}" if a.keyword else a.name for a in args)
    return (
        f"    if {written.name}.is_conj():\n"
        f"        _conjugated, {written.name} = {written.name}, {written.name}.resolve_conj()\n"
        f"        return _conjugated.copy_({function_name(op)}({call}))\n"
    )


def function_name(op: OpOverload) -> str:
    """Return `aten_add_Tensor` for aten.add.Tensor."""
    return str(op).replace(".", "_")


def _parameters(args: list[KernelArgument]) -> str:
    parameters: list[str] = []
    star = False
    for a in args:
        if a.keyword and not star:
            star = True
            parameters.append("*")
        absent = "ABSENT" if a.kind in ("number",) else f"DEFAULTS[{a.name!r}]"
        parameters.append(f"{a.name}={absent}" if a.default else a.name)
    return ", ".join(parameters)


def _write(a: KernelArgument) -> str:
    """Return code that gives a written argument's storage a new value of its old layout."""
    if a.kind == "tensors":
        return f"            overwrite(_r, {a.name})\n"
    return (
        f"            if {a.name} is not None:\n"
        f"                _t = {a.name}.untyped_storage()\n"
        "                _t._value = _r.produce(_t._value.layout)\n"
    )


_ONE = """\
            _o = _s.outs
            _v = Value(_o, _e, _r.slots, None, _r)
            _r.slots += 1
            _r.values.append(ref(_v))
"""
_MAKE = """\
    _t = empty_tensor(_o.shape, _o.dtype)
    if not _o.contiguous:
        _t = reinterpret(_t, _o.shape, _o.stride, 0)
    _t.untyped_storage()._value = _v
    return _t
"""


def _results(op: OpOverload) -> tuple[str, str]:
    """Return the code that creates new values under the lock, and the code that returns tensors after it."""
    written = {
        alias: safe(a.name)
        for a in op._schema.arguments
        if a.alias_info is not None and a.alias_info.is_write
        for alias in a.alias_info.before_set
    }
    returned: list[str] = []
    for i, r in enumerate(op._schema.returns):
        alias = next((written[s] for s in r.alias_info.before_set if s in written), None) if r.alias_info else None
        many = "List[" in str(r.type)
        returned.append(alias or f"{'wrap_all' if many else 'wrap_one'}(_vs[{i}])")
    fresh = [p for p in returned if p.startswith("wrap_")]
    if len(returned) == 1 and returned[0].startswith("wrap_one"):
        return _ONE, _MAKE
    values = "            _vs = produce_all(_r, _s.outs)\n" if fresh else ""
    if not returned:
        return values, "    return None\n"
    return values, f"    return {returned[0] if len(returned) == 1 else '(' + ', '.join(returned) + ')'}\n"
