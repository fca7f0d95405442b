"""VGG19 (Simonyan and Zisserman, arXiv 1409.1556, table 1 E) and ResNet152 (He et al., arXiv 1512.03385)."""

from __future__ import annotations

import torch
from torch import nn

#: Output channels of VGG19's convolutions; 0 halves the picture.
_VGG19 = (64, 64, 0, 128, 128, 0, *(256,) * 4, 0, *(512,) * 4, 0, *(512,) * 4, 0)
#: Blocks of ResNet152's four stages.
_RESNET152 = (3, 8, 36, 3)
_EXPANSION = 4


class Vgg19(nn.Module):
    """16 convolutions and 3 linear layers; 143,667,240 parameters with 1000 classes."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inside = 3
        for channels in _VGG19:
            if channels == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(inside, channels, 3, padding=1), nn.ReLU(inplace=True)]
            inside = channels
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            *(nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout()),
            *(nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout()),
            nn.Linear(4096, classes),
        )

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Logits of pictures (batch, 3, 224, 224)."""
        logits: torch.Tensor = self.classifier(self.features(pictures).flatten(1))
        return logits

    @property
    def blocks(self) -> list[nn.Module]:
        """Units of sharding."""
        return [self.features, self.classifier]


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions beside a shortcut; the 3x3 one has the stride."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = width * _EXPANSION
        self.residual = nn.Sequential(
            *(nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, outside, 1, bias=False), nn.BatchNorm2d(outside)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """(batch, inside, h, w) to (batch, 4 width, h / stride, w / stride)."""
        result: torch.Tensor = self.activation(self.residual(pictures) + self.shortcut(pictures))
        return result


class ResNet152(nn.Module):
    """50 bottleneck blocks; 60,192,808 parameters with 1000 classes."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
            *(nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)),
        )
        stages, inside = [], 64
        for stage, count in enumerate(_RESNET152):
            width = 64 << stage
            for index in range(count):
                stages.append(Bottleneck(inside, width, 2 if stage and not index else 1))
                inside = width * _EXPANSION
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Logits of pictures (batch, 3, 224, 224)."""
        logits: torch.Tensor = self.head(self.stages(self.stem(pictures)))
        return logits

    @property
    def blocks(self) -> list[nn.Module]:
        """Units of sharding."""
        return list(self.stages)
