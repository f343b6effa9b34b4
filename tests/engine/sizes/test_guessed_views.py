"""What a view of a value is of a larger one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lazytpu.engine.sizes.guessed_views import Unknown, viewed
from lazytpu.frontend.recording.tensors import layout

Shape = Callable[[int], tuple[int, ...]]
VIEWS: dict[str, tuple[Shape, Callable[[torch.Tensor, int], torch.Tensor]]] = {
    "a transpose": (lambda n: (4, n, 8), lambda x, n: x.transpose(1, 2)),
    "merged": (lambda n: (4, n, 8), lambda x, n: x.view(4 * n, 8)),
    "cut into pieces": (lambda n: (4 * n, 6), lambda x, n: x.view(4, n, 2, 3).transpose(1, 2)),
    "pieces of one less": (lambda n: (4 * (n - 1), 6), lambda x, n: x.view(4, n - 1, 6)),
    "a chunk": (lambda n: (4, n, 12), lambda x, n: x.chunk(3, -1)[1]),
    "all but the last": (lambda n: (4, n), lambda x, n: x[:, :-1]),
    "all but the first": (lambda n: (n, 3), lambda x, n: x[1:]),
    "the last ones": (lambda n: (2, n, 3), lambda x, n: x[:, -2:]),
    "the last one": (lambda n: (2, n, 3), lambda x, n: x[:, -1]),
    "the first ones": (lambda n: (n, 3), lambda x, n: x[:4]),
    "repeated": (lambda n: (4, 1, n), lambda x, n: x.expand(4, 5, n)),
    "with a new dimension": (lambda n: (n, 3), lambda x, n: x[None, :, None]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name: str) -> None:
    shape, make = VIEWS[name]
    for before, after in ((11, 27), (12, 19)):
        views: list[tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]] = []
        whole = [torch.empty(shape(n)) for n in (before, after)]
        for x, n in zip(whole, (before, after), strict=True):
            y = make(x, n)
            views.append((tuple(y.shape), tuple(y.stride()), int(y.storage_offset()), y.dtype))
        one, other = [layout(x.dtype, tuple(x.shape), tuple(x.stride())) for x in whole]
        assert viewed(views[0], one, other, {before: after}) == views[1]


def test_what_is_unknown() -> None:
    one, other = [layout(torch.float32, (n, 3), (3, 1)) for n in (12, 19)]
    with pytest.raises(Unknown):
        viewed(((6, 3), (6, 1), 0, torch.float32), one, other, {12: 19})  # every second row
    with pytest.raises(Unknown):
        viewed(((12, 12), (3, 1), 0, torch.int8), one, other, {12: 19})
