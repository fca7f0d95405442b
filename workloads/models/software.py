"""Which kernels a build launches for a layer: attention, fusions, casts.  Presets choose; models obey."""

from __future__ import annotations

import re
from typing import Final, Literal

from pydantic import Field

from workloads.models.frozen import Frozen

#: Classes of attention kernels; the cost model knows each on the generations that it exists for.
AttentionKernels = Literal[
    "unfused", "eager", "flash", "flash1", "flash1_triton", "flash2", "flash3", "cudnn", "trtllm", "efficient"
]


#: Modules whose kernels are graphs where only some are.
_GRAPHED: Final = re.compile(r"\.(self_attention|mixer|norm)\b|_layernorm\b|\.mlp\.(router|shared_experts)\b")
#: A quarter of an hour: no host takes longer for a kernel or a layer.
_MOST_HOST_US: Final = 1e9
#: Whose scales products in fp8 have.
Fp8Recipe = Literal["delayed", "current", "rowwise", "blockwise", "mxfp8"]


class SoftwareSpec(Frozen):
    """Kernel choices of one framework build.

    ``attention``: "unfused" (products, mask and softmax apart), "eager" (so, of tensors that are copied
    first and with a softmax in fp32, as models in plain PyTorch have it) or the class of the fused kernel,
    as the cost model names it.  ``bias_activation_fusion``, ``bias_dropout_fusion``, ``norm_fusion``,
    ``rope_fusion``, ``swiglu_fusion``, ``softmax_fusion``: one kernel instead of one per elementary op;
    ``softmax_fusion`` "reductions": kernels that each end at a sum over rows (XLA).  ``softmax_fp32``:
    without fusion scores are cast for the softmax, and its probabilities back.
    ``rope_style``: how positions are rotated where no kernel does it at once: x cos + rotate_half(x) sin,
    pairs as complex numbers in fp32, or pairs in fp32 times matrices of 2 x 2.
    ``bias_in_product``: a linear layer's product adds its bias (addmm, Transformer Engine).
    ``grad_accumulation_fusion``: weight gradients are added to ``main_grad`` inside the GEMM.
    ``async_tp_reduce``: a tensor-parallel layer's input gradient is reduced beside its weight gradient
    (Megatron-LM since 2022), else behind it.  ``tp_overlap_sums``: how sums move beside products where
    tensor parallelism overlaps, see Note [Exchange beside products] of ``exchange.py``.
    ``batch_first``: activations are [batch, sequence, hidden], see Note [Slices of several sequences] of
    ``exchange.py``.
    ``gather_inputs_again``: backward gathers a column-parallel layer's input again under sequence parallelism
    (Megatron), else forward keeps it (PyTorch's DTensor).
    ``gradient_scaling``: a kernel divides gradients by the number of replicas before they are summed
    (Megatron, unless the collective averages).
    ``cross_entropy``: "fused" (one pass forward, one back), "jit" (Megatron's jit-fused steps), "in_place"
    (its steps without fusion, over one copy of the logits), "unfused" (PyTorch's) or "loss_parallel"
    (PyTorch's, step by step where ranks have columns of the logits: torch.distributed.tensor.parallel).
    ``autocast``: parameters and residual sums stay in fp32, see ``autocast.py``;  ``channels_last``: images
    lie pixel by pixel, see Note [Order of channels] of ``images.py``.  ``narrow_norms``: norms over channels
    cast before they compute, not behind (timm's fast_norm).  ``norm_activation_fusion``: one kernel for a
    batch norm, the residual sum and the activation behind it.
    ``lookup_kernels``: one for all tables of a rank, one each, or what TensorFlow's feature columns make of
    each ("columns"); ``table_kernels``: FBGEMM's, HugeCTR's, or such as share lookups out evenly;
    ``table_update``, ``keys_ahead``, ``keys_sorted``: see Note [Lookups] of ``kinds/tables.py``;
    ``embedding_output``: the dtype of sums of rows, which travel; ``one_shot_sms``: gradients are added up by
    a kernel of so many SMs (0: by NCCL), see ``simcore/collectives/kinds/all_reduce.py``.
    ``key_dtype``: that of keys, of which each GPU gets its own samples' from the host, or all
    (``keys_whole``).  ``fused_interaction``: one kernel for products of features, or for a cross.
    ``weight_gradients_late``: they are put off, see ``workloads/parallel/put_off.py``.
    ``product_activation_fusion``: a layer's product applies its activation (cuBLASLt).
    ``metric_losses``: losses of the same logits that metrics compute behind each backward (Composer).
    ``fused_qkv``, ``fused_gate_up``: one product for queries, keys and values, and for both up-projections
    of a gated block.  ``qkv_grad_copy``: their gradients are copied side by side before its backward, and
    once more into the order of tokens where they were stacked ("turned", as timm reshapes them).
    ``repeat_keys``: keys and values are copied to all heads that share them before attention.
    ``compiled``: torch.compile of whole blocks; the fusions above say which kernels it joins in them, and
    sums of gradients are joined, too.
    ``optimizer_kernels``: the optimizer in one kernel, pass by pass over all tensors (PyTorch unless told),
    or pass by pass over each tensor ("loop", PyTorch before 2.0).
    ``fp8_recipe``: scales from the history ("delayed"), from the tensor itself ("current"), from its rows
    ("rowwise"), or from blocks of it ("blockwise", "mxfp8").  ``fp8_weight_cast``: weights are cast "every"
    microbatch, at the "first" one, or "never" (kept in fp8).
    ``fp8_transposes``: one pass writes a tensor and its transpose in fp8, or the transposes that gradients
    read are made by passes of their own when they are wanted (from what was kept in fp8), of weights too.
    ``fp8_beside``: what activations and weights are in where products are in 8 or 4 bits.
    ``fp8_attention``: where products are in fp8, those of fused attention are, too, of queries, keys, values
    and gradients that are cast before (Transformer Engine's fp8_dot_product_attention).  ``fp8_head``: so are
    those of the output layer (Megatron-Core's fp8_output_proj).
    ``fp8_kept_activations``: what SwiGLU reads is kept in fp8 ("gate", Megatron-Core's
    activation_func_fp8_input_store), or that and attention's output in 12 bits (True), by casts there and
    back (arXiv 2412.19437, section 3.3.3).  ``fp8_weight_transposes``: beside each weight in fp8 its
    transpose stays (Transformer Engine, unless disable_parameter_transpose_cache says otherwise).
    ``recompute_early_stop``: recomputation ends at the last tensor that backward asks for (PyTorch's
    non-reentrant checkpoint); else it repeats the whole layer (Megatron).
    ``recompute_frees_outputs``: what the next product reads of a module that runs again is not kept
    (Megatron-Core since April 2025, of the modules in ``recompute.py``).
    ``moe_weighted_early``: rows are weighted before the experts' last product, whose output need not be kept
    (Megatron-Core since April 2025), by the kernel of SwiGLU where it is fused, and by that of squared ReLU
    with ``squared_relu_fusion`` (megatron/core/fusions/fused_weighted_squared_relu.py).
    ``moe_weights_fp32``: rows that experts return are cast to fp32 for their weights, and kept so.
    ``vocab_multiple``: frameworks pad the vocabulary to a multiple of this (times tp for Megatron).
    ``moe_dispatcher``: how tokens reach their experts, see Note [Dispatch] of ``dispatch.py``.
    ``moe_permute_fusion``: one kernel sorts tokens by expert, else an index and a weighting.
    ``moe_router_fusion``: scores, best experts and balancing loss in three kernels, else step by step;
    ``moe_router_fp32``: the router's product is in fp32.  ``moe_grouped_gemm``: products of all experts at
    once, else a kernel for each; ``moe_launch_each``: at once, but each launched for itself on one of several
    streams (Transformer Engine's cuBLAS).  ``moe_fp8_padding``: copies pad each expert's rows for fp8.
    ``moe_fused_mlp``: the product of all experts gates and casts what it writes, forward and backward
    (Transformer Engine's op fuser: NVTE_CUTEDSL_FUSED_GROUPED_MLP), in fp8 and 4 bits.
    ``moe_exchange_sms``: SMs that "flex" exchanges hold, see Note [Routed exchange] of
    ``simcore/collectives/routed.py`` (0: planned as NCCL's all_to_all), and ``moe_exchange_kernels``
    whose they are.  ``moe_dispatch_fp8``: tokens, and
    gradients on the way back to experts, are cast before they are sent (arXiv 2412.19437, section 3.3.3).
    ``moe_exchange_domain``: GPUs that NVLink joins; a "flex" exchange sends a token to each such domain once.
    ``product_sms_left``: SMs that no matrix product takes, as exchanges have them.
    ``moe_host_us``: what the host does beside launches, forward or backward, for the experts of a layer
    (router, dispatcher, modules in Python); half of it where capacities make all sizes known.
    ``moe_clamp_apart``: what is gated is cut off by kernels before the fused one, and the host waits there.
    ``global_buffer``: one buffer for all inputs that tensor-parallel layers gather, and for scores where no
    kernel fuses them, as large as the largest and never given back (Megatron's own layers).
    ``allocator``: settings of PyTorch's caching allocator, as ``PYTORCH_ALLOC_CONF`` has them;
    ``planned_memory``: there is none, a compiler lays out all that a step needs (XLA).
    ``input_us_per_sample``: what the host does for a sample before its batch can be looked up.
    ``host_us_per_kernel``: what the host does for a kernel beside the launch call (Python, autograd,
    dispatcher): about 30 in eager Megatron-DeepSpeed, 0 where nothing is known.  ``cuda_graphs``: the kernels
    between two collectives are launched as one graph, and no host waits for what it would only learn then;
    of "modules" only attention, norms, routers and shared experts are (Megatron-Core's cuda_graph_scope).
    ``transformer_engine``: layers are Transformer Engine's; ``deterministic``: kernels that give the same
    bits each time.  ``workspace_bytes``: what libraries keep of the allocator's memory for products.
    ``lazy_loading``: a GPU loads kernels when they are first launched (CUDA since 11.7), else all there are.
    """

    name: str = "default"
    attention: AttentionKernels = "flash2"
    bias_activation_fusion: bool = True
    bias_dropout_fusion: bool = True
    bias_in_product: bool = False
    softmax_fusion: bool | Literal["reductions"] = True
    softmax_fp32: bool = False
    norm_fusion: bool = True
    rope_fusion: bool = True
    rope_style: Literal["halves", "complex", "matrices"] = "halves"
    swiglu_fusion: bool = True
    grad_accumulation_fusion: bool = True
    async_tp_reduce: bool = True
    tp_overlap_sums: Literal["splits", "copies"] = "splits"
    batch_first: bool = False
    gather_inputs_again: bool = True
    gradient_scaling: bool = True
    cross_entropy: Literal["fused", "jit", "in_place", "unfused", "loss_parallel"] = "jit"
    autocast: bool = False
    channels_last: bool = True
    narrow_norms: bool = False
    norm_activation_fusion: bool = False
    lookup_kernels: Literal["grouped", "each", "columns"] = "grouped"
    table_update: Literal["fused", "sorted", "atomic"] = "fused"
    table_kernels: Literal["fbgemm", "hugectr", "even"] = "fbgemm"
    one_shot_sms: int = Field(default=0, ge=0, le=128)
    embedding_output: Literal["float32", "float16", "bfloat16", "int8"] = "float32"
    key_dtype: Literal["int64", "int32"] = "int64"
    keys_ahead: bool = False
    keys_sorted: Literal["forward", "backward"] = "backward"
    weight_gradients_late: bool = False
    keys_whole: bool = False
    fused_interaction: bool = False
    product_activation_fusion: bool = False
    metric_losses: int = Field(default=0, ge=0, le=64)
    logits_fp32: bool = True
    fused_qkv: bool = True
    fused_gate_up: bool = True
    repeat_keys: bool = False
    compiled: bool = False
    optimizer_kernels: Literal["fused", "foreach", "loop"] = "fused"
    qkv_grad_copy: bool | Literal["turned"] = True
    recompute_early_stop: bool = False
    recompute_frees_outputs: bool = False
    fp8_recipe: Fp8Recipe = "delayed"
    fp8_transposes: Literal["at_cast", "at_use"] = "at_cast"
    fp8_beside: Literal["bf16", "fp16", "fp32"] = "bf16"
    fp8_attention: bool = False
    fp8_head: bool = False
    fp8_kept_activations: bool | Literal["gate"] = False
    fp8_weight_transposes: bool = True
    fp8_weight_cast: Literal["every", "first", "never"] = "first"
    vocab_multiple: int = Field(default=128, ge=1)
    vocab_multiple_times_tp: bool = True
    moe_permute_fusion: bool = True
    moe_dispatcher: Literal["alltoall", "allgather", "flex"] = "alltoall"
    moe_router_fusion: bool = False
    moe_router_fp32: bool = True
    moe_grouped_gemm: bool = True
    moe_weighted_early: bool = False
    moe_weights_fp32: bool = False
    squared_relu_fusion: bool = False
    moe_launch_each: bool = False
    moe_fp8_padding: bool = False
    moe_fused_mlp: bool = False
    moe_clamp_apart: bool = False
    moe_exchange_sms: int = Field(default=0, ge=0)
    moe_exchange_kernels: Literal["deepep", "hybridep"] = "deepep"
    moe_dispatch_fp8: bool = False
    moe_exchange_domain: int = Field(default=8, ge=1)
    product_sms_left: int = Field(default=0, ge=0)
    moe_host_us: float = Field(default=0.0, ge=0.0, le=_MOST_HOST_US)
    global_buffer: bool = False
    allocator: str = Field(default="", max_length=1000)
    planned_memory: bool = False
    input_us_per_sample: float = Field(default=0.0, ge=0.0, le=_MOST_HOST_US)
    host_us_per_kernel: float = Field(default=0.0, ge=0.0, le=_MOST_HOST_US)
    cuda_graphs: bool | Literal["modules"] = False
    transformer_engine: bool = False
    deterministic: bool = False
    workspace_bytes: int = Field(default=0, ge=0, le=1 << 40)
    lazy_loading: bool = True

    def in_graph(self, module: str) -> bool:
        """Whether kernels of that module are launched as part of a CUDA graph."""
        return self.cuda_graphs is True or (self.cuda_graphs == "modules" and bool(_GRAPHED.search(module)))
