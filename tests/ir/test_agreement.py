"""Collectives in branches and loops: devices that communicate there have to agree on the condition."""

from __future__ import annotations

import pytest
from xdsl.utils.exceptions import VerifyException

from lazytpu.ir.text import parse_module

SUM = "lazytpu.all_reduce add %a groups = [[0, 1], [2, 3]] : (tensor<2xf32>) -> tensor<2xf32>"


def branch(condition: str) -> str:
    return f"""
      {condition}
      %y = lazytpu.if %p, %x : (tensor<i1>, tensor<2xf32>) -> tensor<2xf32> then(%a) {{
        %s = {SUM}
        lazytpu.yield %s : tensor<2xf32>
      }} else(%a) {{
        lazytpu.yield %a : tensor<2xf32>
      }}
    """


def loop(limit: str, step: str = "%one = lazytpu.constant 1 : tensor<i32>") -> str:
    return f"""
      %i = lazytpu.constant 0 : tensor<i32>
      {limit}
      %n, %y = lazytpu.while %i, %x, %end carried = 2
          : (tensor<i32>, tensor<2xf32>, tensor<i32>) -> (tensor<i32>, tensor<2xf32>) while(%k, %a, %e) {{
        %more = lazytpu.compare LT %k, %e : (tensor<i32>, tensor<i32>) -> tensor<i1>
        lazytpu.yield %more : tensor<i1>
      }} do(%k, %a, %e) {{
        %s = {SUM}
        {step}
        %next = lazytpu.add %k, %one : tensor<i32>
        lazytpu.yield %next, %s : tensor<i32>, tensor<2xf32>
      }}
    """


def module(body: str) -> str:
    return f"""
    func.func @main(%x: tensor<2xf32>, %p0: tensor<i1>, %n0: tensor<i32>) -> tensor<2xf32> {{
      {body}
      func.return %y : tensor<2xf32>
    }}
    """


def reduced(groups: str) -> str:
    return f"%p = lazytpu.all_reduce or %p0 groups = {groups} : (tensor<i1>) -> tensor<i1>"


AGREED = {
    "a constant": branch("%p = lazytpu.constant true : tensor<i1>"),
    "reduced over the same devices": branch(reduced("[[0, 1], [2, 3]]")),
    "reduced over more devices": branch(reduced("[[0, 1, 2, 3]]")),
    "a loop that counts": loop("%end = lazytpu.constant 3 : tensor<i32>"),
    "a rank, for which nobody waits": branch("%p = lazytpu.not %p0 : tensor<i1>").replace(
        f"%s = {SUM}",
        "%r = lazytpu.group_rank groups = [[0, 1]] : () -> tensor<i32>\n%s = lazytpu.neg %a : tensor<2xf32>",
    ),
    "a loop to a limit that was reduced": loop(
        "%end = lazytpu.all_reduce max %n0 groups = [[0, 1, 2, 3]] : (tensor<i32>) -> tensor<i32>"
    ),
}
REFUSED = {
    "an argument": (branch("%p = lazytpu.not %p0 : tensor<i1>"), "in a branch"),
    "reduced over other devices": (branch(reduced("[[0, 2], [1, 3]]")), "in a branch"),
    "the limit of a loop": (loop("%end = lazytpu.abs %n0 : tensor<i32>"), "in a loop"),
    "the step of a loop": (
        loop(
            "%end = lazytpu.constant 3 : tensor<i32>",
            "%one = lazytpu.group_rank groups = [[0, 1, 2, 3]] : () -> tensor<i32>",
        ),
        "in a loop",
    ),
}


@pytest.mark.parametrize("name", AGREED)
def test_agreeing_devices_may_communicate(name: str) -> None:
    parse_module(module(AGREED[name])).verify()


@pytest.mark.parametrize("name", REFUSED)
def test_differing_devices_are_refused(name: str) -> None:
    text, where = REFUSED[name]
    with pytest.raises(VerifyException, match=rf"lazytpu\.all_reduce.*{where} whose condition may differ.*move the"):
        parse_module(module(text)).verify()
