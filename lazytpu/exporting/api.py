"""`lazytpu.export` as a user sees it: a function, and `load` beside it."""

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
    """What `lazytpu.export` is."""

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
        """A program as StableHLO, with its weights beside it: `lazytpu.export(model, (x,)).save("model")`.

        `program` is a module, which `torch.export.export` captures with the example arguments `args` and `kwargs`, or
        an ExportedProgram; given arguments, its dynamic sizes become theirs. Tensors may be on any device. Nothing
        runs. The program is lowered for each of `platforms`. With `seed`, random numbers are drawn from an argument of
        that name. `name` is the program's own.

        Indices are not checked in an exported program: what is out of range is moved into it.

        Raises ValueError for sizes that may vary or depend on data, for random numbers without `seed`, and for an
        unknown platform; TypeError for arguments and results that are neither tensors nor numbers, strings or None;
        NotImplementedError for an op that the device or one of the platforms lacks, with its line; and what
        `torch.export.export` raises.
        """
        activate()
        wiring.start()
        from lazytpu.exporting.export import export

        return export(program, args, kwargs or {}, platforms, seed, name)

    def load(self, folder: str | Path) -> Loaded:
        """The program that `save` wrote into `folder`, as a function of "tpu" tensors: one op of the trace.

        Its files are checked against their digests, which finds damage and not malice: load only programs of people
        you trust. Raises FileNotFoundError when there is none, and ValueError for damaged files and for those of a
        later version.
        """
        activate()
        wiring.start()
        from lazytpu.exporting.loading import load

        return load(Path(folder))

    def __repr__(self) -> str:
        return "<lazytpu.export: a function of a program and example arguments; .load(folder)>"


export = Export()
