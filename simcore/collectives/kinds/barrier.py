"""barrier: nobody goes on before all have come; torch.distributed's is an all_reduce of one word."""

from __future__ import annotations

from dataclasses import replace

from simcore.collectives.kinds.all_reduce import ALL_REDUCE
from simcore.collectives.kinds.collective import register

BARRIER = register(replace(ALL_REDUCE, name="barrier", reduces=False, carrier=ALL_REDUCE, fixed_bytes=4))
