"""DeepSpeed as its documentation starts it: ``deepspeed zero.py STAGE [offload | files | narrow]``."""

import sys
import tempfile

import deepspeed
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(64, 256), nn.Linear(256, 64), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(x + self.down(torch.relu(self.up(x))))
        return y


def main() -> None:
    stage = int(sys.argv[1])
    zero = {"stage": abs(stage), "stage3_param_persistence_threshold": 0}
    if stage < 0:
        zero |= {"stage3_max_reuse_distance": 0, "stage3_max_live_parameters": 0}
    if sys.argv[2:] == ["offload"]:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    elif sys.argv[2:] == ["files"]:
        zero["offload_optimizer"] = {"device": "nvme", "nvme_path": tempfile.gettempdir()}
    elif sys.argv[2:] == ["narrow"]:  # ZeRO++
        zero |= {"zero_quantized_weights": True, "zero_quantized_gradients": True}
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": zero,
    }
    deepspeed.init_distributed()
    model = nn.Sequential(Block(), Block(), Block())
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for _ in range(8):
        inputs = torch.randn(8, 64, device=engine.device, dtype=torch.bfloat16)
        loss = engine(inputs).float().pow(2).mean()
        engine.backward(loss)
        engine.step()


main()
