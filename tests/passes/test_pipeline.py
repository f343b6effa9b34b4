"""The driver: order, records, verification and errors."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass

from lazytpu.ir.text import parse_module, print_module
from lazytpu.ir.types import tensor_type
from lazytpu.ir.unary import ExpOp
from lazytpu.passes import pipeline
from lazytpu.passes.pipeline import CPU, PassError, PassRecord, for_target, parse, run_pipeline
from lazytpu.passes.registry import BUILT_IN, registered
from tests.passes.modules import parse_main

BODY = """
    %0 = lazytpu.constant 1.0 : tensor<4xf32>
    %1 = lazytpu.mul %x, %0 : tensor<4xf32>
    %2 = lazytpu.exp %1 : tensor<4xf32> loc("train.py":41:0)
    func.return %2 : tensor<4xf32>"""


def small() -> ModuleOp:
    return parse_main("%x : tensor<4xf32>", BODY)


@dataclass(frozen=True)
class Invalidate(ModulePass):
    """Gives the exp a result type it cannot have."""

    name = "invalidate"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        exp = next(inner for inner in op.walk() if isinstance(inner, ExpOp))
        broken = ExpOp.create(operands=exp.operands, result_types=[tensor_type("f64", (4,))], location=exp.location)
        (function,) = op.ops
        assert isinstance(function, FuncOp)
        block = function.body.block
        block.insert_op_before(broken, exp)
        exp.results[0].replace_all_uses_with(broken.results[0])
        block.erase_op(exp)


@dataclass(frozen=True)
class Misorder(ModulePass):
    """Moves the exp to the front."""

    name = "misorder"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        exp = next(inner for inner in op.walk() if isinstance(inner, ExpOp))
        block = exp.parent
        assert block is not None
        assert block.first_op is not None
        exp.detach()
        block.insert_op_before(exp, block.first_op)


@dataclass(frozen=True)
class Knot(ModulePass):
    """Makes the exp use its own result."""

    name = "knot"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        exp = next(inner for inner in op.walk() if isinstance(inner, ExpOp))
        exp.operands[0] = exp.results[0]


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (Misorder, "operand 0 of lazytpu.exp is a result of lazytpu.mul, which comes after it"),
        (Knot, "operand 0 of lazytpu.exp is its own result"),
    ],
)
def test_pass_that_misorders_ops_is_named(
    monkeypatch: pytest.MonkeyPatch, bad: type[ModulePass], reason: str, verify: bool
) -> None:
    monkeypatch.setattr(pipeline, "parse", lambda text: (parse("cse")[0], bad(), *parse("cse,dce")))
    with pytest.raises(PassError) as caught:
        run_pipeline(small(), verify=verify)
    message = str(caught.value)
    assert message.startswith(f"the module after pass {bad.name!r} is not valid: {reason}\n  at the op `lazytpu.exp")
    assert "train.py:41" in message


def test_misordered_module_is_refused_before_the_first_pass() -> None:
    wrong = small()
    Misorder().apply(Context(), wrong)
    with pytest.raises(PassError, match=r"the module given to the pipeline is not valid: operand 0 of lazytpu\.exp"):
        run_pipeline(wrong, verify=False)


def test_records_describe_each_pass() -> None:
    records = run_pipeline(small(), verify=False)
    assert [record.name for record in records] == [
        "input",
        *(text.partition("{")[0] for text in for_target(CPU).split(",")),
    ]
    assert [record.number for record in records] == list(range(len(records)))
    assert all(record.total == len(records) - 1 for record in records)
    assert records[0].ops_before == records[0].ops_after == 5
    assert records[-1].ops_after == 3
    for before, after in pairwise(records):
        assert after.ops_before == before.ops_after
        assert after.seconds >= 0
    assert all(record.text is None for record in records)
    assert repr(PassRecord("cse", 1, 7, 0.0123, 4000, 3500)) == "<cse: 12.3 ms, 4,000 -> 3,500 ops>"


def test_texts_are_kept_on_request() -> None:
    ends = run_pipeline(small(), verify=False, keep="ends")
    assert [record.number for record in ends if record.text] == [0, len(ends) - 1]
    rewritten = small()
    everything = run_pipeline(rewritten, verify=False, keep="all")
    assert everything[0].text == print_module(small())
    assert everything[-1].text == print_module(rewritten)
    for record in everything:
        assert record.text is not None
        assert print_module(parse_module(record.text)) == record.text


def test_dumped_text_and_remaining_passes_give_the_same() -> None:
    """Dump after pass N and run the remaining passes from the text, as when bisecting passes."""
    passes = for_target(CPU).split(",")
    records = run_pipeline(small(), verify=False, keep="all")
    for done, record in enumerate(records[:-1]):
        assert record.text is not None
        resumed = parse_module(record.text)
        run_pipeline(resumed, passes=",".join(passes[done:]), verify=False)
        assert print_module(resumed) == records[-1].text


def test_observer_sees_every_pass() -> None:
    seen: list[tuple[str, int]] = []
    records = run_pipeline(
        small(), verify=False, observer=lambda record, module: seen.append((record.name, pipeline.count_ops(module)))
    )
    assert seen == [(record.name, record.ops_after) for record in records]


def test_empty_pipeline() -> None:
    (record,) = run_pipeline(small(), passes="", verify=True, keep="ends")
    assert (record.number, record.total) == (0, 0)
    assert record.text is not None


def test_unknown_pass_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no pass named 'inline'; the passes are canonicalize, .*mark-donation"):
        parse("cse,inline")


def test_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r'"size".*"limit"'):
        parse("constant-folding{size=3}")


def test_options_are_parsed() -> None:
    (parsed,) = parse("constant-folding{limit=7}")
    assert str(parsed.pipeline_pass_spec()) == "constant-folding{limit=7}"


@pytest.mark.parametrize("name", BUILT_IN)
def test_passes_have_their_registered_names(name: str) -> None:
    assert BUILT_IN[name].load().name == name
    package, _, file = BUILT_IN[name].load().__module__.rpartition(".")
    assert package.startswith("lazytpu.passes") and file == name.replace("-", "_")


def test_invalid_input_names_the_op_and_its_line() -> None:
    broken = small()
    Invalidate().apply(Context(), broken)
    with pytest.raises(PassError) as caught:
        run_pipeline(broken, verify=False)
    message = str(caught.value)
    assert message.startswith("the module given to the pipeline is not valid")
    assert "lazytpu.exp" in message
    assert "train.py:41" in message
    assert len(message.splitlines()) < 6


@pytest.mark.parametrize(("passes", "verify"), [("invalidate", False), ("invalidate,dce", True)])
def test_pass_that_breaks_the_module_is_named(passes: str, verify: bool) -> None:
    message = r"(?s)after pass 'invalidate' is not valid.*train\.py:41"
    with registered(Invalidate), pytest.raises(PassError, match=message):
        run_pipeline(small(), passes=passes, verify=verify)
