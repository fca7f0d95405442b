"""Jobs whose launch files were traced: what their programs compute and communicate, kept beside this file.

``python -m tests.jobs.launch.traced_cases NAME GRAPH`` keeps a traced graph of what ``flags()`` gives, traced
with torchtitan 0.3.0 (``scripts/trace_workload.py torchtitan FLAGS --world-size 8``) or Megatron-LM of August
2026 (``scripts/trace_workload.py pretrain_gpt.py FLAGS --world-size 8`` in its checkout, with
``--transformer-impl local`` where ``local``).  DeepSpeed's file was read by a Llama in plain PyTorch
(``scripts/trace_workload.py script tests/tracing/scripts/zero_llama.py FILE --world-size 8``, DeepSpeed
0.19.8).
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simcore.graph import Graph, OpKind, load_graph
from workloads.jobs import Description, complete
from workloads.jobs.launch import emitted
from workloads.jobs.launch.shell import launched, program_of, read_script
from workloads.jobs.launch.torchtitan.configs import CONFIGS

FOLDER = Path(__file__).with_name("traced")
#: Bytes up to which a collective is of scalars, token counts or a norm's gradient.
SMALL = 16384
#: Bytes of collectives of torchtitan's head with the last norm, gathered in bf16 and reduced in fp32; of its
#: embedding.
_AROUND = frozenset({2 * (2048 * 256 + 256), 4 * (2048 * 256 + 256), 4 * 2048 * 256})
#: Passes that torchtitan's pipelines have apart: gradients of weights, gathers before the first of a stage's
#: forwards, reductions behind the last of its messages.
_TITAN_PASSES = {
    ("wgrad", "product"): "bwd", ("begin", "all_gather"): "fwd", ("exchange", "reduce_scatter"): "bwd",
}  # fmt: skip
#: (stage, pass, what, flops or bytes).
Key = tuple[int, str, str, int]

_GPT = {
    "family": "llama", "layers": 4, "hidden": 256, "heads": 8, "kv_heads": 4, "ffn": 1024, "gated": True,
    "activation": "silu", "bias": False, "positions": "rotary", "vocab": 8192, "tied_embeddings": False,
}  # fmt: skip
_RMS = {**_GPT, "norm": "rmsnorm"}
_EXPERTS: dict[str, Any] = {**_GPT, "moe": {"num_experts": 4, "top_k": 2, "ffn": 512}}
#: What Megatron-LM's local layers launch.
_LOCAL = {
    "attention": "unfused", "cross_entropy": "unfused", "grad_accumulation_fusion": False,
    "rope_fusion": False, "moe_grouped_gemm": False, "moe_permute_fusion": False,
}  # fmt: skip


@dataclass(frozen=True)
class Traced:
    """A job on 8 GPUs as described, for a framework."""

    framework: str
    layout: dict[str, Any]
    software: str
    model: dict[str, Any] = field(default_factory=lambda: _GPT)
    microbatches: int = 2
    local: bool = False  # Megatron-LM's own layers
    sharding: str = ""  # other than usual

    def job(self) -> Description:
        """The description."""
        titan = self.framework == "torchtitan"
        micro = 1 if self.framework == "megatron" else 2
        training = {
            "seq": 512 if titan else 256, "micro_batch": micro, "recompute": "none", "tp_overlap": False,
            "global_batch": micro * self.microbatches * self.layout["dp"],
        }  # fmt: skip
        if self.sharding:
            training["sharding"] = self.sharding
        software = {"preset": self.software, **(_LOCAL if self.local else {})}
        said = {"model": self.model, "parallel": self.layout, "training": training, "software": software}
        return complete(said, "a job", num_gpus=8)

    def flags(self) -> list[str]:
        """The flags that start it."""
        text, _ = emitted(self.framework, self.job(), [])
        if self.framework == "deepspeed":
            return [json.dumps({key: said for key, said in json.loads(text).items() if key != "_comment"})]
        words = launched(read_script(text, self.framework))
        return words[program_of(words) + 1 :]


_DEBUG = dict(CONFIGS[0].model)  # type: ignore[arg-type]


def _titan(**layout: Any) -> Traced:
    return Traced("torchtitan", layout, "torchtitan-0.3-eager", _DEBUG, 4 if "pp" in layout else 1)


def _local(layout: dict[str, Any], model: dict[str, Any] = _GPT, microbatches: int = 2) -> Traced:
    software = "megatron-core-moe" if "moe" in model else "megatron-core"
    return Traced("megatron", layout, software, model, microbatches, local=True)


def _zero(sharding: str) -> Traced:
    return Traced("deepspeed", {"dp": 8}, "deepspeed", _RMS, sharding=sharding)


CASES = {
    "titan-fsdp": _titan(dp=8),
    "titan-hsdp": _titan(dp=8, dp_shard=4),
    "titan-tp": _titan(tp=2, dp=4),
    "titan-cp": _titan(cp=2, dp=4),
    "titan-pp": _titan(pp=2, dp=4, schedule="1f1b"),
    "titan-vpp": _titan(pp=2, dp=4, schedule="1f1b", virtual_stages=2),
    "titan-zbv": _titan(pp=2, dp=4, schedule="zb_v", virtual_stages=2),
    "deepspeed-ddp": _zero("ddp"),
    "deepspeed-zero1": _zero("zero1"),
    "deepspeed-zero2": _zero("zero2"),
    "megatron-tp": _local({"tp": 2, "dp": 4}),
    "megatron-vpp": _local({"pp": 2, "dp": 4, "virtual_stages": 2}, microbatches=4),
    "megatron-experts": _local({"ep": 2, "dp": 8}, _EXPERTS),
    "megatron-te-tp": Traced("megatron", {"tp": 2, "dp": 4}, "megatron-core", _RMS),
    "megatron-te-vpp": Traced(
        "megatron", {"pp": 2, "dp": 4, "virtual_stages": 2}, "megatron-core", _RMS, 4
    ),
}  # fmt: skip


def counts(graph: Graph, framework: str) -> Counter[Key]:
    """Products, collectives and messages of each stage's first rank.

    Of torchtitan those of layers alone: it takes the loss in chunks, and gathers the last norm with the head
    for them; between which passes its messages stand is no difference.  Megatron-LM gathers a step's first
    parameters behind the optimizer of the step before, and hands data on within a tensor-parallel group.
    """
    found: Counter[Key] = Counter()
    stages = sorted({program.stage for program in graph.programs})
    layers = 6 // len(stages) if framework == "torchtitan" else 1
    for stage in stages:
        program = next(program for program in graph.programs if program.stage == stage)
        of_stage: Counter[Key] = Counter()
        for template in program.template:
            for row in range(int(graph.template_start[template]), int(graph.template_start[template + 1])):
                name = graph.template_names[template] if framework == "torchtitan" else graph.ops.phase[row]
                what = _what(graph, row, framework)
                if what is not None:
                    of_stage[stage, _pass(name, what[0], framework), *what] += 1
        found += Counter(
            {key: n for key, n in of_stage.items() if n >= layers or key[2] in ("product", "message")}
        )
    return found


def _pass(name: str, what: str, framework: str) -> str:
    if framework == "torchtitan":
        return "" if what == "message" else _TITAN_PASSES.get((name, what), name)
    return "fwd" if name == "optimizer" and what == "all_gather" else name


def _what(graph: Graph, row: int, framework: str) -> tuple[str, int] | None:
    ops = graph.ops
    if ops.kind[row] in (OpKind.SEND, OpKind.RECV):
        return "message", int(ops.num_bytes[row])
    if ops.kind[row] == OpKind.COLLECTIVE:
        call, size = ops.collective[row], int(ops.num_bytes[row])
        left_out = size <= SMALL or call == "broadcast" or (framework == "torchtitan" and size in _AROUND)
        return None if left_out else (call, size)
    inside = framework != "torchtitan" or re.search(r"layers\.[0-9]+\b", ops.module[row])
    return ("product", int(ops.flops[row])) if ops.flops[row] and inside else None


def without_attention(found: Counter[Key]) -> Counter[Key]:
    """Of a part of the queries a trace counts all keys, a description half."""
    scores = 4 * 2 * 16 * 256 * 512 * 16 // 2  # 4 b h s_q s_k d over two, forward; 5/2 of it backward
    sizes = {scores, 2 * scores, scores * 5 // 2, scores * 5}
    return Counter({key: n for key, n in found.items() if key[2] != "product" or key[3] not in sizes})


def kept(name: str) -> tuple[list[str], Counter[Key]]:
    """The flags that were traced, and what the program did."""
    content = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return content["flags"], Counter({tuple(key): n for *key, n in content["counts"]})


def main() -> None:
    """Keep what a graph holds."""
    name, graph = sys.argv[1:]
    case = CASES[name]
    found = counts(load_graph(graph), case.framework)
    rows = ",\n ".join(json.dumps([*key, n]) for key, n in sorted(found.items()))
    flags = json.dumps(case.flags())
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(f'{{"flags": {flags},\n"counts": [\n {rows}]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
