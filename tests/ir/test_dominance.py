"""Values are defined before they are used, in every kind of region."""

from __future__ import annotations

import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.cf import Cf
from xdsl.dialects.func import Func, FuncOp, ReturnOp
from xdsl.dialects.test import Test
from xdsl.ir import Block
from xdsl.parser import Parser
from xdsl.utils.exceptions import VerifyException

from lazytpu.ir.dialect import LAZYTPU
from lazytpu.ir.dominance import misplaced, verify_order
from lazytpu.ir.text import parse_module
from lazytpu.ir.types import tensor_type
from lazytpu.ir.unary import ExpOp


def text(body: str, more: str = "") -> str:
    return f"""
builtin.module {{
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
    {body}
  }}
  {more}
}}"""


def any_module(body: str) -> ModuleOp:
    """A module with ops that have regions and blocks, unlike the dialect's; not verified."""
    context = Context()
    for dialect in (Builtin, Func, LAZYTPU, Test, Cf):
        context.load_dialect(dialect)
    return Parser(context, text(body)).parse_module()


LATER = """%1 = lazytpu.mul %0, %x : tensor<4xf32>
    %0 = lazytpu.add %x, %x : tensor<4xf32>
    func.return %1 : tensor<4xf32>"""
ITSELF = """%0 = lazytpu.mul %x, %0 : tensor<4xf32>
    func.return %0 : tensor<4xf32>"""
AROUND = """%0 = lazytpu.exp %1 : tensor<4xf32>
    %1 = lazytpu.exp %0 : tensor<4xf32>
    func.return %1 : tensor<4xf32>"""
RETURNED = """func.return %0 : tensor<4xf32>
    %0 = lazytpu.exp %x : tensor<4xf32>"""
CALLED = """%0 = func.call @other(%1) : (tensor<4xf32>) -> tensor<4xf32>
    %1 = lazytpu.exp %x : tensor<4xf32>
    func.return %0 : tensor<4xf32>"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (LATER, "operand 0 of lazytpu.mul is a result of lazytpu.add, which comes after it"),
        (ITSELF, "operand 1 of lazytpu.mul is its own result"),
        (AROUND, "operand 0 of lazytpu.exp is a result of lazytpu.exp, which comes after it"),
        (RETURNED, "operand 0 of func.return is a result of lazytpu.exp, which comes after it"),
        (CALLED, "operand 0 of func.call is a result of lazytpu.exp, which comes after it"),
    ],
)
def test_a_text_in_the_wrong_order_is_refused(body: str, message: str):
    with pytest.raises(VerifyException) as caught:
        parse_module(text(body))
    assert str(caught.value) == message


def test_later_functions_are_checked():
    second = "func.func private @other(%y: tensor<4xf32>) -> tensor<4xf32> {\n" + LATER.replace("%x", "%y") + "\n}"
    with pytest.raises(VerifyException, match="comes after it"):
        parse_module(text("func.return %x : tensor<4xf32>", second))


def two_functions() -> tuple[Block, Block]:
    source = "func.func private @other(%y: tensor<4xf32>) -> tensor<4xf32> { func.return %y : tensor<4xf32> }"
    body = "%0 = lazytpu.exp %x : tensor<4xf32>\nfunc.return %0 : tensor<4xf32>"
    module = parse_module(text(body, source))
    verify_order(module)
    first, second = (op for op in module.ops if isinstance(op, FuncOp))
    return first.body.block, second.body.block


def message_of(block: Block) -> str:
    top = block.parent_op()
    assert top is not None
    module = top.parent_op()
    assert module is not None
    return str(misplaced(module))


def test_values_of_another_function_are_refused():
    main, second = two_functions()
    exp, ended = list(main.ops)
    exp.operands[0] = second.args[0]
    assert message_of(main) == "operand 0 of lazytpu.exp is an argument of another function or region"
    exp.operands[0] = main.args[0]
    assert message_of(main) == "None"
    last = second.last_op
    assert last is not None
    last.operands[0] = exp.results[0]
    assert ended.operands[0] is exp.results[0]
    assert message_of(second) == (
        "operand 0 of func.return is a result of lazytpu.exp, which is in another function, region or block"
    )


def test_values_outside_any_function_are_refused():
    main, _ = two_functions()
    exp, _ = list(main.ops)
    kind = tensor_type("f32", (4,))
    loose = ExpOp.create(operands=[main.args[0]], result_types=[kind])
    exp.operands[0] = loose.results[0]
    nowhere = "is a result of lazytpu.exp, which is not in a block: it was erased, or never inserted"
    assert message_of(main) == f"operand 0 of lazytpu.exp {nowhere}"
    exp.operands[0] = Block(arg_types=[kind]).args[0]
    assert message_of(main) == "operand 0 of lazytpu.exp is an argument of another function or region"
    exp.operands[0] = main.args[0]
    main.erase_op(exp, safe_erase=False)
    assert message_of(main) == f"operand 0 of func.return {nowhere}"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        # A region sees its own arguments, and the values defined before it in the enclosing region.
        (
            """%0 = lazytpu.exp %x : tensor<4xf32>
            "test.op"() ({
            ^bb0(%a: tensor<4xf32>):
              %1 = lazytpu.add %0, %a : tensor<4xf32>
              %2 = lazytpu.exp %1 : tensor<4xf32>
            }) : () -> ()
            func.return %0 : tensor<4xf32>""",
            "None",
        ),
        (
            """"test.op"() ({
              %1 = lazytpu.exp %0 : tensor<4xf32>
            }) : () -> ()
            %0 = lazytpu.exp %x : tensor<4xf32>
            func.return %0 : tensor<4xf32>""",
            "operand 0 of lazytpu.exp is a result of lazytpu.exp, which is in another function, region or block",
        ),
        (
            """%0 = "test.op"() ({
              %1 = lazytpu.exp %0 : tensor<4xf32>
            }) : () -> tensor<4xf32>
            func.return %0 : tensor<4xf32>""",
            "operand 0 of lazytpu.exp is a result of test.op, which is in another function, region or block",
        ),
        # Blocks: values of dominating blocks are visible, wherever these stand; others are not.
        (
            """%0 = lazytpu.exp %x : tensor<4xf32>
            cf.br ^bb2
            ^bb1:
            func.return %1 : tensor<4xf32>
            ^bb2:
            %1 = lazytpu.exp %0 : tensor<4xf32>
            cf.br ^bb1""",
            "None",
        ),
        (
            """%p = "test.op"() : () -> i1
            cf.cond_br %p, ^bb1, ^bb2
            ^bb1:
            %1 = lazytpu.exp %x : tensor<4xf32>
            cf.br ^bb2
            ^bb2:
            func.return %1 : tensor<4xf32>""",
            "operand 0 of func.return is a result of lazytpu.exp, which is in another function, region or block",
        ),
    ],
)
def test_visibility_in_regions_and_blocks(body: str, message: str):
    assert str(misplaced(any_module(body))) == message


def test_values_of_another_region_are_refused():
    body = """"test.op"() ({
          %1 = lazytpu.exp %x : tensor<4xf32>
        }, {
          %2 = lazytpu.exp %x : tensor<4xf32>
        }) : () -> ()
        func.return %x : tensor<4xf32>"""
    module = any_module(body)
    assert misplaced(module) is None
    first, second = (op for op in module.walk() if isinstance(op, ExpOp))
    second.operands[0] = first.results[0]
    elsewhere = "is a result of lazytpu.exp, which is in another function, region or block"
    assert str(misplaced(module)) == f"operand 0 of lazytpu.exp {elsewhere}"
    second.operands[0] = first.operands[0]
    (ended,) = (op for op in module.walk() if isinstance(op, ReturnOp))
    ended.operands[0] = second.results[0]
    assert str(misplaced(module)) == f"operand 0 of func.return {elsewhere}"
