"""The origin of a program."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

import torch

import lazytpu
from lazytpu.inspection.about import About, about
from lazytpu.version import VERSION
from tests import zygote

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import torch

class Net(torch.nn.Linear):
    pass

net = Net(3, 2).to("tpu")
net(torch.ones(1, 3, device="tpu")).cpu()
"""


def test_a_dump_names_script_model_target_and_versions(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LAZYTPU_DUMP": "graphs", "LAZYTPU_TARGET": "v6e"}
    zygote.run(["train.py"], cwd=tmp_path, env=environment, check=True, timeout=120)
    facts = About.parse(max((tmp_path / "graphs").glob("*.about.txt")).read_text())
    assert (facts.script, facts.models, facts.target) == ("train.py", ("Net",), "v6e")
    assert facts.versions["lazytpu"] == VERSION and facts.versions["torch"] == metadata.version("torch")
    assert facts.folders == (str(tmp_path), str(tmp_path.parent)), "where its source files are"
    assert list(facts.versions) == ["lazytpu", "torch", "jax", "python"]


def test_written_fields_are_read_and_missing_ones_are_empty() -> None:
    for models in ((), ("Net",), ("Generator", "Discriminator")):
        facts = about(models, "cpu")
        assert About.parse(facts.text() + "\n") == facts
    assert About.parse("") == About("", (), "", {})


def test_only_the_programs_models_are_named_without_wrappers() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.scale * x

    wrapped, unused = torch.nn.Sequential(Net()).to("tpu"), torch.nn.Linear(3, 3).to("tpu")
    lazytpu.mark_step()
    kept = wrapped(torch.ones(3, device="tpu"))
    lazytpu.mark_step()
    facts = lazytpu.graphs()[-1].about
    assert facts is not None and facts.models == ("Net",) and kept.shape == unused.bias.shape
