"""VGG19 or ResNet152 on pictures of 224 x 224: ``torchrun ... vision.py --model vgg19 --parallel ddp``."""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn

from workloads.tracing.recipes.vision_models import ResNet152, Vgg19
from workloads.tracing.recipes.wrapping import PARALLEL, start, wrap

MODELS: dict[str, type[Vgg19 | ResNet152]] = {"vgg19": Vgg19, "resnet152": ResNet152}


def main() -> None:
    """Train on random pictures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="resnet152")
    parser.add_argument("--parallel", choices=PARALLEL, default="ddp")
    parser.add_argument("--batch", type=int, default=32, help="pictures per rank")
    parser.add_argument("--amp", action="store_true", help="bf16 autocast")
    parser.add_argument("--train-steps", type=int, default=4)
    options = parser.parse_args()
    device = start()
    inner: Vgg19 | ResNet152 = MODELS[options.model]()
    inner.to(device)
    model = wrap(inner, inner.blocks, options.parallel)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    loss_of = nn.CrossEntropyLoss()
    for _ in range(options.train_steps):
        pictures = torch.randn(options.batch, 3, 224, 224).to(device, non_blocking=True)
        labels = torch.randint(0, 1000, (options.batch,)).to(device, non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=options.amp):
            loss = loss_of(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
