"""Megatron-LM's flags of a step: batch, precision, sharding, what overlaps, which kernels."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from workloads.jobs.complete import Description
from workloads.jobs.launch.megatron.kept import KEPT
from workloads.jobs.launch.options import Option, Said, Settings, Words, number, switch

_SHARDED: Final = {"no_shard": "ddp", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "zero3"}
_WIDTHS: Final = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
_DEGREES: Final = (
    "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size",
)  # fmt: skip


def _read_precision(said: Said) -> Settings:
    if said.has("--bf16") and said.has("--fp16"):
        raise said.wrong("--fp16", "contradicts --bf16")
    base = "bf16" if said.has("--bf16") else "fp16" if said.has("--fp16") else "fp32"
    narrow = said.meant("--fp8-format", {"hybrid": True, "e4m3": True}, default=False)
    found: dict[str, Any] = {"training.precision": "fp8" if narrow else base}
    if said.meant("--fp4-format", {"e2m1": True}, default=False):
        found["training.precision"] = "nvfp4"
        said.meant("--fp4-recipe", {"nvfp4": True}, default=True)
    if found["training.precision"] != base != "bf16":
        found["software.fp8_beside"] = base
    found["training.param_gather_dtype"] = "fp8" if narrow and said.has("--fp8-param-gather") else base
    in_fp32 = said.has("--accumulate-allreduce-grads-in-fp32")
    if base == "bf16":  # gradients are kept in what they are reduced in
        of_sums = "bf16" if said.has("--grad-reduce-in-bf16") else "fp32"
    else:
        of_sums = "fp32" if in_fp32 else base
    found |= {"training.grad_dtype": of_sums, "training.grad_reduce_dtype": of_sums}
    recipes = {"delayed": "delayed", "tensorwise": "current", "blockwise": "blockwise", "mxfp8": "mxfp8"}
    if narrow:
        found["software.fp8_recipe"] = said.meant("--fp8-recipe", recipes, "delayed")
    return found


def _write_precision(job: Description) -> Words:
    training = job.training
    found: dict[str, tuple[str, ...]] = {}
    if training.precision == "fp8":
        recipe = {"current": "tensorwise"}.get(job.software.fp8_recipe, job.software.fp8_recipe)
        beside = job.software.fp8_beside
        found = {f"--{beside}": ()} if beside != "fp32" else {}
        found |= {"--fp8-format": ("hybrid",), "--fp8-recipe": (recipe,)}
        if training.param_gather_dtype == "fp8":
            found["--fp8-param-gather"] = ()
    elif training.precision == "nvfp4":
        found = {"--bf16": (), "--fp4-format": ("e2m1",), "--fp4-recipe": ("nvfp4",)}
    elif training.precision in ("bf16", "fp16"):
        found[f"--{training.precision}"] = ()
    if training.grad_reduce_dtype == "bf16":
        found["--grad-reduce-in-bf16"] = ()
    elif training.precision == "fp16" and training.grad_reduce_dtype == "fp32":
        found["--accumulate-allreduce-grads-in-fp32"] = ()
    return found


#: Flags of batches that grow.
_RAMPS: Final = ("--rampup-batch-size", "--step-batch-size-schedule")


def _read_batch(said: Said) -> Settings:
    micro = said.needed("--micro-batch-size")
    found: dict[str, Any] = {"training.micro_batch": micro}
    batch = said.number("--global-batch-size", None)
    if batch is None:
        replicas = said.num_gpus // max(1, math.prod(said.count(name) for name in _DEGREES))
        batch = micro * max(1, replicas)
        said.notes.append(f"no --global-batch-size: {batch}, a micro batch on each of {replicas} replicas")
    for name in _RAMPS:
        if said.has(name):
            said.notes.append(f"{name}: a step of the whole batch is described")
    return {**found, "training.global_batch": batch}


def _write_batch(job: Description) -> Words:
    training = job.training
    return {
        "--micro-batch-size": (str(training.micro_batch),),
        "--global-batch-size": (str(training.global_batch),),
    }


def _read_sharding(said: Said) -> Settings:
    if said.has("--zero-stage"):  # Megatron-DeepSpeed
        stages = {"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"}
        return {"training.sharding": said.meant("--zero-stage", stages, "ddp")}
    if said.has("--use-torch-fsdp2"):
        kept = said.has("--torch-fsdp2-no-reshard-after-forward")
        return {"training.sharding": "fsdp2", "training.reshard_after_forward": not kept}
    if said.has("--use-megatron-fsdp") or said.has("--use-custom-fsdp"):
        kind = said.meant("--data-parallel-sharding-strategy", _SHARDED, "zero3")
        return {"training.sharding": kind}
    found: dict[str, Any] = {
        "training.sharding": "zero1" if said.has("--use-distributed-optimizer") else "ddp"
    }
    copies = said.number("--num-distributed-optimizer-instances", 1)
    if copies > 1:
        inner = math.prod(said.count(name) for name in _DEGREES)
        dp = said.num_gpus // max(1, inner)
        if dp % copies:
            raise said.wrong("--num-distributed-optimizer-instances", f"must divide {dp} replicas")
        found["parallel.dp_shard"] = dp // copies
    return found


def _write_sharding(job: Description) -> Words:
    kind, p = job.training.sharding, job.parallel
    if kind == "fsdp2":
        kept = {} if job.training.reshard_after_forward else {"--torch-fsdp2-no-reshard-after-forward": ()}
        return {"--use-torch-fsdp2": (), "--no-gradient-accumulation-fusion": (), **kept}
    if kind in ("zero2", "zero3", "fsdp1"):
        word = "optim_grads" if kind == "zero2" else "optim_grads_params"
        found: Words = {"--use-megatron-fsdp": (), "--data-parallel-sharding-strategy": (word,)}
        return {**found, "--ckpt-format": ("fsdp_dtensor",)}
    found = {"--use-distributed-optimizer": ()} if kind == "zero1" else {}
    if kind == "zero1" and p.dp_shard and p.dp_shard != p.dp:
        found = {**found, "--num-distributed-optimizer-instances": (str(p.dp // p.dp_shard),)}
    return found


def _read_states(said: Said) -> Settings:
    """The optimizer; states narrower than fp32 where it is told so."""
    kinds = {"adam": "adam", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}
    kind = said.meant("--optimizer", kinds, "adam")
    found: dict[str, Any] = {"training.optimizer": kind}
    if said.has("--use-precision-aware-optimizer"):
        widths = [
            said.meant(name, _WIDTHS, 4)
            for name in ("--main-params-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype")
        ]
        found["training.optimizer_bytes_per_parameter"] = sum(widths)
    if said.has("--optimizer-cpu-offload"):
        share = said.text("--optimizer-offload-fraction", "1.0")
        if not re.fullmatch(r"0?\.\d{1,6}|[01](\.0{0,6})?", share):
            raise said.wrong("--optimizer-offload-fraction", "must be a share from 0 to 1")
        found["training.optimizer_offload"] = float(share)
    return found


def _write_states(job: Description) -> Words:
    training = job.training
    usual = training.optimizer == "adam"
    found: dict[str, tuple[str, ...]] = {} if usual else {"--optimizer": (training.optimizer,)}
    if training.optimizer == "adam" and training.optimizer_bytes_per_parameter == 8:
        narrow = {"--exp-avg-dtype": ("bf16",), "--exp-avg-sq-dtype": ("bf16",)}
        found = {**found, "--use-precision-aware-optimizer": (), **narrow}
    if training.optimizer_offload:
        share = {"--optimizer-offload-fraction": (f"{training.optimizer_offload:g}",)}
        found = {**found, "--optimizer-cpu-offload": (), **share}
    return found


def _read_clipping(said: Said) -> Settings:
    return {"training.clip_gradients": said.real("--clip-grad", 1.0) != 0}


def _read_deferred(said: Said) -> Settings:
    if not said.has("--defer-embedding-wgrad-compute"):
        return {}
    return {"training.deferred_head_gradients": said.number("--wgrad-deferral-limit", 0)}


def _write_deferred(job: Description) -> Words:
    limit = job.training.deferred_head_gradients
    found: dict[str, tuple[str, ...]] = {"--defer-embedding-wgrad-compute": ()} if limit >= 0 else {}
    return {**found, "--wgrad-deferral-limit": (str(limit),)} if limit > 0 else found


def _read_messages(said: Said) -> Settings:
    return {"training.overlap_p2p": False} if said.has("--no-overlap-p2p-communication") else {}


def _write_messages(job: Description) -> Words:
    waits = job.parallel.virtual_stages > 1 and not job.training.overlap_p2p
    return {"--no-overlap-p2p-communication": ()} if waits else {}


def _read_attention(said: Said) -> Settings:
    kinds = {"fused": "cudnn", "flash": "flash2", "unfused": "unfused", "local": "unfused", "auto": ""}
    found = said.meant("--attention-backend", kinds, "")
    if not found and said.has("--use-flash-attn"):
        found = "flash2"
    if not found and said.text("--transformer-impl", "transformer_engine") == "local":
        found = "unfused"
    own = said.text("--transformer-impl", "transformer_engine")
    engine = {"software.transformer_engine": own != "local"}
    return {**engine, "software.attention": found} if found else engine


def _write_attention(job: Description) -> Words:
    kind = job.software.attention
    word = {"cudnn": "fused", "unfused": "unfused"}.get(kind, "flash" if kind.startswith("flash") else "auto")
    return {"--attention-backend": (word,)}


def _read_loss(said: Said) -> Settings:
    if not said.has("--cross-entropy-loss-fusion"):
        return {"software.cross_entropy": "in_place"}
    kinds = {"native": "jit", "te": "fused"}
    return {"software.cross_entropy": said.meant("--cross-entropy-fusion-impl", kinds, "jit")}


def _write_loss(job: Description) -> Words:
    kind = job.software.cross_entropy
    found: Words = {} if kind in ("in_place", "unfused") else {"--cross-entropy-loss-fusion": ()}
    return {**found, "--cross-entropy-fusion-impl": ("te",)} if kind == "fused" else found


def _read_exchange(said: Said) -> Settings:
    """How tokens reach experts, and the kernels around it."""
    if not said.has("--num-experts"):
        return {}
    ways = {name: name for name in ("allgather", "alltoall", "flex")} | {"alltoall_seq": "alltoall"}
    return {
        "software.moe_dispatcher": said.meant("--moe-token-dispatcher-type", ways, "allgather"),
        "software.moe_grouped_gemm": said.has("--moe-grouped-gemm"),
        "software.moe_permute_fusion": said.has("--moe-permute-fusion"),
        "software.moe_router_fusion": said.has("--moe-router-fusion"),
        "software.moe_router_fp32": said.meant(
            "--moe-router-dtype", {"fp32": True, "fp64": True}, default=False
        ),
        "training.ep_overlap": said.has("--overlap-moe-expert-parallel-comm"),
    }


def _write_exchange(job: Description) -> Words:
    if job.transformer.moe is None:
        return {}
    software = job.software
    found: dict[str, tuple[str, ...]] = {"--moe-token-dispatcher-type": (software.moe_dispatcher,)}
    if software.moe_dispatcher == "flex":
        found["--moe-flex-dispatcher-backend"] = ("deepep",)
    for name, on in (
        ("--moe-grouped-gemm", software.moe_grouped_gemm),
        ("--moe-permute-fusion", software.moe_permute_fusion),
        ("--moe-router-fusion", software.moe_router_fusion),
        ("--overlap-moe-expert-parallel-comm", job.training.ep_overlap),
    ):  # fmt: skip
        if on:
            found[name] = ()
    if software.moe_router_fp32:
        found["--moe-router-dtype"] = ("fp32",)
    return found


def _read_softmax(said: Said) -> Settings:
    """Scores that layers scale are cast for the softmax (arguments.py of Megatron-LM)."""
    wide = said.has("--attention-softmax-in-fp32") or said.has("--apply-query-key-layer-scaling")
    return {"software.softmax_fp32": True} if wide else {}


def _fusion(name: str, key: str) -> Option:
    """A fusion that is on unless a flag says otherwise."""
    return switch(name, f"software.{key}", on=False, off=True)


#: What a step does.
TRAINING: Final = (
    Option(("--micro-batch-size", "--global-batch-size", *_RAMPS), _read_batch, _write_batch),
    number("--seq-length", "training.seq"),
    Option(
        (
            "--bf16", "--fp16", "--fp8-format", "--fp8-recipe", "--fp8-param-gather", "--fp4-format",
            "--fp4-recipe", "--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32",
        ),
        _read_precision, _write_precision,
    ),
    Option(
        (
            "--use-distributed-optimizer", "--num-distributed-optimizer-instances", "--use-megatron-fsdp",
            "--use-custom-fsdp", "--data-parallel-sharding-strategy", "--use-torch-fsdp2",
            "--torch-fsdp2-no-reshard-after-forward", "--zero-stage",
        ),
        _read_sharding, _write_sharding,
    ),
    *KEPT,
    Option(
        (
            "--optimizer", "--use-precision-aware-optimizer", "--main-params-dtype", "--exp-avg-dtype",
            "--exp-avg-sq-dtype", "--optimizer-cpu-offload", "--optimizer-offload-fraction",
        ),
        _read_states, _write_states,
    ),
    Option(
        ("--clip-grad",), _read_clipping,
        lambda job: {} if job.training.clip_gradients else {"--clip-grad": ("0.0",)},
    ),
    switch("--overlap-grad-reduce", "training.overlap_grad_reduce"),
    switch("--overlap-param-gather", "training.overlap_param_gather"),
    number("--ddp-bucket-size", "training.bucket_parameters", -1),
    switch("--tp-comm-overlap", "training.tp_overlap"),
    Option(("--no-overlap-p2p-communication",), _read_messages, _write_messages),
    Option(
        ("--defer-embedding-wgrad-compute", "--wgrad-deferral-limit"), _read_deferred, _write_deferred
    ),
    Option(
        ("--attention-backend", "--use-flash-attn", "--transformer-impl"), _read_attention, _write_attention
    ),
    Option(("--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl"), _read_loss, _write_loss),
    _fusion("--no-bias-gelu-fusion", "bias_activation_fusion"),
    _fusion("--no-bias-swiglu-fusion", "swiglu_fusion"),
    switch("--use-fused-weighted-squared-relu", "software.squared_relu_fusion"),
    _fusion("--no-bias-dropout-fusion", "bias_dropout_fusion"),
    _fusion("--no-masked-softmax-fusion", "softmax_fusion"),
    Option(
        ("--attention-softmax-in-fp32", "--apply-query-key-layer-scaling"), _read_softmax,
        lambda job: {"--attention-softmax-in-fp32": ()} if job.software.softmax_fp32 else {},
    ),
    _fusion("--no-rope-fusion", "rope_fusion"),
    _fusion("--no-gradient-accumulation-fusion", "grad_accumulation_fusion"),
    switch("--deterministic-mode", "software.deterministic"),
    _fusion("--ddp-average-in-collective", "gradient_scaling"),
    Option(
        (
            "--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend", "--moe-enable-deepep",
            "--moe-grouped-gemm", "--moe-permute-fusion", "--moe-router-fusion", "--moe-router-dtype",
            "--overlap-moe-expert-parallel-comm",
        ),
        _read_exchange, _write_exchange,
    ),
)  # fmt: skip
