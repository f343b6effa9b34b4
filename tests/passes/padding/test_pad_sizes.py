"""The pass `pad-sizes` on IR: padded arguments, results and ops, and the reasons of refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from lazytpu.inspection.opt import main
from lazytpu.ir.base import _size_lists
from lazytpu.ir.dialect import OPS
from lazytpu.ir.forms import symbol
from lazytpu.ir.pointwise import BinaryOp, UnaryOp
from lazytpu.ir.shape import SliceOp
from lazytpu.ir.symbolic import Derivation, LostSize
from lazytpu.ir.text import parse_module, print_module
from lazytpu.passes.errors import PassError
from lazytpu.passes.padding.masks import Padded
from lazytpu.passes.padding.pad_sizes import pad_sizes
from lazytpu.passes.padding.walk import RULES, Refusal
from lazytpu.passes.pipeline import run_pipeline
from tests.passes.padding.sized import annotated, module_at

ONE = {"n": (1, 8)}
DOCS = Path(__file__).resolve().parents[3] / "docs" / "padding.md"


def module(arguments: str, result: str, body: str) -> ModuleOp:
    text = f'builtin.module attributes {{lazytpu.symbols = "n 1..8"}} {{ func.func @main({arguments}) -> {result} {{'
    return parse_module(f"{text}\n{body}\n}} }}")


def test_every_op_has_a_rule() -> None:
    assert set(RULES) == set(OPS.values())


def test_every_op_is_in_the_table_of_the_docs() -> None:
    rows = re.findall(r"^\| (`[^|]*) \| [^|]+\|$", DOCS.read_text(), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    expected = [name for name, op in OPS.items() if not issubclass(op, UnaryOp | BinaryOp)]
    assert sorted(named) == sorted(expected)


def test_sum_is_masked() -> None:
    before = module(
        '%x : tensor<4x8xf32> {lazytpu.sizes = "_ n"}',
        "tensor<4xf32>",
        """%0 = lazytpu.neg %x : tensor<4x8xf32>
        %1 = lazytpu.reduce add %0 dims = [1] : (tensor<4x8xf32>) -> tensor<4xf32> loc("train.py":3:0)
        func.return %1 : tensor<4xf32>""",
    )
    pad_sizes(before)
    after = parse_module("""
        builtin.module {
          func.func @main(%x: tensor<4x8xf32> {lazytpu.sizes = "_ n"}, %sizes: tensor<1xi32> {lazytpu.name = "sizes"}) -> tensor<4xf32> {
            %0 = lazytpu.neg %x : tensor<4x8xf32>
            %1 = lazytpu.iota dim = 0 : tensor<8xi32> loc("train.py":3:0)
            %2 = lazytpu.number %sizes 0 : (tensor<1xi32>) -> tensor<i32> loc("train.py":3:0)
            %3 = lazytpu.broadcast_in_dim %2 dims = [] : (tensor<i32>) -> tensor<8xi32> loc("train.py":3:0)
            %4 = lazytpu.compare LT %1, %3 : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1> loc("train.py":3:0)
            %5 = lazytpu.broadcast_in_dim %4 dims = [1] : (tensor<8xi1>) -> tensor<4x8xi1> loc("train.py":3:0)
            %6 = lazytpu.constant 0.0 : tensor<4x8xf32> loc("train.py":3:0)
            %7 = lazytpu.select %5, %0, %6 : (tensor<4x8xi1>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32> loc("train.py":3:0)
            %8 = lazytpu.reduce add %7 dims = [1] : (tensor<4x8xf32>) -> tensor<4xf32> loc("train.py":3:0)
            func.return %8 : tensor<4xf32>
          }
        }""")  # noqa: E501
    assert print_module(before) == print_module(after)


def test_module_without_symbols_is_unchanged() -> None:
    plain = annotated(lambda b, x, n: b.neg(x), ["f32[2,n]"], ONE)
    plain.attributes.clear()
    text = print_module(plain)
    assert pad_sizes(plain) is None
    assert print_module(plain) == text


def test_masks_are_shared_and_omitted_for_identities() -> None:
    def build(b, x, n):
        total = b.reduce("add", x, (1,))
        zeros = b.reduce("add", b.constant(0, "f32", (2, n)), (1,))
        return [total, b.dot_general(x, x, (), (), (1,), (1,)), zeros, b.reduce("add", b.transpose(x, (1, 0)), (0,))]

    padded = annotated(build, ["f32[2,n]"], ONE)
    sized = pad_sizes(padded)
    assert sized is not None
    assert sized.masks == 2  # x for the sum and both sides of the product, and its transpose
    compares = [op for op in padded.walk() if op.name == "lazytpu.compare"]
    assert len(compares) == 1


def test_values_have_no_users_outside_the_module() -> None:
    """The walk first pads a copy of a loop. A copy that still used the operands would be rewritten by later passes."""

    def build(b, x, n):
        start = b.add(x, x)
        return b.while_([start], lambda b, x: b.constant(False, "i1"), lambda b, x: b.neg(x))

    padded = annotated(build, ["f32[n]"], ONE)
    pad_sizes(padded)
    inside = set(padded.walk())
    assert all(use.operation in inside for op in inside for result in op.results for use in result.uses)


def test_results_and_arguments_are_annotated_with_sizes() -> None:
    padded = annotated(lambda b, x, n: [b.reshape(x, (3 * n,)), b.transpose(x, (1, 0))], ["f32[3,n]"], ONE)
    sized = pad_sizes(padded)
    assert sized is not None
    assert sized.symbols == ("n",)
    assert [[dim.text() for dim in dims] for dims in sized.results] == [["3|n:8"], ["n", "_"]]
    text = print_module(padded)
    assert '(tensor<24xf32> {lazytpu.sizes = "3|n:8"}, tensor<8x3xf32> {lazytpu.sizes = "n _"})' in text


def test_merged_argument_is_masked() -> None:
    before = module(
        '%x : tensor<24xf32> {lazytpu.sizes = "3|n:8"}',
        "tensor<f32>",
        """%0 = lazytpu.reduce add %x dims = [0] : (tensor<24xf32>) -> tensor<f32>
        func.return %0 : tensor<f32>""",
    )
    sized = pad_sizes(before)
    assert sized is not None
    assert sized.masks == 1
    assert "lazytpu.rem" in print_module(before)


def test_donation_and_layouts_are_kept() -> None:
    before = module(
        '%x : tensor<4x8xf32> {lazytpu.sizes = "_ n", lazytpu.donate, lazytpu.layout = "{0,1}"}',
        "tensor<4x8xf32>",
        """%0 = lazytpu.neg %x : tensor<4x8xf32>
        func.return %0 : tensor<4x8xf32>""",
    )
    run_pipeline(before, passes="pad-sizes,mark-donation", verify=True)
    assert 'lazytpu.layout = "{0,1}", lazytpu.alias = 0 : i64' in print_module(before)


def test_marks_of_recomputation_are_kept() -> None:
    before = module(
        '%x : tensor<8xf32> {lazytpu.sizes = "n"}',
        "tensor<f32>",
        """%0 = lazytpu.reduce add %x dims = [0] {lazytpu.recompute = 1 : i64} : (tensor<8xf32>) -> tensor<f32>
        func.return %0 : tensor<f32>""",
    )
    pad_sizes(before)
    select = next(op for op in before.walk() if op.name == "lazytpu.select")
    assert "lazytpu.recompute" in select.attributes


REFUSALS = {
    "template": (
        lambda b, x, n: b.template("ctc_loss", [x], [("f32", (2, n))])[0],
        ["f32[2,n]"],
        "the template 'ctc_loss' reads all elements",
    ),
    "kernel": (
        lambda b, x, n: b.jax_call("softmax_0123456789abcdef", [x], [("f32", (2, n))])[0],
        ["f32[2,n]"],
        "the kernel 'softmax' does not say",
    ),
    "collective": (lambda b, x, n: b.all_reduce("add", [x], [[0, 1]])[0], ["f32[2,n]"], "a collective over a sized"),
    "rest of none": (lambda b, x, n: b.slice(x, (2,), (n,)), ["f32[n]"], "the size n-2 is -1 to 6"),
    "limit": (lambda b, x, n: b.slice(x, (0,), (3,)), ["f32[n]"], "ends at 3, which may be behind the end n"),
    "groups": (
        lambda b, x, w, n: b.convolution(
            x, w, strides=(1,), low=(0,), high=(0,), lhs_dilation=(1,), rhs_dilation=(1,), layout="NC0,OI0,NC0",
            feature_groups=2,
        ),
        ["f32[2,4,5]", "f32[2*n,2,3]"],
        "divided into the groups",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_name_the_op_and_the_reason(name: str) -> None:
    build, arguments, reason = REFUSALS[name]
    with pytest.raises(Refusal, match=re.escape(reason)) as caught:
        pad_sizes(annotated(build, arguments, ONE))
    assert caught.value.op.startswith("lazytpu.")
    assert caught.value.op in str(caught.value)


def test_argmax_of_a_possibly_empty_dimension_is_refused() -> None:
    with pytest.raises(Refusal, match="the max of a dimension of n elements, which may be none"):
        pad_sizes(annotated(lambda b, x, n: b.argreduce("max", x, 0), ["f32[n]"], {"n": (0, 8)}))


def test_refusal_in_a_loop_names_the_inner_op() -> None:
    def build(b, x, n):
        return b.repeat(2, [x], lambda b, i, x: b.template("ctc_loss", [x], [("f32", (n,))])[0])

    with pytest.raises(Refusal) as caught:
        pad_sizes(annotated(build, ["f32[n]"], ONE))
    assert caught.value.op == "lazytpu.template"


def test_wrong_annotations_are_refused() -> None:
    for sizes, reason in (
        ("result: n", "annotated with n"),
        ("result: _ n", "annotated with 2 sizes; expected 1"),
        ("result: m", "has the symbol m; those of the"),
    ):
        before = module(
            '%x : tensor<8xf32> {lazytpu.sizes = "n"}, %y : tensor<8xf32>',
            "tensor<8xf32>",
            f"""%0 = lazytpu.neg %y {{lazytpu.sizes = "{sizes}"}} : tensor<8xf32>
            func.return %0 : tensor<8xf32>""",
        )
        with pytest.raises(Refusal, match=reason):
            pad_sizes(before)


def reversed_along(sizes: str) -> ModuleOp:
    return module(
        '%x : tensor<4x8xf32> {lazytpu.sizes = "_ n"}',
        "tensor<4x8xf32>",
        f"""%0 = lazytpu.reverse %x dims = [0] {{lazytpu.sizes = "{sizes}"}} : tensor<4x8xf32>
        func.return %0 : tensor<4x8xf32>""",
    )


def test_dimension_number_is_no_size() -> None:
    """An op declares the integers that may be sizes. The verifier and the pass refuse sizes at all other integers."""
    with pytest.raises(VerifyException, match="dims is annotated with a size, and is none"):
        reversed_along("dims: n").verify()
    with pytest.raises(Refusal, match="dims is annotated with a size, which the rule of the op does not read"):
        pad_sizes(reversed_along("dims: n"))
    reversed_along("result: _ n").verify()


def test_annotation_unread_by_the_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that ignores a sized property is refused, so that it cannot build a wrong program."""
    monkeypatch.setitem(RULES, SliceOp, lambda w, op: [Padded(tuple(w.result_dims(op)))])
    with pytest.raises(Refusal, match="limits is annotated with a size, which the rule"):
        pad_sizes(annotated(lambda b, x, n: b.slice(x, (0,), (n - 1,)), ["f32[n]"], ONE))


def test_sized_properties_are_declared() -> None:
    sized = {name: {*_size_lists(op)} for name, op in OPS.items() if _size_lists(op)}
    assert sized == {
        "slice": {"starts", "limits", "strides"},
        "pad": {"low", "high", "interior"},
        "dynamic_slice": {"sizes"},
        "gather": {"slice_sizes"},
        "convolution": {"high"},
        "reduce_window": {"window", "high"},
    }


STRUCTURE = {
    "dims": lambda b, x, n: b.reverse(x, (n % 2,)),
    "a template": lambda b, x, n: b.template("cumulative_logsumexp", [x], [("f32", (8, 8))], dim=n % 2)[0],
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_size_as_a_structural_integer_is_refused(name: str) -> None:
    with pytest.raises((Refusal, LostSize), match=r"chooses what the op does|as a key"):
        annotated(STRUCTURE[name], ["f32[8,8]"], ONE)


def test_size_that_chooses_between_ops_is_guarded() -> None:
    with Derivation(ONE) as derivation:
        n = derivation.size(symbol("n"))
        module_at(lambda b, x, n: b.transpose(x, (0, 1) if n % 2 else (1, 0)), ["f32[8,8]"], {"n": n})
    assert list(map(str, derivation.guards)) == ["n-2*(n)/2 == 0"]


def test_size_beyond_the_array_is_refused() -> None:
    before = module('%x : tensor<8xf32> {lazytpu.sizes = "n+1"}', "tensor<8xf32>", "func.return %x : tensor<8xf32>")
    with pytest.raises(Refusal, match=r"the size n\+1 is 2 to 9; expected 0 to 8"):
        pad_sizes(before)


def test_refusal_is_not_reported_as_a_bug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """builtin.module attributes {lazytpu.symbols = "n 1..8"} {
      func.func @main(%x : tensor<8xf32> {lazytpu.sizes = "n"}) -> tensor<2x4xf32> {
        %0 = lazytpu.reshape %x : (tensor<8xf32>) -> tensor<2x4xf32> loc("train.py":7:0)
        func.return %0 : tensor<2x4xf32>
      }
    }"""
    with pytest.raises(PassError, match="pass 'pad-sizes' refuses the module: a reshape from n:8") as caught:
        run_pipeline(parse_module(text), passes="pad-sizes", verify=True)
    assert "bug" not in str(caught.value)
    (tmp_path / "step.mlir").write_text(text)
    assert main(["-p", "pad-sizes", str(tmp_path / "step.mlir")]) == 1
    assert "from train.py:7" in capsys.readouterr().err


def test_module_with_two_functions_is_refused() -> None:
    two = annotated(lambda b, x, n: b.neg(x), ["f32[n]"], ONE)
    (function,) = two.ops
    two.body.block.add_op(function.clone())
    with pytest.raises(Refusal, match="has 2 functions"):
        pad_sizes(two)
