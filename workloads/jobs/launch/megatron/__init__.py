"""Megatron-LM: its flags as a dialect, and what it refuses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from workloads.jobs.complete import Description
from workloads.jobs.launch.dialect import Dialect
from workloads.jobs.launch.megatron.layout import LAYOUT
from workloads.jobs.launch.megatron.model import MODEL
from workloads.jobs.launch.megatron.training import TRAINING
from workloads.jobs.launch.options import Words, flat_words
from workloads.jobs.launch.shell import split_flags
from workloads.jobs.presets import megatron_build

#: Flags that leave a step's time as it is: data, logs, checkpoints, rates, seeds, details of norms.
_NO_INFLUENCE: Final = re.compile(
    r"--(no-)?((save|load|log|eval|wandb|tensorboard|timing|one-logger|otel|profile|nsys|exit|ckpt|dist-ckpt"
    r"|non-persistent|async|lr|decoupled|min-lr|adam|sgd|weight-decay|start-weight-decay|end-weight-decay|muon"
    r"|init-method|initialization|seed|data|dataloader|train|valid|test|split|mock-data|num-workers|mmap"
    r"|num-dataset-builder|tokenizer|tiktoken|vocab-file|merge-file|vocab-extra|special-tokens|trust-remote-code"
    r"|distributed-(backend|timeout)|nccl-communicator|rotary|rope-(scaling|type)|use-rope-scaling|norm-epsilon"
    r"|layernorm-epsilon|apply-layernorm-1p|loss-scale"
    r"|initial-loss-scale|min-loss-scale|loss-scale-window|hysteresis|finetune|override|use-checkpoint"
    r"|use-mp-args|use-tokenizer-model|use-dist-ckpt|auto-detect-ckpt|pretrained|mid-level|reset-|eod-mask|check"
    r"|rerun|error-injection|use-mcore-models|manual-gc|empty-unused|moe-aux-loss|moe-z-loss"
    r"|moe-router-(load-balancing|score|enable-expert-bias|bias-update|topk-scaling|force|pre-softmax)"
    r"|DDP-impl|deepspeed|no-pipeline-parallel|moe-token-drop|moe-loss-coeff|moe-eval-capacity-factor"
    r"|moe-min-capacity|create-moe-param-group|moe-input-jitter|mtp-loss|calculate-per-token-loss|fp8-(margin|interval|amax)"
    r"|app-tag|rank|local-rank|nvtx|record|memory-snapshot|logging|barrier|te-rng|align-|mscale"
    r"|yarn|beta-|original-max-position|bert|create-attention-mask|persist-layer-norm|group-name|run-workload"
    r"|disable-straggler|straggler|train-sync|verify|recompute-loss|sft|object-storage|path-to-cache"
    r"|object|cache|enable-experimental|use-pytorch-profiler|spec|flight-recorder|high-priority"
    r"|use-persistent|init-model-with-meta-device|structured-logs|fim|enable-gloo|disable-gloo|use-gloo|lazy-mpu|iteration|titles|skip-train|perform)(-[\w-]*)?)$"
)  # fmt: skip


def _refused(job: Description) -> Iterator[str]:
    """What Megatron-LM refuses to run, or has no flags for at all."""
    model, p, training = job.transformer, job.parallel, job.training
    if model.family not in ("gpt", "llama"):
        yield f"model.family={model.family}: pretrain_gpt.py trains GPT-like models"
    if len(model.layer_pattern) not in (0, model.layers):
        yield "model.layer_pattern: its layers are one block each"
    if p.schedule not in ("1f1b", "interleaved"):
        yield f"parallel.schedule={p.schedule}: it has 1f1b and interleaved"
    if p.cp_style == "torch":
        yield "parallel.cp_style=torch: it has p2p, a2a and all_gather"
    if training.engine != "megatron":
        yield f"training.engine={training.engine}"
    if training.precision == "tf32":
        yield "training.precision=tf32: torch has no flag of it here"
    if training.recompute == "ops":
        yield "training.recompute=ops: it has selective and full"
    if "layer" in training.offload and (p.pp > 1 or training.recompute != "none"):
        yield "training.offload=[layer]: it offloads whole layers with neither pipeline nor recomputation"
    if "attn_proj" in training.offload and "core_attn" not in training.offload:
        yield "training.offload: attn_proj goes with core_attn, which reads again what it has made"
    if training.trainable != "all":
        yield f"training.trainable={training.trainable}: all parameters train"
    if model.moe is not None and p.tp > 1 and not p.sequence_parallel:
        yield "parallel.sequence_parallel=False: experts beside tensor parallelism need it"
    if training.tp_overlap and not p.sequence_parallel:
        yield "training.tp_overlap=True without sequence parallelism"
    if training.overlap_param_gather and not training.overlap_grad_reduce:
        yield "training.overlap_param_gather=True needs overlap_grad_reduce"
    if training.overlap_param_gather and training.sharding == "ddp":
        yield "training.overlap_param_gather=True needs the distributed optimizer (training.sharding=zero1)"
    if training.ep_overlap and p.pp > 1 and p.virtual_stages == 1:
        yield "training.ep_overlap=True needs virtual stages in a pipeline"
    if p.cp > 1 and training.seq % (2 * p.cp):
        yield f"training.seq={training.seq} is no multiple of twice parallel.cp={p.cp}"
    if p.virtual_stages > 1 and p.pp == 2 and not training.overlap_p2p:
        yield "training.overlap_p2p=False with virtual stages needs more than two pipeline stages"


def _rendered(job: Description, words: Words, gpus_per_node: int) -> str:
    """A script for torchrun: a flag a line, mock data until it is given other."""
    nodes = -(-job.parallel.world_size // gpus_per_node)
    each = min(gpus_per_node, job.parallel.world_size)
    lines = [" ".join((name, *map(shlex.quote, values))) for name, values in words.items()]
    program = "pretrain_hybrid.py" if "--is-hybrid-model" in words else "pretrain_gpt.py"
    flags = "\n".join(f"    {line}" for line in [*lines, *_RUNNABLE])
    return (
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
        f"FLAGS=(\n{flags}\n)\n"
        f"torchrun --nnodes ${{NNODES:-{nodes}}} --nproc-per-node {each}"
        " --node-rank ${NODE_RANK:-0} --master-addr ${MASTER_ADDR:-localhost} \\\n"
        f'    {program} "${{FLAGS[@]}}" "$@"\n'
    )


def _preset(words: Words) -> str:
    """The build that flags stand for where nothing else is said."""
    if "--deepspeed" in words:
        return "megatron-deepspeed"
    return megatron_build(experts="--num-experts" in words)


def _document(content: Mapping[str, Any], where: str) -> Words:
    """Keys of a YAML file with underscores or dashes; in a section, too, as Megatron's test recipes are."""
    inner = content.get("MODEL_ARGS", content)
    words = flat_words(inner if isinstance(inner, Mapping) else content, where)
    found: dict[str, tuple[str, ...]] = {}
    for key, values in words.items():
        name = "--" + key.rpartition(".")[2].removeprefix("--").replace("_", "-")
        if values != ("false",):
            found[name] = () if values == ("true",) else values
    return found


#: What a run needs beside what is described.
_RUNNABLE: Final = (
    "--tokenizer-type NullTokenizer", "--mock-data", "--train-iters 20", "--lr 1e-4", "--log-throughput",
    "--log-interval 1", "--eval-iters 0 --eval-interval 1000",
)  # fmt: skip

MEGATRON: Final = Dialect(
    name="megatron",
    called="Megatron-LM",
    table=(*MODEL, *LAYOUT, *TRAINING),
    preset=_preset,
    no_influence=_NO_INFLUENCE,
    refused=_refused,
    parsed=split_flags,
    document=_document,
    rendered=_rendered,
    suffix=".sh",
    foreign=re.compile(r"pretrain_(bert|t5|ict|retro|vlm|vision\w*)\.py"),
)
