"""Targets, and the figures of generations."""

from __future__ import annotations

import pytest

from lazytpu.passes.generations import GENERATIONS, generation_of
from lazytpu.passes.target import NAMES, Target
from lazytpu.settings import SETTINGS


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_a_target_and_a_setting(name: str) -> None:
    assert str(Target.parse(name)) == name
    assert SETTINGS["target"].parse(name, "LAZYTPU_TARGET") == name


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("CPU", Target("cpu")),
        ("tpu", Target("tpu")),
        ("v6e:2x2", Target("tpu", "v6e")),
        ("tpu7x:4x4x4", Target("tpu", "tpu7x")),
    ],
)
def test_names_and_topologies(text: str, target: Target) -> None:
    assert Target.parse(text) == target


@pytest.mark.parametrize(("platform", "generation"), [("npu", None), ("tpu", "v1"), ("cpu", "v6e")])
def test_unknown_targets_are_refused(platform: str, generation: str | None) -> None:
    with pytest.raises(ValueError, match="targets are cpu, gpu, tpu, v5e"):
        Target(platform, generation)


def test_targets_among_names() -> None:
    v6e = Target("tpu", "v6e")
    assert v6e.among(()) and v6e.among(["tpu"]) and v6e.among(["cpu", "v6e"])
    assert not v6e.among(["cpu"]) and not v6e.among(["v5e"]) and not Target("tpu").among(["v6e"])


@pytest.mark.parametrize(
    ("kind", "name"), [("TPU v6 lite", "v6e"), ("TPU v5 lite", "v5e"), ("TPU v5", "v5p"), ("TPU7x", "tpu7x")]
)
def test_kinds_of_devices(kind: str, name: str) -> None:
    assert generation_of(kind) == name


def test_other_kinds_of_devices() -> None:
    assert generation_of("TPU v4") is None and generation_of("cpu") is None


@pytest.mark.parametrize("name", GENERATIONS)
def test_clock_and_matrix_units_give_the_flops(name: str) -> None:
    """Per cycle, a core does the work of a whole number of matrix units."""
    facts = GENERATIONS[name]
    units = facts.flops / (facts.cores * facts.clock * 2 * facts.matrix_unit**2)
    assert units == pytest.approx(round(units), rel=0.01)


def test_figures_of_one_device() -> None:
    chip = GENERATIONS["tpu7x"]
    assert (2 * chip.device_flops, 2 * chip.device_hbm_bytes) == (chip.flops, chip.hbm_bytes)
    assert GENERATIONS["v6e"].device_hbm_bandwidth == GENERATIONS["v6e"].hbm_bandwidth
    assert Target("tpu", "v6e").facts is GENERATIONS["v6e"] and Target("tpu").facts is None


@pytest.mark.parametrize(
    ("bits", "tile"), [(64, (8, 128)), (32, (8, 128)), (16, (16, 128)), (8, (32, 128)), (1, (32, 128))]
)
def test_tiles(bits: int, tile: tuple[int, int]) -> None:
    assert GENERATIONS["v6e"].tile_of(bits) == tile
