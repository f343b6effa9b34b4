"""A record's line is the user's; the line of a backward record is the line of its forward op."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch
from torch import nn
from typing_extensions import deprecated

import lazytpu
from lazytpu.frontend.tensors import recorder


def line_here() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_ops_without_a_gradient_take_no_lines_from_differentiable_ops() -> None:
    table = nn.Embedding(23, 5).to("tpu")
    tokens = torch.arange(4).to("tpu")
    lazytpu.sync()
    with lazytpu.mode("lazy"):
        rows, line = table(tokens), line_here()
        mask = tokens.flip(0) > 1
        scaled = rows * 3
        middle = line_here() - 1
        flags = mask.sum() + tokens.max()
        scaled.sum().backward()
        records = recorder().state.records()
        backward = {str(r.op): (r.line.line, r.line.backward) for r in records if r.in_backward}
        forward = {str(r.op): r.line.line for r in records if not r.in_backward}
        lazytpu.mark_step()
    assert backward["aten.embedding_dense_backward.default"] == (line, True)
    assert backward["aten.mul.Tensor"] == (middle, True)
    assert forward["aten.embedding.default"] == line
    assert forward["aten.flip.default"] == line + 1
    assert flags.item() == 5


def test_a_decorator_of_another_library_is_no_line_of_the_user() -> None:
    """torch wraps deprecated functions, such as `all_gather_into_tensor`, by `typing_extensions`."""
    sine = deprecated("it is old", category=FutureWarning)(functools.partial(torch.sin))
    x = torch.ones(3).to("tpu")
    lazytpu.sync()
    with lazytpu.mode("lazy"):
        with pytest.warns(FutureWarning, match="it is old"):
            y, line = sine(x), line_here()
        (record,) = recorder().state.records()
        assert torch.equal(y.cpu(), torch.ones(3).sin())
    assert (record.line.file, record.line.line) == (__file__, line)
