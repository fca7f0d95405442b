"""Products of groups that are no single kernel: a GPU build has one for bf16 alone.

Other dtypes fall back on a product for each group, whose bounds the host reads
(aten/src/ATen/native/GroupedMMUtils.h, ``_grouped_mm_fallback``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import tensor

from workloads.tracing.fake import host_values
from workloads.tracing.fake.known_values import rely_on, remember, values_of


def takes_apart(base: str, args: Any, kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """What runs operator ``base`` in pieces, where it is no kernel of its own; says where groups that nobody
    knows are taken to be even.
    """
    if base != "aten::_grouped_mm":
        return None
    offs = args[2] if len(args) > 2 else kwargs.get("offs")
    if offs is not None and values_of(offs) is None and host_values.ask is not None:
        host_values.ask("groups", offs, 0.0)
    return None if args[0].dtype == torch.bfloat16 else _product_of_each


def _product_of_each(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    _bias: Any = None,
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> torch.Tensor:
    """``offs``: where each group ends, in rows of ``a``, in columns of ``b`` or in what both share."""
    if offs is None:
        return torch.bmm(a, b)
    if a.dim() == 2 and b.dim() == 2:
        made = a.new_empty(len(offs), a.shape[0], b.shape[1], dtype=out_dtype)
        for group, part in enumerate(_parts(offs, a.shape[1])):
            torch.mm(a[:, part], b[part], out=made[group])
        return made
    made = a.new_empty(a.shape[-2], b.shape[-1], dtype=out_dtype)
    if b.dim() == 3:
        for group, part in enumerate(_parts(offs, a.shape[0])):
            torch.mm(a[part], b[group], out=made[part])
    else:
        for group, part in enumerate(_parts(offs, b.shape[1])):
            torch.mm(a[group], b[:, part], out=made[:, part])
    return made


def _parts(offs: torch.Tensor, length: int) -> list[slice]:
    """The groups as the host reads them; evenly spread over ``length`` where their bounds are not known."""
    groups = offs.numel()
    known = values_of(offs)
    rely_on(offs)
    ends = [length * (group + 1) // groups for group in range(groups)] if known is None else known.tolist()
    if known is None:
        with torch._C._DisableTorchDispatch():
            remember(offs, tensor(ends, device="cpu"))
    offs.cpu()  # the host reads them
    return [slice(*bounds) for bounds in zip([0, *ends[:-1]], ends, strict=True)]
