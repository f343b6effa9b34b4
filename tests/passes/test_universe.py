"""The dialect and the passes in xDSL's own tools, under names that do not clash with xDSL's."""

from __future__ import annotations

from xdsl.transforms import get_all_passes
from xdsl.universe import XDSL_UNIVERSE
from xdsl.xdsl_opt_main import xDSLOptMain

from lazytpu.ir.dialect import LAZYTPU
from lazytpu.ir.text import print_module
from lazytpu.passes.registry import BUILT_IN
from lazytpu.passes.universe import UNIVERSE
from tests.ir.samples import module_of


class Opt(xDSLOptMain):
    """xdsl-opt as if lazytpu were installed, whether or not this checkout is."""

    def register_all_dialects(self):
        for name, factory in (XDSL_UNIVERSE.all_dialects | UNIVERSE.all_dialects).items():
            self.ctx.register_dialect(name, factory)

    def register_all_passes(self):
        for name, factory in (XDSL_UNIVERSE.all_passes | UNIVERSE.all_passes).items():
            self.register_pass(name, factory)


def test_names():
    assert UNIVERSE.all_dialects["lazytpu"]() is LAZYTPU
    assert UNIVERSE.all_passes.keys() == {f"lazytpu-{name}" for name in BUILT_IN}
    assert not UNIVERSE.all_passes.keys() & get_all_passes().keys()
    assert not UNIVERSE.all_dialects.keys() & XDSL_UNIVERSE.all_dialects.keys()


def test_passes_have_their_offered_names():
    for name, factory in UNIVERSE.all_passes.items():
        offered = factory()
        assert offered.name == name
        assert issubclass(offered, BUILT_IN[name.removeprefix("lazytpu-")].load())


def test_xdsl_opt_reads_the_dialect_and_runs_a_pass(tmp_path, capsys):
    path = tmp_path / "step.mlir"
    path.write_text(print_module(module_of(lambda b, x: b.add(b.exp(x), x), "f32[2]")))
    Opt(args=[str(path), "-p", "lazytpu-dce"]).run()
    assert capsys.readouterr().out.split() == print_module(module_of(lambda b, x: None, "f32[2]")).split()
