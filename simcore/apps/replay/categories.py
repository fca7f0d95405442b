"""What kind of work a recorded GPU op does, by its name: one table of rules."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from simcore.graph.ops import IntArray
from simcore.units import s_from_ps
from workloads.imports.recorded import RecordedOps

COMMUNICATION, MEMCPY, MEMSET, OTHER = "communication", "memcpy", "memset", "other"

#: First match wins, names in lower case.  Sources of the names: cuBLAS, cuDNN and CUTLASS kernels of sm70 to
#: sm100, rocBLAS/hipBLASLt (Cijk), Composable Kernel, PyTorch, Triton and Inductor, FBGEMM, apex and
#: Transformer Engine, vLLM and FlashInfer, XLA's fusions; the framework's own names in traces exported by
#: this project.
RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (category, re.compile(pattern))
    for category, pattern in (
        (
            "attention",
            r"flash|fmha|attention|_attn|attn_|mem_?eff|sdpa|aiter.*fwd|paged_|batchprefill|batchdecode|mla_",
        ),
        ("optimizer", r"adam|lamb(?!da)|sgd|adagrad(?!_unweighted|_weighted)|optimizer|multi_tensor_l2norm"),
        (
            "embedding",
            r"embedding|pooled_embs|indexselect|index_select|permute_indices|linearize_index"
            r"|bounds_check_indices|gatherkernel|vectorized_gather",
        ),
        (
            "gemm/conv",
            r"(?<!fb)gemm|cijk_|nvjet|cutlass|scudnn|hcudnn|wgrad|dgrad|fprop|winograd|conv(?!ert)|xmma|matmul|splitkreduce"
            r"|gemv|_mm_|^mm_|::(?:add)?mm\b|::linear\b|bmm|fft2d|dot_kernel",
        ),
        (
            "reduce/norm",
            r"reduce|norm(?!al)|softmax|\bbn_|mean|cumsum|scan|argmax|topk|pool|nll_loss|cross_entropy|welford"
            r"|gammabeta",
        ),
        (
            "elementwise/copy",
            r"elementwise|pointwise|\bloop_\w*fusion|copy|\bcat"
            r"|nchwtonhwc|nhwctonchw|transpose|dropout|fill|triton_poi|silu"
            r"|swiglu|geglu|gelu|relu|rotary|rope|_add_|::(?:add|sub|mul|div)_?\b|bias|multi_tensor_(?:apply|scale)"
            r"|index|gather|scatter|where|cast|permute|triu"
            r"|tril|arange|memcpy|quant",
        ),
        ("embedding", r"adagrad"),
        ("gemm/conv", r"custom-call"),  # XLA's calls of libraries, cuBLAS first of all
    )
)

CATEGORIES = tuple(
    dict.fromkeys((*(category for category, _ in RULES), COMMUNICATION, MEMCPY, MEMSET, OTHER))
)


def category(name: str) -> str:
    """The category of a kernel by its name; "other" where no rule knows it."""
    text = name.lower()
    return next((found for found, pattern in RULES if pattern.search(text)), OTHER)


def categories(ops: RecordedOps) -> IntArray:
    """Index into :data:`CATEGORIES` of each op: communication and copies by what the recording says."""
    by_name = [CATEGORIES.index(_of_non_kernel(name) or category(name)) for name in ops.name.values]
    found = np.array([*by_name, 0], dtype=np.int64)[ops.name.codes]
    memset = np.array([name.lower().startswith("memset") for name in (*ops.name.values, "")], dtype=np.bool_)
    copies = np.where(memset[ops.name.codes], CATEGORIES.index(MEMSET), CATEGORIES.index(MEMCPY))
    found = np.where(ops.is_kernel, found, copies)
    return np.where(ops.is_comm, CATEGORIES.index(COMMUNICATION), found)


def _of_non_kernel(name: str) -> str:
    text = name.lower()
    return MEMCPY if text.startswith("memcpy ") else MEMSET if text.startswith("memset") else ""


def category_times(
    kinds: IntArray, members: IntArray, start_ps: IntArray, end_ps: IntArray
) -> dict[str, float]:
    """Time by category of ``members``, seconds, longest first; ``kinds`` as :func:`categories` gives them."""
    lengths: npt.NDArray[np.float64] = (end_ps[members] - start_ps[members]).astype(np.float64)
    totals = np.bincount(kinds[members], weights=lengths, minlength=len(CATEGORIES))
    shown = [(name, s_from_ps(float(time))) for name, time in zip(CATEGORIES, totals, strict=True) if time]
    return dict(sorted(shown, key=lambda item: (-item[1], item[0])))
