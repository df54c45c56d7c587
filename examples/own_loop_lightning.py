# %% [markdown]
# # Variable projection in a Lightning module
#
# `gnvpro.ReducedLoss` is the criterion of `training_step`. Lightning's checkpoints store its state, `validation_step`
# uses the running head in the model, and the end of training eliminates the head over all samples. Needs the extra
# `lightning`.

# %%
from __future__ import annotations

import logging
import warnings
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gnvpro

torch.set_num_threads(1)
warnings.filterwarnings("ignore")  # Lightning's advice on workers of loaders
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)


# %% A module
class Classifier(pl.LightningModule):
    def __init__(self, epochs: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.epochs = epochs
        self.network = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 5))
        self.criterion = gnvpro.ReducedLoss(self.network, loss="multinomial", head_penalty=1e-4)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.criterion(*batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("accuracy", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.criterion.parameters(), lr=1e-2)  # everything but the head
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["criterion"] = self.criterion.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.criterion.load_state_dict(checkpoint["criterion"])

    def on_train_end(self) -> None:
        self.criterion.refit(self.trainer.train_dataloader)  # type: ignore[arg-type]


# %% Six epochs in one run, and three plus three
points = torch.rand(3000, 2, generator=torch.Generator().manual_seed(0)) * 4 - 2
labels = (points.square().sum(1) * 2).floor().long().clamp(max=4)  # rings
loader = DataLoader(TensorDataset(points[:2000], labels[:2000]), batch_size=100)
held_out = DataLoader(TensorDataset(points[2000:], labels[2000:]), batch_size=500)
folder = "runs/own_loop_lightning"
quiet: dict[str, Any] = {
    "accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip


def trained(max_epochs: int, model: Classifier, resume: str | None = None) -> pl.Trainer:
    keep = pl.callbacks.ModelCheckpoint(
        dirpath=folder, filename=f"{max_epochs}_epochs", enable_version_counter=False, save_on_train_epoch_end=True
    )
    trainer = pl.Trainer(max_epochs=max_epochs, callbacks=[keep], **quiet)
    trainer.fit(model, loader, held_out, ckpt_path=resume)
    return trainer


at_once, first, second = Classifier(6), Classifier(6), Classifier(6)
trained(6, at_once)
trained(3, first)
trainer = trained(6, second, resume=f"{folder}/3_epochs.ckpt")
for p, q in zip(at_once.parameters(), second.parameters(), strict=True):
    assert torch.equal(p, q)  # the checkpoint holds everything

# %%
(scores,) = trainer.validate(second, held_out, verbose=False)
print(f"accuracy with the head of all samples: {scores['accuracy']:.1%}")
assert scores["accuracy"] > 0.85
