"""Formats of launches: scripts and flags of Megatron-LM, torchtitan's flags and TOML, DeepSpeed's JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from simcore.apps.run.scenario import resolve_scenario
from simcore.errors import InputError
from simcore.hardware import load_cluster
from tests.fuzz.cases import Answer, Case, Format, register
from tests.fuzz.described import asked
from tests.fuzz.mutate import NUMBERS, TEXTS, as_json, as_toml, as_yaml, document, misspelt, pick
from workloads.jobs.launch import emitted, read_launch

_SCRIPT = """#!/bin/bash
GPUS=8; TP=${TP:-2}
LAYERS=$((TP * (1 + 1)))
MODEL=( --num-layers $LAYERS --hidden-size 256 --num-attention-heads 8   # small
    "--seq-length 128" --vocab-size 1024 )
if [ "$TP" = "2" ] && [[ -n "$GPUS" ]]; then
    MODEL+=(--sequence-parallel --bf16)
else
    MODEL+=(--fp16)
fi
for i in 1 2; do echo $i; done
torchrun --nproc_per_node $GPUS --nnodes=1 pretrain_gpt.py ${MODEL[@]} \\
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size 2 --micro-batch-size 1 \\
    --global-batch-size 8 --save "$OUT" --lr 1e-4 --use-distributed-optimizer
"""
_SMALL = "--hidden-size 256 --num-attention-heads 8 --seq-length 128 --vocab-size 1024 --micro-batch-size 1"
_FLAGS = (
    f"--num-layers 4 {_SMALL} --global-batch-size 16 --bf16 --swiglu --normalization RMSNorm"
    " --group-query-attention --num-query-groups 4 --position-embedding-type rope --disable-bias-linear"
    " --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --recompute-granularity full"
    " --pipeline-model-parallel-layout Et*2|(t|)*2L --recompute-method block --recompute-num-layers 1",
    f"--num-layers 2 {_SMALL} --global-batch-size 16 --bf16 --num-experts 4 --moe-router-topk 2"
    " --moe-layer-freq [0]+[1] --expert-model-parallel-size 4 --moe-token-dispatcher-type alltoall"
    " --moe-grouped-gemm --fp8-format hybrid --multi-latent-attention --kv-lora-rank 64 --q-lora-rank 64"
    " --window-size 64,0 --clip-grad 1.0",
)
_TITAN = (
    "--module llama3 --config llama3_debugmodel --training.local_batch_size 2 --training.seq_len 256"
    " --parallelism.tensor_parallel_degree 2 --parallelism.pipeline_parallel_degree 2"
    " --parallelism.pipeline_parallel_schedule 1F1B --training.steps 10 --compile.enable"
    " activation-checkpoint:full"
)
_TOML: list[Any] = [
    {
        "model": {"name": "llama3", "flavor": "debugmodel"},
        "training": {"local_batch_size": 2, "seq_len": 256, "global_batch_size": 16},
        "parallelism": {"tensor_parallel_degree": 2, "pipeline_parallel_degree": 1},
        "activation_checkpoint": {"mode": "selective", "selective_ac_option": "2"},
        "compile": {"enable": True, "components": ["model", "loss"]},
    }
]
_KEYS: list[Any] = [
    {
        "MODEL_ARGS": {
            "--num-layers": 2, "--hidden-size": 256, "--num-attention-heads": 8, "--seq-length": 128,
            "--vocab-size": 1024, "--micro-batch-size": 1, "--global-batch-size": 8, "--bf16": True,
        }
    },
]  # fmt: skip
_ODD = (
    "$(",
    "${",
    "((",
    "fi",
    "then",
    "\\\n",
    "|",
    "#",
    "`",
    "${X:-$X}",
    "$((1/0))",
    "$((9**9))",
    '"',
    "'",
    "-m",
    "=(",
)


def _words(text: str, rng: Random) -> tuple[bytes, str]:
    """A text of words with one to three of them changed; the flag that is unknown if that is all."""
    words = text.split(" ")
    rounds, unknown = rng.choice((1, 1, 1, 2, 3)), ""
    for _ in range(rounds):
        at, what = rng.randrange(len(words)), rng.randrange(8)
        old = words[at]
        if what == 0:
            del words[at]
        elif what < 3:
            words[at] = misspelt(old, rng)
            is_flag = old.startswith("--") and words[at].startswith("--") and "=" not in words[at] + old
            unknown = words[at][2:] if is_flag and rounds == 1 and words[at].strip() == words[at] else ""
        elif what == 3:
            words.insert(at, rng.choice(words))
        elif what == 4:
            words[at] = str(rng.choice(NUMBERS))
        elif what < 7:
            words[at] = rng.choice(TEXTS)
        else:
            words.insert(at, rng.choice(_ODD))
        if not words:
            break
    known = unknown.replace("-", "_") in text.replace("-", "_") or not unknown.strip("-")
    return " ".join(words).encode("utf-8", "surrogatepass"), "" if known else unknown


def _script(rng: Random) -> Case:
    text, unknown = _words(_SCRIPT, rng)
    return Case("launch", {"run.sh": text}, ("megatron", "run.sh"), "" if "\n" in unknown else unknown)


def _flags(rng: Random) -> Case:
    text, unknown = _words(rng.choice(_FLAGS), rng)
    return Case("launch-flags", {"flags.txt": text}, ("megatron", "flags.txt"), unknown)


def _titan(rng: Random) -> Case:
    text, _ = _words(_TITAN, rng)
    return Case("launch-titan", {"flags.txt": text}, ("torchtitan", "flags.txt"))


def _titan_file(rng: Random) -> Case:
    text, unknown = document(pick(_TOML, rng), as_toml, rng)
    return Case("launch-toml", {"job.toml": text}, ("torchtitan", "job.toml"), unknown)


def _megatron_file(rng: Random) -> Case:
    render = as_yaml if rng.random() < 0.5 else as_json
    text, _ = document(pick(_KEYS, rng), render, rng)
    name = "job.yaml" if render is as_yaml else "job.json"
    return Case("launch-keys", {name: text}, ("megatron", name))


def _door(given: Path, case: Case) -> Answer:
    """Simulated as ``run_sim.py`` does, then written again: what was read can be said."""
    framework, name = case.words
    launch = (framework, str(given / name))
    scenario = resolve_scenario(None, cluster="h100-8", settings={}, launch=launch)
    assert scenario.described is not None
    answer = asked(scenario, case)
    job = scenario.described.complete(load_cluster("h100-8"))
    try:
        text, _ = emitted(framework, job, [])
    except InputError:  # Megatron-LM itself refuses some jobs that can be simulated
        return answer
    again = read_launch(framework, text).on(job.parallel.world_size)
    if again.not_understood:
        return replace(answer, wrong=f"written and not understood: {again.not_understood[0][:60]}")
    return answer


register(
    Format(name, make, _door)
    for name, make in (
        ("launch", _script), ("launch-flags", _flags), ("launch-titan", _titan), ("launch-toml", _titan_file),
        ("launch-keys", _megatron_file),
    )
)  # fmt: skip
