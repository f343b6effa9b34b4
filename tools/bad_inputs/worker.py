"""A child process: runs cases on the CPU and on "tpu", and reports the error of each."""

from __future__ import annotations

import random
import sys
import warnings
from typing import Any

import torch

from tools.bad_inputs.cases import Case, draw
from tools.children import alive, say, start_child
from tools.conformance.samples import Call, tensors, tree_map

MODES = ("debug", "fused", "fused")


def placed(call: Call, device: str) -> Call:
    """Return the call's tensors on a device; expanded ones stay expanded, and tensors that share memory share it
    there."""
    identities = {id(tensor) for tensor in tensors(call)}
    copies: dict[int, torch.Tensor] = {}

    def tensor(x: torch.Tensor) -> torch.Tensor:
        if id(x) not in copies:
            base: Any = x._base  # pyright: ignore[reportPrivateUsage]
            if id(base) in identities:
                copies[id(x)] = tensor(base).as_strided(x.shape, x.stride(), x.storage_offset())
            else:
                expanded = x.layout is torch.strided and x.dim() and not any(x.stride()) and x.numel() > 1
                copied = x.flatten()[:1].reshape(()) if expanded else x.clone()
                copies[id(x)] = copied.to(device).expand(x.shape) if expanded else copied.to(device)
        return copies[id(x)]

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return tensor(x)
        return torch.device(device) if isinstance(x, torch.device) else device if x == "cpu" else x

    return tree_map(lambda x: leaf(x) if isinstance(x, torch.Tensor | torch.device | str) else x, call)


def refusal(case: Case, device: str) -> tuple[str, str, bool] | None:
    """(the exception's type, its message, whether it came with a read), or None."""
    late = False
    try:
        first, args, kwargs = placed(case.call, device)
        result = case.function(first, *args, **kwargs)
        late = True
        for tensor in tensors(result):
            tensor.detach().cpu()
    except Exception as error:  # noqa: BLE001
        return type(error).__name__, " ".join(str(error).split())[:300], late
    return None


def main(numbers: list[int], only: str, address_space: int) -> None:
    warnings.simplefilter("ignore")
    import lazytpu

    start_child(address_space)
    for number in numbers:
        case = draw(number, only)
        if case is None:
            say(number=number, stage="nothing")
            continue
        mode = random.Random(number).choice(MODES)
        say(number=number, stage="cpu", text=case.text)
        want = refusal(case, "cpu")
        say(number=number, stage="tpu")
        with lazytpu.mode(mode):
            got = refusal(case, "tpu")
            alive("tpu")
        say(number=number, stage="done", mode=mode, want=want, got=got, late=case.late)


if __name__ == "__main__":
    main([int(n) for n in sys.argv[1].split(",")], sys.argv[2], int(sys.argv[3]))
