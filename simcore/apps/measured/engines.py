"""Kernels and exchanges as inference engines time them, in the words of kernel tables and of nccl-tests.

Such a table has a column ``latency_us``; ``op`` says what ran, ``kernel_source`` whose kernel.  What only
serving launches (decoding, weights in 4 bits beside activations in 16, exchanges of a few tokens, an engine's
own all_reduce) is refused with the reason.

Note [Layers in turn]
    ai-dynamo/aiconfigurator (collector/{vllm,sglang,trtllm}/collect_gemm.py) times six layers of one shape
    in turn: a weight is read again after the five others.  Where all six are within what L2 keeps, none comes
    from HBM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import comb
from typing import Final

from simcore.collectives.kinds.all_to_all import TokenExchange
from simcore.errors import InputError
from simcore.hardware import load_cluster, named_board
from simcore.outside import quoted

#: What tells such a table from others.
TIME_COLUMN: Final = "latency_us"

#: What quantises a product's input within a row's time: TensorRT-LLM's kernels, as kernel tables call them.
_QUANTISES: Final = {
    "fp8": "per-tensor fp8; includes dynamic activation quantisation kernels",
    "fp8_block": "1x128/128x128 block fp8; includes activation quantisation",
    "nvfp4": "nvfp4 block 16; includes activation quantisation",
}
#: vLLM and SGLang cast in one kernel.
_ONE_CAST: Final = {"fp8": "", "fp8_block": "1x128/128x128 block fp8", "nvfp4": ""}
#: Whose attention ran, in the ops of kernel tables; Triton's and FlashInfer's own are nobody's in training.
_ATTENTION: Final = (
    (r"fa4|attention_v4", "attention FA4"),
    (r"fa3|attention_v3", "attention FA3"),
    (r"flashinfer$|fiprefill|fidecode|triton|decode", ""),
    (r"trtllm|^torch_flow$|^default$", "attention"),
    (r"fa2|flash_attn|flash_attention|flashmla", "attention FA2"),
)
_MASKS: Final = {"attention_prefill_causal": "1", "mla_prefill_causal": "1", "attention_encoder_full": "0"}
#: Heads of DeepSeek's latent attention, queries of 192 and values of 128, as described models ask for them:
#: both products together are those of heads of 160.
_LATENT: Final = "160"
_SHORTEST: Final = 128
_COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")

#: Bytes of an element of a token on its way: fp8 with a scale for each 128, NVFP4 with one for each 16.
_TOKEN_BYTES: Final = {"fp8": 1 + 4 / 128, "nvfp4": 0.5 + 1 / 16, "bfloat16": 2.0}


class _Cells(dict[str, str]):
    """A row; a column that the table lacks is empty."""

    def __missing__(self, name: str) -> str:
        return ""

    def whole(self, name: str) -> int:
        """A cell as a number of things.  InputError for another text."""
        if not re.fullmatch(r"[1-9]\d{0,8}", self[name]):
            raise InputError(f"{name} = {quoted(self[name])} is not a whole number from 1 on")
        return int(self[name])


def kernel_columns(row: Mapping[str, str]) -> dict[str, str]:
    """A row in the columns of kernel tables.  InputError, with the reason, for what training does not launch.

    ``cast``: what quantises is a kernel of its own.
    """
    row = _Cells(row)
    op, source = row["op"], row["kernel_source"]
    words = {
        "gpu": row["gpu"], "dtype": row["dtype"], "time_us": row[TIME_COLUMN], "pass": "fwd",
        "engine": f"{row['framework']} {source}".strip(),
    }  # fmt: skip
    if op == "gemm":
        if row["framework"] == "VLLM" and row["dtype"] == "fp8_block":
            raise InputError("vLLM launched its products in blocks of fp8 one by one: the host was timed")
        own = row["framework"] == "TRTLLM"
        words["cast"] = "" if own or row["dtype"] not in _ONE_CAST else "1"
        notes = f"{(_QUANTISES if own else _ONE_CAST).get(row['dtype'], '')}; {source}; layers in turn"
        return words | {"op": op, "m": row["m"], "n": row["n"], "k": row["k"], "notes": notes}
    if op in _MASKS:
        return words | _attention(row)
    if op == "moe":
        return words | _experts(row)
    if op in _COLLECTIVES or "alltoall" in op or op.startswith("deepep"):
        raise InputError(f"{op} is an exchange between GPUs: --nccl")
    raise InputError(f"no formula for {op!r}: serving alone launches it, or no model here has it")


def _attention(row: _Cells) -> dict[str, str]:
    kernel = next((name for words, name in _ATTENTION if re.search(words, row["kernel_source"])), "")
    if not kernel:
        raise InputError(f"no formula for attention of {row['kernel_source']!r}")
    if row.whole("q_len") < _SHORTEST:
        raise InputError(f"fewer tokens ({row['q_len']}) than a tile has: no training")
    if row["q_len"] != row["kv_len"]:
        raise InputError(f"{row['q_len']} queries beside {row['kv_len']} keys: no prefill from the start")
    window = re.search(r"window=(\d+)", row["flags"])
    latent = row["op"].startswith("mla")
    notes = [f"sliding window {window[1]}"] if window else []
    notes += ["no cache is written"] if row["op"] == "attention_encoder_full" or latent else []
    return {
        "op": kernel,
        "batch": row["batch"], "seq": row["q_len"], "heads": row["num_heads"],
        "kv_heads": row["num_kv_heads"],
        "head_dim": _LATENT if latent else row["head_dim"],
        "causal": _MASKS[row["op"]],
        "notes": "; ".join(notes),
    }  # fmt: skip


def _experts(row: _Cells) -> dict[str, str]:
    """The slice of a rank: its experts and its columns of each."""
    ep, tp, experts, width = (row.whole(name) for name in ("moe_ep", "moe_tp", "num_experts", "inter"))
    if row["dtype"].startswith(("w4", "int4")):
        raise InputError(f"weights in 4 bits, activations wider ({row['dtype']}): serving alone has such")
    if experts % ep or width % tp:
        raise InputError(f"{experts} experts of {width} over {ep} x {tp} ranks: not even")
    return {
        "op": "moe grouped gemm layer",
        "m": row["num_tokens"], "n": str(width // tp), "k": row["hidden"],
        "groups": str(experts // ep),
        "notes": f"topk={row['topk']} experts={experts} ep={ep} tp={tp}; distribution={row['distribution']};"
        f" {row['kernel_source']}",
    }  # fmt: skip


def collective_columns(row: Mapping[str, str]) -> list[dict[str, str]]:
    """A row in the columns of nccl-tests; dispatch and combination of tokens, timed together, are two.

    InputError, with the reason, for what training does not launch.
    """
    row = _Cells(row)
    op = row["op"]
    words = {"gpu": row["gpu"], "source": f"{row['source']} {row['kernel_source']}".strip(), "nodes": "1"}
    if op in _COLLECTIVES:
        said = {"half": "half", "int8": "int8"}.get(row["dtype"], "")
        release = f"NCCL {row['framework_version']}" if row["framework_version"] else ""
        if "topology" in row["flags"]:
            release = f"out of a profiler; {row['flags']}"
        return [
            words
            | {
                "gpus": row["num_gpus"], "collective": {"alltoall": "all_to_all"}.get(op, op),
                "bytes": row["bytes"], "time_us": row[TIME_COLUMN], "notes": f"{said}; {release}",
            }
        ]  # fmt: skip
    if op == "deepep_dispatch_normal":
        found = re.search(r"dispatch_sms=(\d+);combine_sms=(\d+)", row["flags"])
        if found is None:
            raise InputError(f"flags {row['flags']!r} do not say dispatch_sms=N;combine_sms=N")
        ways = (("dispatch", "fp8", row[TIME_COLUMN]), ("combine", "bfloat16", row["latency2_us"]))
        return [
            words | _exchanged(row, "num_gpus", way, dtype, int(sms), "deepep") | {"time_us": us}
            for (way, dtype, us), sms in zip(ways, found.groups(), strict=True)
        ]
    if op in ("trtllm_alltoall_alltoall_dispatch", "trtllm_alltoall_alltoall_combine"):
        way = op.rpartition("_")[2]
        dtype = row["dtype"] if way == "dispatch" else "bfloat16"
        exchanged = _exchanged(row, "moe_ep", way, dtype, _HYBRID_SMS, "hybridep")
        return [words | exchanged | {"time_us": row[TIME_COLUMN]}]
    if op == "gemm" or op == "moe" or op in _MASKS:
        raise InputError(f"{op} is of one GPU: --kernels")
    raise InputError(f"no formula for {op!r}: serving alone launches it, or no model here has it")


#: SMs of HybridEP where it is fastest (deepseek-ai/DeepEP docs/README_Hybrid-EP.md), which TensorRT-LLM's
#: exchanges over NVLink, on all SMs, are compared with.
_HYBRID_SMS: Final = 32
_MOST_EXPERTS: Final = 1 << 16


def _exchanged(row: _Cells, ranks: str, way: str, dtype: str, sms: int, by: str) -> dict[str, str]:
    """Tokens to the ranks of one NVLink domain that have one of their experts, drawn without preference."""
    num_ranks, experts, chosen = row.whole(ranks), row.whole("num_experts"), row.whole("topk")
    if dtype not in _TOKEN_BYTES:
        raise InputError(f"nothing says what a token in {quoted(dtype)} takes")
    if experts % num_ranks or not chosen <= experts <= _MOST_EXPERTS:
        raise InputError(f"{chosen} of {experts} experts over {num_ranks} ranks cannot be")
    each = experts // num_ranks
    missed = comb(experts - each, chosen) / comb(experts, chosen)
    reached = num_ranks * (1 - missed)
    token = round(row.whole("hidden") * _TOKEN_BYTES[dtype])
    return {
        "gpus": str(num_ranks), "nodes": str(_trays(row["gpu"], num_ranks)),
        "bytes": str(row.whole("num_tokens") * token),
        "collective": str(TokenExchange(sms, reached, by, token, sums=way == "combine")),
        "exchange": f"{way} {row['framework']} {row['kernel_source']} {dtype} of {num_ranks}",
        "notes": f"{row['num_tokens']} tokens, {sms} SMs",
    }  # fmt: skip


def _trays(gpu: str, ranks: int) -> int:
    """Nodes that hold so many GPUs."""
    board = named_board(gpu)
    if board is None or not board.cluster:
        raise InputError(f"no profile of GPU {gpu!r}")
    return -(-ranks // load_cluster(board.cluster).gpus_per_node)
