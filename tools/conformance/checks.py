"""The checks of one sample: one generator each.

A check computes the CPU's result, records the same on the device and yields. Nothing is compiled until all checks of an
entry are recorded; then they share one program. After the yield it reads and compares, and raises Mismatch. A check
that the CPU itself does not pass, or that does not apply, returns before it yields.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tools.conformance.compare import GRADIENTS, Mismatch
from tools.conformance.samples import Placed, noncontiguous, tensors, tree_map

if TYPE_CHECKING:
    from tools.conformance.entries import Entry
    from tools.conformance.trial import Trial

Check = Callable[["Trial"], Generator[None, None, None]]
COTANGENTS = 1  # a stream of random numbers, see Entry.start


def forward(t: Trial) -> Generator[None, None, None]:
    """Values, dtypes, shapes, strides; and a result is a view of its input where the CPU's is, nowhere else."""
    arguments = t.device_inputs.take()
    got = t.run(arguments)
    yield
    t.same(got, t.reference, "result")
    for i, (result, want) in enumerate(zip(tensors(got), tensors(t.reference), strict=True)):
        alias = shares(want, t.host_call)
        if want.numel() and shares(result, arguments) != alias:
            raise Mismatch(f"result {i} {'must' if alias else 'must not'} share its input's memory, as on the CPU")


def strided(t: Trial) -> Generator[None, None, None]:
    """The same of inputs that are views with gaps, for every other sample."""
    call = None if t.position % 2 else noncontiguous(t.call)
    if call is None:
        return
    want = t.attempt(t.run, Placed(call, "cpu").take())
    if want is None:
        return
    placed = Placed(call, t.device)
    placed.always_fresh = t.device_inputs.always_fresh
    got = t.run(placed.take())
    yield
    t.same(got, want, "result")


def backward(t: Trial) -> Generator[None, None, None]:
    """Compare gradients of every input that requires one, at random cotangents."""
    if not t.entry.differentiable or not t.values:
        return
    want = t.attempt(gradients, t, t.host_inputs.take(grad=True), "cpu")
    if want is None:
        return
    got = gradients(t, t.device_inputs.take(grad=True), t.device)
    yield
    for i, (g, w) in enumerate(zip(got or [], want, strict=True)):
        if g is None or w is None:  # no gradient is a gradient of zero
            gradient = g if w is None else w
            if gradient is not None and gradient.abs().max().item() != 0:
                raise Mismatch(f"gradient {i}: {'none' if g is None else 'one'}, unlike the CPU")
            continue
        t.same(g, w, f"gradient {i}", strides=False, scale=GRADIENTS)


def gradients(t: Trial, call: Any, device: str) -> list[torch.Tensor | None] | None:
    """Gradients of the leaves of a call; None where nothing is differentiable."""
    info, leaves = t.entry.info, [x for x in tensors(call) if x.requires_grad]
    t.reseed()
    outputs = info.gradcheck_wrapper(info.get_op(), call[0], *call[1], **call[2])
    results = [r for r in tensors(t.sample.output_process_fn_grad(outputs)) if r.requires_grad]
    if not leaves or not results:
        return None
    return list(torch.autograd.grad(results, leaves, cotangents_of(results, t.entry, device), allow_unused=True))


def cotangents_of(results: list[torch.Tensor], entry: Entry, device: str) -> list[torch.Tensor]:
    """Random numbers like the results."""
    random = torch.Generator().manual_seed(entry.start(COTANGENTS))
    return [torch.randn(r.shape, dtype=r.dtype, generator=random).to(device) for r in results]


def inplace(t: Trial) -> Generator[None, None, None]:
    """The in-place form returns its first argument, changed as on the CPU."""
    form = t.entry.info.get_inplace()
    if form is None or t.sample.broadcasts_input:
        return
    on_host = t.host_inputs.take()
    if t.attempt(t.run, on_host, form) is None or not isinstance(on_host[0], torch.Tensor):
        return
    on_device = t.device_inputs.take(fresh=True)
    returned = t.run(on_device, form)
    yield
    t.same(on_device[0], on_host[0], "changed input")
    if isinstance(returned, torch.Tensor) and returned is not on_device[0]:
        raise Mismatch("the in-place form returned another tensor than its input")


def out(t: Trial) -> Generator[None, None, None]:
    """`out=` is written; for two samples also with other strides, and an empty one, which is resized."""
    if not t.entry.info.supports_out or any(r.layout is not torch.strided for r in tensors(t.reference)):
        return
    pairs = []
    for how, layout in LAYOUTS.items():
        if how != "out" and (t.position > 1 or t.entry.name in OUT_OF_BOUNDS):
            break
        targets = [_targets(t.reference, layout, device) for device in (t.device, "cpu")]
        refused = t.attempt(t.run, with_out(t.host_inputs.take(), targets[1])) is None
        if not refused and not (
            t.values and differ(targets[1], t.reference)
        ):  # some kernels of the CPU miss other strides
            t.run(with_out(t.device_inputs.take(), targets[0]))
            pairs.append((*targets, how))
    if not pairs:
        return
    yield
    for pair in pairs:
        t.same(*pair)


def differ(x: Any, y: Any) -> bool:
    """Whether the values of two results of the CPU are not the same."""
    pairs = zip(tensors(x), tensors(y), strict=True)
    return not all(a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-3, equal_nan=True) for a, b in pairs)


# Ops whose kernel on the CPU writes out of bounds where `out=` has other strides (torch 2.13).
OUT_OF_BOUNDS = frozenset({"lu_unpack", "linalg.lu", "tril", "triu"})
# The shape and strides of `out=` for a result.
LAYOUTS: dict[str, Callable[[torch.Tensor], tuple[Sequence[int], Sequence[int]]]] = {
    "out": lambda r: (r.shape, torch.empty_like(r, device="meta").stride()),
    "out with other strides": lambda r: (r.shape, torch.empty(r.shape[::-1], device="meta").stride()[::-1]),
    "out that is resized": lambda r: ((0,), (1,)),
}


def _targets(results: Any, layout: Callable[..., Any], device: str) -> Any:
    def target(r: Any) -> Any:
        if not isinstance(r, torch.Tensor):
            return r
        return torch.empty_strided(*layout(r), dtype=r.dtype, device=device).zero_()

    return tree_map(target, results)


def with_out(call: Any, target: Any) -> Any:
    return call[0], call[1], {**call[2], "out": target}


def view(t: Trial) -> Generator[None, None, None]:
    """If the CPU's result is a view, a write into it changes the input."""
    if not isinstance(t.call[0], torch.Tensor) or not t.values:
        return
    on_host = t.host_inputs.take()
    result = next((r for r in tensors(t.run(on_host)) if r.numel()), None)
    if result is None or result is on_host[0] or not shares(result, on_host[0]):
        return
    if t.attempt(result.fill_, 1) is None:  # a result that overlaps itself cannot be written
        return
    on_device = t.device_inputs.take(fresh=True)
    next(r for r in tensors(t.run(on_device)) if r.numel()).fill_(1)
    yield
    t.same(on_device[0], on_host[0], "input after a write to the view")


def shares(result: torch.Tensor, given: Any) -> bool:
    """Whether a result shares the memory of an argument."""
    if result.layout is not torch.strided:
        return False
    mine = result.untyped_storage()._cdata
    return any(g.layout is torch.strided and g.untyped_storage()._cdata == mine for g in tensors(given))


CHECKS: dict[str, Check] = {
    "forward": forward,
    "backward": backward,
    "inplace": inplace,
    "out": out,
    "strided": strided,
    "view": view,
}
