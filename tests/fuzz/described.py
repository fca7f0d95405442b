"""Formats of what is said of a job: clusters, GPUs, presets, YAML, config.json, settings, edits, limits."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import yaml

from simcore.apps.prices import read_prices
from simcore.apps.run.edits import edit_program, traced_job
from simcore.apps.run.loading import check_dims, check_world, loaded
from simcore.apps.run.scenario import Scenario, resolve_scenario
from simcore.apps.run.settings import split_pairs
from simcore.apps.run.simulation import setup_of
from simcore.graph import Graph, load_graph, verify
from simcore.hardware import ClusterSpec, load_cluster
from simcore.hardware.specs import MATH_MODES
from simcore.outside import limits
from simcore.run import Ran, Setup, run
from tests.fuzz.cases import Answer, Case, Format, register
from tests.fuzz.mutate import NUMBERS, TEXTS, as_json, as_toml, as_yaml, document, misspelt, pick
from workloads.jobs import complete

ROOT = Path(__file__).parents[2]
PROFILES = ROOT / "hardware_profiles"
MODEL = {"layers": 1, "hidden": 256, "heads": 4, "ffn": 512, "vocab": 1024}
JOB: dict[str, Any] = {
    "model": MODEL, "parallel": {"tp": 2}, "training": {"seq": 128, "global_batch": 1, "micro_batch": 1},
}  # fmt: skip


@cache
def small_graph() -> Graph:
    """A layer on two GPUs."""
    return complete(JOB, "a job", num_gpus=2, generation="hopper").graph()


@lru_cache(16)
def h100s(*gpu: tuple[str, str]) -> ClusterSpec:
    """A node, with settings of its GPUs."""
    return load_cluster("h100-8", gpu)


def asked(scenario: Scenario, case: Case) -> Answer:
    """What ``run-sim`` does with a scenario, but for its folder."""
    found = loaded(scenario)
    check_dims(found.graph)
    told = [*found.warnings, *found.assumptions, *verify(found.graph)]
    check_world(found.graph, found.cluster)
    _, fits = found.fits(found.graph, found.cluster, scenario)
    setup = setup_of(scenario)
    ran = run(found.graph, found.cluster, setup)
    answer = Answer(ran.step_s, [str(fits), *told, *ran.warnings, *ran.assumptions])
    return sound(answer, ran, found.graph, found.cluster, setup, case)


def sound(answer: Answer, ran: Ran, graph: Graph, cluster: ClusterSpec, setup: Setup, case: Case) -> Answer:
    """The answer, or what is wrong with the run: ops that end before they start, shortcuts that matter.

    Without shortcuts only some runs are simulated again, always the same.
    """
    result = ran.result
    for rank in result.representatives.tolist():
        times = result.times_of(rank)
        if not (times.ready_ps >= 0).all() or (times.start_ps > times.end_ps).any():
            return replace(answer, wrong="an op ends before it starts")
    if crc32(repr((case.words, sorted(case.files.items()))).encode("utf-8", "replace")) % 16 == 0:
        plain = run(graph, cluster, replace(setup, shortcuts=frozenset(), fold=False))
        if plain.result.step_ps != result.step_ps:
            return replace(
                answer, wrong=f"{result.step_ps} ps, without shortcuts {plain.result.step_ps} ps"[:80]
            )
    return answer


def _table(path: Path) -> Any:
    """A profile with short sources: what it says, a quarter of its length."""

    def shorter(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: "s" if k in ("source", "inferred") else shorter(v) for k, v in value.items()}
        return [shorter(one) for one in value] if isinstance(value, list) else value

    return shorter(tomllib.loads(path.read_text(encoding="utf-8")))


@cache
def _clusters() -> list[Any]:
    found = [
        _table(PROFILES / "cluster" / f"{name}.toml") for name in ("h800", "a10", "dgx1v", "h100-fat-tree")
    ]
    for one in found:
        one["num_nodes"]["value"] = 2
    return found


@cache
def _gpus() -> list[Any]:
    profiles = [PROFILES / "gpu" / f"{name}.toml" for name in ("h100-sxm", "a10", "v100")]
    return [_table(path) for path in (*profiles, ROOT / "docs" / "extend" / "gpu.toml")]


def _cluster_case(rng: Random) -> Case:
    text, unknown = document(pick(_clusters(), rng), as_toml, rng)
    return Case("cluster", {"c.toml": text}, unknown=unknown)


def _gpu_case(rng: Random) -> Case:
    text, unknown = document(pick(_gpus(), rng), as_toml, rng)
    unknown = "" if unknown in MATH_MODES else unknown  # fp8 misspelt may be fp4
    cluster = {**_clusters()[0], "gpu": "g.toml"}
    return Case("gpu", {"c.toml": as_toml(cluster).encode(), "g.toml": text}, unknown=unknown)


def _cluster_door(given: Path, case: Case) -> Answer:
    cluster = load_cluster(str(given / "c.toml"))
    ran = run(small_graph(), cluster)
    return sound(Answer(ran.step_s, ran.warnings), ran, small_graph(), cluster, Setup(), case)


_YAML: list[Any] = [
    {**JOB, "cluster": "h100-8"},
    {"model": {**MODEL, "layers": 2}, "parallel": {"pp": 2, "dp": 2, "schedule": "1f1b"}, "cluster": "h100-8",
     "training": {"seq": 64, "global_batch": 4, "micro_batch": 1, "recompute": "full"}},
    {"model": {**MODEL, "kv_heads": 2, "moe": {"num_experts": 4, "top_k": 2, "ffn": 128}},
     "parallel": {"ep": 2, "dp": 2}, "training": {"seq": 64, "global_batch": 2, "micro_batch": 1},
     "cluster": "h100-8", "set": {"gpu.clock": 0.9, "nccl.algorithm": "ring"}, "seed": 1,
     "network": "alphabeta"},
    {"model": MODEL, "parallel": {"dp": 2}, "training": {"sharding": "fsdp", "seq": 64, "global_batch": 2},
     "software": {"preset": "torchtitan-fsdp2"}, "cluster": "a100-8"},
]  # fmt: skip


def _yaml_case(rng: Random) -> Case:
    render = as_yaml if rng.random() < 0.7 else as_json
    text, unknown = document(pick(_YAML, rng), render, rng)
    return Case("job", {"job.yaml": text}, unknown=unknown)


def _yaml_door(given: Path, case: Case) -> Answer:
    return asked(resolve_scenario(str(given / "job.yaml"), settings={}), case)


_SMALL = {
    "num_hidden_layers": 1, "hidden_size": 256, "num_attention_heads": 4, "vocab_size": 512,
    "intermediate_size": 512, "num_key_value_heads": 2, "hidden_act": "silu"
}  # fmt: skip
_CONFIGS: list[Any] = [
    {**_SMALL, "model_type": "llama", "tie_word_embeddings": False, "head_dim": 64, "attention_bias": False},
    {**_SMALL, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2,
     "sliding_window": None},
    {**_SMALL, "model_type": "qwen3_moe", "head_dim": 64, "moe_intermediate_size": 128, "num_experts": 4,
     "num_experts_per_tok": 2, "decoder_sparse_step": 1},
    {**_SMALL, "model_type": "deepseek_v3", "kv_lora_rank": 64, "q_lora_rank": 64, "qk_nope_head_dim": 32,
     "qk_rope_head_dim": 16, "v_head_dim": 32, "num_experts_per_tok": 2, "n_routed_experts": 4,
     "moe_layer_freq": 1, "n_shared_experts": 1,
     "moe_intermediate_size": 128, "first_k_dense_replace": 0},
    {"model_type": "gpt2", "n_layer": 1, "n_embd": 256, "n_head": 4, "vocab_size": 512, "n_positions": 128,
     "activation_function": "gelu_new"},
    {"text_config": {**_SMALL, "model_type": "gemma3_text", "head_dim": 64, "sliding_window": 64}},
    {"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 256, "num_attention_heads": 4,
     "vocab_size": 512, "intermediate_size": 512, "max_position_embeddings": 128},
    {"model_type": "vit", "num_hidden_layers": 1, "hidden_size": 256, "num_attention_heads": 4,
     "intermediate_size": 512, "image_size": 32, "patch_size": 16, "id2label": {"0": "a"}},
]  # fmt: skip
_CONFIG_USED = {**JOB, "model": "config.json"}


def _config_case(rng: Random) -> Case:
    text, unknown = document(pick(_CONFIGS, rng), as_json, rng)
    unknown = unknown if unknown[:1].isalpha() else ""  # keys of id2label are anybody's
    return Case("config", {"config.json": text}, unknown=unknown)


def _config_door(given: Path, case: Case) -> Answer:
    job = complete(_CONFIG_USED, "a job", num_gpus=2, generation="hopper", folder=given)
    ran = run(job.graph(), h100s(*job.gpu.items()))
    return Answer(ran.step_s, [*job.warnings, *job.assumptions])


@cache
def _presets() -> list[Any]:
    folder = ROOT / "workloads" / "jobs" / "presets"
    names = ("megatron-core", "torchtitan-fsdp2", "deepspeed", "megatron-core-moe")
    return [
        _table(ROOT / "docs" / "extend" / "framework.toml"),
        *(_table(folder / f"{name}.toml") for name in names),
    ]


def _preset_case(rng: Random) -> Case:
    text, unknown = document(pick(_presets(), rng), as_toml, rng)
    return Case("preset", {"p.toml": text}, unknown=unknown)


def _preset_door(given: Path, case: Case) -> Answer:
    job = complete({**JOB, "software": "p.toml"}, "a job", num_gpus=2, generation="hopper", folder=given)
    ran = run(job.graph(), h100s(*job.gpu.items()))
    return Answer(ran.step_s, [*job.warnings, *job.assumptions])


_SETTINGS = [
    "gpu.clock=0.9", "gpu.num_sms=100", "gpu.hbm_bytes_per_s=2TB/s", "gpu.hbm_bytes=64GiB",
    "gpu.conditions=cool", "gpu.peak_flops.bf16=500Tflop/s", "gpu.launch_overhead_s=5us",
    "gpu.sustained.clock=0.8", "cluster.num_nodes=2", "cluster.nic_bytes_per_s=25GB/s",
    "cluster.placement=round_robin", "cluster.nics_per_node=4", "cluster.gpu=a100-80",
    "link.nic.0.0.in.bytes_per_s=10GB/s", "link.nvlink.0.out.latency_s=1us", "workload.fp32_math=tf32",
    "nccl.algorithm=ring", "nccl.protocol=LL", "nccl.min_channels=2", "nccl.max_channels=8",
    "nccl.buffer_bytes=4MiB", "NCCL_ALGO=Tree", "NCCL_NVLS_ENABLE=0", "rank.1.gpu.clock=0.8",
    "node.0.extra_latency_s=5us", "noise.sigma=0.1", "memory.check=warn", "engine.shortcuts=none",
    "network.transport=roce", "network.routing=ecmp", "network.max_events=100000", "parallel.tp=1",
    "parallel.pp=2", "training.global_batch=4", "training.seq=64", "model.layers=2",
    "model.moe.num_experts=4", "software.attention=flash3", "software=megatron-core",
]  # fmt: skip


def _words(known: Sequence[str], rng: Random) -> tuple[str, ...]:
    """A few ``KEY=VALUE``, most of them wrong somewhere."""
    found = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        key, _, value = rng.choice(known).partition("=")
        what = rng.randrange(12)
        if what == 0:
            key = misspelt(key, rng)
        elif what == 1:
            key = ".".join(rng.choice((part, str(rng.choice(NUMBERS)), "")) for part in key.split("."))
        elif what < 4:
            value = str(rng.choice(NUMBERS))
        elif what < 6:
            value = rng.choice(TEXTS)
        elif what == 6:
            value = rng.choice(known).partition("=")[2]
        found.append(f"{key}={value}" if rng.random() < 0.97 else key)
    return tuple(found)


def _settings_case(rng: Random) -> Case:
    job = {**_YAML[0], "parallel": {"tp": 2, "dp": 1}}
    return Case("settings", {"job.yaml": as_yaml(job).encode()}, _words(_SETTINGS, rng))


def _settings_door(given: Path, case: Case) -> Answer:
    packets = any(word.startswith("network.") for word in case.words)
    network = "packet" if packets else "fluid"
    settings = split_pairs(case.words)
    return asked(resolve_scenario(str(given / "job.yaml"), network=network, settings=settings), case)


_EDITS = [
    "kernel.gemm.speed=2", "class.gemm.speed=0.5", "class.communication.speed=inf", "remove.^aten=",
    "remove.communication", "fuse=mul,add", "host.speed=2", "launch_overhead_us=1", "cuda_graphs",
    "gpu=a100-80", "network=a100-8", "dp=2", "pp=2", "network.bandwidth=2", "schedule=gpipe",
    "num_microbatches=4", "layers=4", "batch.micro=2", "hidden=512", "ffn=256", "tp=2",
    "straggler.0=remove", "schedule=interleaved:2", "kernel.(a+)+$.speed=2", "layers=2:4", "pp=2:4",
]  # fmt: skip


#: Traced programs, the small ones more often.
_PROGRAMS = ("models", "titan-fsdp"), ("models", "titan-pp"), ("models", "overlapped"), ("edits", "base")


@cache
def _traced(number: int) -> Graph:
    folder, name = _PROGRAMS[number]
    return load_graph(ROOT / "tests" / folder / "graphs" / name)


def _edit_case(rng: Random) -> Case:
    number = rng.choice((0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3))
    return Case("edit", {"program": b"%d" % number}, _words(_EDITS, rng))


def _edit_door(given: Path, case: Case) -> Answer:
    graph, cluster = _traced(int(case.files["program"])), h100s()
    jobs, done = edit_program(traced_job(graph, cluster, "megatron", "ieee"), case.words)
    job = jobs[-1]
    cluster = job.cluster or cluster
    check_world(job.graph, cluster)
    ran = run(job.graph, cluster)
    answer = Answer(ran.step_s, [change.assumed for change in done])
    return sound(answer, ran, job.graph, cluster, Setup(), case)


_PRICES = {
    "currency": "EUR", "source": "our contract", "date": "2026-03-01",
    "per_gpu_hour": {"h100-sxm": 2.5, "h100-efa": 3.0, "h100-8": 2.75, "A100-SXM4-80GB": 1},
}  # fmt: skip


def _prices_case(rng: Random) -> Case:
    text, unknown = document(_PRICES, as_toml, rng)
    return Case("prices", {"p.toml": text}, unknown=unknown)


def _prices_door(given: Path, case: Case) -> Answer:
    cluster = h100s()
    found = read_prices(str(given / "p.toml"), [cluster])
    cost = found.per_million_tokens(cluster, 1e3)
    assert 0 <= cost < math.inf, cost
    return Answer(None, {**found.per_gpu_hour, "date": found.date.isoformat()})


def _limits_case(rng: Random) -> Case:
    known = "text=1MiB json=1GiB depth=64 digits=40 unpacked=1GiB events=20M rows=50M memory=8GiB seconds=60"
    return Case("limits", {}, (",".join(_words(known.split(), rng)),))


def _limits_door(given: Path, case: Case) -> Answer:
    before = os.environ["SIMCORE_LIMITS"]
    try:
        os.environ["SIMCORE_LIMITS"] = case.words[0].replace("\0", "0").encode("utf-8", "replace").decode()
        found = limits()
    finally:
        os.environ["SIMCORE_LIMITS"] = before
    assert all(value is None or value >= 1 for value in vars(found).values()), found
    return Answer(None, yaml.safe_dump(vars(found)))


register(
    Format(name, make, door)
    for name, make, door in (
        ("cluster", _cluster_case, _cluster_door),
        ("gpu", _gpu_case, _cluster_door),
        ("job", _yaml_case, _yaml_door),
        ("config", _config_case, _config_door),
        ("preset", _preset_case, _preset_door),
        ("settings", _settings_case, _settings_door),
        ("edit", _edit_case, _edit_door),
        ("limits", _limits_case, _limits_door),
        ("prices", _prices_case, _prices_door),
    )
)
