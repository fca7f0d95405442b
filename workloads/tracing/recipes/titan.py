"""torchtitan's own trainer, with its options: ``torchrun ... titan.py --module llama3 --config llama3_8b``.

Data, tokenizer, checkpoints, validation and compilation are left out; what else is stood in for says
:mod:`workloads.tracing.recipes.titan_shims`.
"""

from __future__ import annotations

import sys

from torchtitan.config import ConfigManager

from workloads.tracing.recipes import titan_shims


def main() -> None:
    """Train as ``torchtitan/train.py`` does."""
    titan_shims.install()
    # A captured graph would hide its kernels, and torchtitan refuses it beside a pipeline when it reads this.
    config = ConfigManager().parse_args([*sys.argv[1:], "--training.disable_cuda_graphs"])
    titan_shims.leave_out(config)
    config.build().train()


if __name__ == "__main__":
    main()
