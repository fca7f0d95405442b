"""``pynvml``, which programs ask about GPUs beside torch, answers for the GPUs that are traced."""

from __future__ import annotations

import types
from typing import Any

from workloads.tracing.fake import visible_devices
from workloads.tracing.fake.cuda import DEVICE_PROPERTIES


def install(pynvml: Any) -> None:
    """Answer where the module would ask a driver; a handle is the number of its GPU.

    What changes from moment to moment is that of a busy GPU, as ``torch.cuda`` tells it.
    """
    total = DEVICE_PROPERTIES["total_memory"]
    for name, answer in {
        **dict.fromkeys(("nvmlInit", "nvmlInitWithFlags", "nvmlShutdown"), lambda *_: None),
        "nvmlDeviceGetCount": visible_devices.device_count,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda _: DEVICE_PROPERTIES["name"],
        "nvmlDeviceGetMemoryInfo": lambda *_: types.SimpleNamespace(total=total, free=total, used=0),
        "nvmlDeviceGetUtilizationRates": lambda _: types.SimpleNamespace(gpu=100, memory=100),
        "nvmlDeviceGetTemperature": lambda *_: 60,
        "nvmlDeviceGetPowerUsage": lambda _: 700_000,
        "nvmlDeviceGetCpuAffinity": lambda _, words: [2**64 - 1] * words,
    }.items():
        setattr(pynvml, name, answer)
