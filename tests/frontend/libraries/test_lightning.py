"""Lightning: Trainer(accelerator="tpu") and Fabric on the device agree with the CPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from torch import nn

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    # Advice about workers, checkpoint folders and similar.
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory", "ignore:You defined a `validation_step`"),
]


class Module(lightning.LightningModule):
    """A classifier, optionally with one dropout layer."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(dropout), nn.GELU(), nn.Linear(16, 4))
        self.losses: list[torch.Tensor] = []
        self.devices: set[str] = set()

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        self.devices |= {x.device.type, self.device.type}
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.losses.append(loss.detach())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        x, y = batch
        self.log("validation", nn.functional.cross_entropy(self.net(x), y))

    def predict_step(self, batch: Any, index: int) -> torch.Tensor:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


def loader() -> torch.utils.data.DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(16, 8, generator=generator), torch.randint(0, 4, (16,), generator=generator)
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)


def trainer(folder: Path, epochs: int = 1, **options: Any) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(max_epochs=epochs, default_root_dir=folder, devices=1, **quiet, **options)


def test_fit_and_validate_agree_with_the_cpu(tmp_path: Path) -> None:
    def run(accelerator: str) -> tuple[list[float], float]:
        light, module = trainer(tmp_path / accelerator, accelerator=accelerator, gradient_clip_val=0.5), Module()
        light.fit(module, loader(), loader())
        assert module.devices == {accelerator}
        predictions = light.predict(module, loader())
        assert predictions is not None and predictions[0].shape == (4, 4)
        return [float(loss) for loss in module.losses], light.validate(module, loader(), verbose=False)[0]["validation"]

    got, expected = run("tpu"), run("cpu")
    torch.testing.assert_close(got[0], expected[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[1], expected[1], rtol=1e-4, atol=1e-5)


def test_auto_finds_the_device(tmp_path: Path) -> None:
    light = trainer(tmp_path, accelerator="auto")
    assert light.strategy.root_device == torch.device("tpu", 0)
    assert light.accelerator.name() == "tpu"
    with pytest.raises(ValueError, match="a process drives one device"):
        lightning.Trainer(accelerator="tpu", devices=2)


def test_ranks_of_a_launcher_train_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The strategy of torchrun's ranks."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for devices in (2, "auto", [0, 1]):
        strategy: Any = lightning.Trainer(accelerator="tpu", devices=devices, logger=False).strategy
        assert type(strategy).__name__ == "DDPStrategy"
        assert strategy.num_processes == 2
        assert strategy.determine_ddp_device_ids() is None


def test_training_resumes_from_a_checkpoint(tmp_path: Path) -> None:
    light = trainer(tmp_path, accelerator="tpu", enable_checkpointing=False)
    light.fit(Module(), loader())
    light.save_checkpoint(tmp_path / "half.ckpt")
    again, module = trainer(tmp_path, epochs=2, accelerator="tpu", enable_checkpointing=False), Module()
    again.fit(module, loader(), ckpt_path=tmp_path / "half.ckpt")
    assert again.global_step == 8
    uninterrupted = Module()
    trainer(tmp_path, epochs=2, accelerator="tpu", enable_checkpointing=False).fit(uninterrupted, loader())
    assert [float(loss) for loss in module.losses] == [float(loss) for loss in uninterrupted.losses[4:]]


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_mixed_precision(tmp_path: Path, precision: Any) -> None:
    light, module = trainer(tmp_path, accelerator="tpu", precision=precision, enable_checkpointing=False), Module()
    light.fit(module, loader())
    assert all(math.isfinite(float(loss)) for loss in module.losses)
    assert {p.dtype for p in module.parameters()} == {torch.float32}


def test_validation_before_the_first_step_keeps_the_random_state(tmp_path: Path) -> None:
    """Sanity checks of validation data restore the stream from which dropout draws."""
    losses = []
    for validation in (None, loader()):
        light, module = trainer(tmp_path, accelerator="tpu", enable_checkpointing=False), Module(dropout=0.5)
        torch.manual_seed(7)
        light.fit(module, loader(), validation)
        losses.append([float(loss) for loss in module.losses])
    assert losses[0] == losses[1]


def test_fabric() -> None:
    fabric = lightning.Fabric(accelerator="tpu", precision="bf16-mixed")
    assert fabric.device == torch.device("tpu", 0)
    model = Module().net
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
    for x, y in fabric.setup_dataloaders(loader()):
        assert x.device.type == "tpu"
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
    assert math.isfinite(loss.item())
