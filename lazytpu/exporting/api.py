"""`lazytpu.export` for users: a callable, with `load` as an attribute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lazytpu import wiring
from lazytpu.frontend.activation import activate

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram

    from lazytpu.exporting.exported import Exported
    from lazytpu.exporting.loading import Loaded


class Export:
    """The type of `lazytpu.export`."""

    def __call__(
        self,
        program: nn.Module | ExportedProgram,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        platforms: str | Sequence[str] = ("cpu", "tpu"),
        seed: bool = False,
        name: str | None = None,
    ) -> Exported:
        """Export a program as StableHLO, with its weights beside it: `lazytpu.export(model, (x,)).save("model")`.

        `program` is a module, which `torch.export.export` captures with the example arguments `args` and `kwargs`, or
        an ExportedProgram, which is specialized to the sizes of the arguments if there are any. Tensors may be on any
        device. Nothing runs. The program is lowered for each of `platforms`. With `seed`, random numbers are drawn from
        an argument of that name. `name` is the program's name.

        Indices are not checked in an exported program: an index out of range is clamped.

        Raises:
            ValueError: sizes may vary or depend on data, there are draws without `seed`, or a platform is unknown.
            TypeError: an argument or result is neither a tensor nor a number, a string or None.
            NotImplementedError: the device or one of the platforms lacks an op; the message names its line.
            The errors of `torch.export.export`.
        """
        activate()
        wiring.start()
        from lazytpu.exporting.export import export

        return export(program, args, kwargs or {}, platforms, seed, name)

    def load(self, folder: str | Path) -> Loaded:
        """Load the program that `save` wrote into `folder`, as a function of "tpu" tensors: one op of the trace.

        Its files are checked against their digests, which detects damage but not malice: load only programs from people
        you trust. Raises FileNotFoundError when there is none, and ValueError for damaged files and for files of a
        later version.
        """
        activate()
        wiring.start()
        from lazytpu.exporting.loading import load

        return load(Path(folder))

    def __repr__(self) -> str:
        return "<lazytpu.export: a function of a program and example arguments; .load(folder)>"


export = Export()
