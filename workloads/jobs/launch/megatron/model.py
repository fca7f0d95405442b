"""Megatron-LM's flags of a model's dimensions."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any, Final

from workloads.jobs.complete import Description
from workloads.jobs.launch.megatron.hybrid import LAYERS, layers_of
from workloads.jobs.launch.options import Option, Said, Settings, Words, choice, number, switch, whole

#: What tokenizers without a size on the command line have; others need ``--vocab-size``.
_VOCABULARIES: Final = {
    "GPT2BPETokenizer": 50257,
    "BertWordPieceLowerCase": 30522,
    "Llama2Tokenizer": 32000,
    "Llama3Tokenizer": 128256,
}
_ROTARY: Final = ("rope", "yarn", "mrope")


def _ffn(said: Said) -> Settings:
    hidden = said.needed("--hidden-size")
    usual = int(4 * hidden * 2 / 3 / 64) * 64 if said.has("--swiglu") else 4 * hidden
    return {"model.ffn": said.number("--ffn-hidden-size", usual)}


def _read_heads(said: Said) -> Settings:
    heads = said.needed("--num-attention-heads")
    groups = said.number("--num-query-groups", 1) if said.has("--group-query-attention") else 0
    groups = said.number("--num-key-value-heads", groups)  # Megatron-DeepSpeed
    # Of the fork that trained StarCoder.
    groups = said.meant("--attention-head-type", {"multihead": groups, "multiquery": 1}, groups)
    size = said.number("--kv-channels", 0)
    if not size and heads > 0 and said.needed("--hidden-size") % heads:
        raise said.wrong("--num-attention-heads", "must divide --hidden-size, or --kv-channels be given")
    return {"model.heads": heads, "model.kv_heads": groups, "model.head_size": size}


def _write_heads(job: Description) -> Words:
    model = job.transformer
    found: dict[str, tuple[str, ...]] = {"--num-attention-heads": (str(model.heads),)}
    if model.mla is None and model.num_kv_heads != model.heads:
        found |= {"--group-query-attention": (), "--num-query-groups": (str(model.kv_heads),)}
    if model.head_size and model.head_size * model.heads != model.hidden:
        found["--kv-channels"] = (str(model.head_size),)
    return found


def _read_activation(said: Said) -> Settings:
    given = [name for name in ("--swiglu", "--squared-relu", "--quick-geglu") if said.has(name)]
    if len(given) > 1:
        raise said.wrong(given[1], f"contradicts {given[0]}")
    kinds = {"--swiglu": "silu", "--squared-relu": "squared_relu", "--quick-geglu": "gelu"}
    kind = kinds[given[0]] if given else "gelu"
    return {"model.activation": kind, "model.gated": bool(given) and given[0] != "--squared-relu"}


def _write_activation(job: Description) -> Words:
    kinds = {
        ("silu", True): "--swiglu",
        ("squared_relu", False): "--squared-relu",
        ("gelu", True): "--quick-geglu",
    }
    name = kinds.get((job.transformer.activation, job.transformer.gated))
    return {name: ()} if name else {}


def _read_bias(said: Said) -> Settings:
    bias = not said.has("--disable-bias-linear")
    found: dict[str, Any] = {"model.bias": bias}
    if said.has("--add-qkv-bias") and not bias:
        found["model.qkv_bias"] = True
    if said.has("--num-experts"):
        found["model.moe.bias"] = bias
    return found


def _write_bias(job: Description) -> Words:
    found: Words = {} if job.transformer.bias else {"--disable-bias-linear": ()}
    return {**found, "--add-qkv-bias": ()} if job.transformer.qkv_bias and not job.transformer.bias else found


def _read_dropout(said: Said) -> Settings:
    hidden, scores = said.real("--hidden-dropout", 0.1), said.real("--attention-dropout", 0.1)
    if hidden != scores:
        said.notes.append(
            f"--hidden-dropout {hidden:g} and --attention-dropout {scores:g}: the first is taken for both"
        )
    return {"model.dropout": hidden}


def _write_dropout(job: Description) -> Words:
    text = (f"{job.transformer.dropout:g}",)
    return {"--hidden-dropout": text, "--attention-dropout": text}


def _read_positions(said: Said) -> Settings:
    kinds = {"learned_absolute": "learned", "relative": "relative", "none": "none", "alibi": "alibi"}
    kinds |= dict.fromkeys(_ROTARY, "rotary")
    kind = said.meant("--position-embedding-type", kinds, "learned")
    if said.has("--use-rotary-position-embeddings") or (
        said.has("--multi-latent-attention") and not said.has("--position-embedding-type")
    ):
        kind = "rotary"
    if said.has("--no-position-embedding") and kind == "learned":
        kind = "none"
    rows = said.number("--max-position-embeddings", 0)
    return {"model.positions": kind, "model.max_positions": rows if kind == "learned" else 0}


def _write_positions(job: Description) -> Words:
    kinds = {"learned": "learned_absolute", "rotary": "rope", "relative": "relative"}
    rows = job.transformer.max_positions or job.training.seq
    return {
        "--position-embedding-type": (kinds.get(job.transformer.positions, "none"),),
        "--max-position-embeddings": (str(max(rows, job.training.seq)),),
    }


def _read_vocabulary(said: Said) -> Settings:
    padded = said.number("--padded-vocab-size", said.number("--pad-vocab-size-to", None))
    if padded is not None:
        return {"model.vocab": padded, "software.vocab_multiple": 1}
    found = said.number("--vocab-size", None)
    if found is None:
        kind = said.text("--tokenizer-type", "GPT2BPETokenizer" if said.has("--merge-file") else "")
        found = _VOCABULARIES.get(kind, 128_000)
        why = f"as {kind} usually has" if kind in _VOCABULARIES else "assumed (--set model.vocab=...)"
        said.notes.append(f"no --vocab-size: {found:,} entries, {why}")
    return {
        "model.vocab": found,
        "software.vocab_multiple": said.number("--make-vocab-size-divisible-by", 128),
        "software.vocab_multiple_times_tp": True,
    }


def _write_vocabulary(job: Description) -> Words:
    return {
        "--vocab-size": (str(job.transformer.vocab),),
        "--make-vocab-size-divisible-by": (str(job.software.vocab_multiple),),
    }


def _read_window(said: Said) -> Settings:
    text = said.text("--window-size", "")
    if not text:
        return {"model.sliding_window": 0, "model.global_every": 0}
    width = whole(text.strip("()").split(",")[0].strip())
    if width is None or width < 0:
        raise said.wrong("--window-size", "must be two whole numbers, such as 128,0")
    return {
        "model.sliding_window": width,
        "model.global_every": said.number("--window-attn-skip-freq", 0),
    }


def _write_window(job: Description) -> Words:
    model = job.transformer
    if not model.sliding_window:
        return {}
    found: dict[str, tuple[str, ...]] = {"--window-size": (f"{model.sliding_window},0",)}
    if model.global_every:
        found["--window-attn-skip-freq"] = (str(model.global_every),)
    return found


_MLA: Final = {
    "q_lora_rank": ("--q-lora-rank", 0), "kv_lora_rank": ("--kv-lora-rank", 32),
    "qk_nope_head_size": ("--qk-head-dim", 128), "qk_rope_head_size": ("--qk-pos-emb-head-dim", 64),
    "v_head_size": ("--v-head-dim", 128),
}  # fmt: skip


def _read_mla(said: Said) -> Settings:
    if not said.has("--multi-latent-attention"):
        return {}
    if said.has("--group-query-attention"):
        raise said.wrong("--group-query-attention", "contradicts --multi-latent-attention")
    return {f"model.mla.{key}": said.number(name, usual) for key, (name, usual) in _MLA.items()}


def _write_mla(job: Description) -> Words:
    mla = job.transformer.mla
    if mla is None:
        return {}
    numbers = {name: (str(getattr(mla, key)),) for key, (name, _) in _MLA.items() if getattr(mla, key)}
    return {"--multi-latent-attention": (), **numbers}


def _read_experts(said: Said) -> Settings:
    experts = said.number("--num-experts", 0)
    if not experts:
        return {}
    capacity = said.real("--moe-expert-capacity-factor", said.real("--moe-train-capacity-factor", None))
    return {
        "model.moe.num_experts": experts,
        "model.moe.top_k": said.number("--moe-router-topk", 2),
        "model.moe.ffn": said.number("--moe-ffn-hidden-size", _ffn(said)["model.ffn"]),
        "model.moe.shared_ffn": said.number("--moe-shared-expert-intermediate-size", 0),
        "model.moe.shared_gate": said.has("--moe-shared-expert-gate"),
        "model.moe.latent": said.number("--moe-latent-size", 0),
        "model.moe.clamp": said.has("--activation-func-clamp-value"),
        "model.moe.capacity_factor": capacity if capacity is None or capacity >= 0 else None,
        "model.moe.num_groups": said.number("--moe-router-num-groups", 0),
        "model.moe.top_groups": said.number("--moe-router-group-topk", 0),
        **_read_pattern(said),
    }


def _read_pattern(said: Said) -> Settings:
    """Which layers have experts: each n-th, or a list as Megatron writes it ("([0]*3+[1]*58)")."""
    text = said.text("--moe-layer-freq", "1")[: 1 << 12]
    each = whole(text)
    if each is not None and each > 0:
        return {"model.moe.first_layer": 0, "model.moe.every": each}
    parts = re.sub(r"[()\s]", "", text).split("+")
    pattern: list[str] = []
    for part in parts:
        found = re.fullmatch(r"\[([01](?:,[01])*)\](?:\*([0-9]{1,4}))?", part)
        if found is None:
            raise said.wrong("--moe-layer-freq", "a number, or lists of 0 and 1 such as ([0]*3+[1]*58)")
        pattern += found[1].split(",") * int(found[2] or 1)
        if len(pattern) > min(layers_of(said), 1 << 12):
            break
    first = pattern.index("1") if "1" in pattern else 0
    behind = pattern[first:]
    every = behind.index("1", 1) if "1" in behind[1:] else max(1, len(behind))
    regular = [str(int(k % every == 0)) for k in range(len(behind))]
    if "1" not in pattern or behind != regular or len(pattern) != layers_of(said):
        raise said.wrong("--moe-layer-freq", "one entry a layer, experts in each n-th from some layer on")
    return {"model.moe.first_layer": first, "model.moe.every": every}


def _write_experts(job: Description) -> Words:
    moe, layers = job.transformer.moe, job.transformer.layers
    if moe is None:
        return {}
    found: dict[str, tuple[str, ...]] = {
        "--num-experts": (str(moe.num_experts),),
        "--moe-router-topk": (str(moe.top_k),),
        "--moe-ffn-hidden-size": (str(moe.ffn),),
    }
    for name, value in (
        ("--moe-shared-expert-intermediate-size", moe.shared_ffn),
        ("--moe-router-num-groups", moe.num_groups), ("--moe-router-group-topk", moe.top_groups),
        ("--moe-latent-size", moe.latent),
    ):  # fmt: skip
        if value:
            found[name] = (str(value),)
    if moe.shared_gate:
        found["--moe-shared-expert-gate"] = ()
    if moe.clamp:
        found["--activation-func-clamp-value"] = ("7.0",)
    if moe.capacity_factor is not None:
        found["--moe-expert-capacity-factor"] = (f"{moe.capacity_factor:g}",)
    if job.transformer.layer_pattern:
        return found
    if moe.first_layer:
        has = [int(job.transformer.has_experts(k)) for k in range(layers)]
        runs = [f"[{bit}]*{len([*run])}" for bit, run in groupby(has)]
        found["--moe-layer-freq"] = (f"({'+'.join(runs)})",)
    elif moe.every > 1:
        found["--moe-layer-freq"] = (str(moe.every),)
    return found


#: Flags of models that a description has no blocks for.
_OTHER_MODELS: Final = (
    "--heterogeneous-layers-config-path",
    "--encoder-num-layers", "--decoder-num-layers", "--use-checkpoint-args",
)  # fmt: skip


def _refuse_others(said: Said) -> Settings:
    """InputError for a model that would be taken for another one."""
    given = [name for name in _OTHER_MODELS if said.has(name)]
    if given:
        raise said.wrong(given[0], "makes a model of parts that cannot be described")
    return {}


#: What a model is.
MODEL: Final = (
    Option(_OTHER_MODELS, _refuse_others, lambda _: {}),
    LAYERS,
    number("--hidden-size", "model.hidden"),
    Option(
        ("--ffn-hidden-size",), _ffn, lambda job: {"--ffn-hidden-size": (str(job.transformer.ffn),)}
    ),
    Option(
        (
            "--num-attention-heads", "--group-query-attention", "--num-query-groups", "--kv-channels",
            "--attention-head-type", "--num-key-value-heads",
        ),
        _read_heads, _write_heads,
    ),
    Option(("--swiglu", "--squared-relu", "--quick-geglu"), _read_activation, _write_activation),
    choice(
        "--normalization", "model.norm",
        {"LayerNorm": "layernorm", "RMSNorm": "rmsnorm", "layernorm": "layernorm", "rmsnorm": "rmsnorm"},
        "LayerNorm",
    ),
    Option(("--disable-bias-linear", "--add-qkv-bias"), _read_bias, _write_bias),
    switch("--qk-layernorm", "model.qk_norm", on="head", off=""),
    switch("--attention-output-gate", "model.attention_gate"),
    Option(("--hidden-dropout", "--attention-dropout"), _read_dropout, _write_dropout),
    Option(
        (
            "--position-embedding-type", "--max-position-embeddings", "--use-rotary-position-embeddings",
            "--no-position-embedding",
        ),
        _read_positions, _write_positions,
    ),
    Option(
        (
            "--vocab-size", "--padded-vocab-size", "--make-vocab-size-divisible-by", "--tokenizer-type",
            "--pad-vocab-size-to",
        ),
        _read_vocabulary, _write_vocabulary,
    ),
    switch("--untie-embeddings-and-output-weights", "model.tied_embeddings", on=False, off=True),
    Option(("--window-size", "--window-attn-skip-freq"), _read_window, _write_window),
    Option(("--multi-latent-attention", *(name for name, _ in _MLA.values())), _read_mla, _write_mla),
    Option(
        (
            "--num-experts", "--moe-router-topk", "--moe-ffn-hidden-size", "--moe-layer-freq",
            "--moe-shared-expert-intermediate-size", "--moe-shared-expert-gate",
            "--activation-func-clamp-value", "--moe-expert-capacity-factor", "--moe-router-num-groups",
            "--moe-router-group-topk", "--moe-train-capacity-factor", "--moe-latent-size",
        ),
        _read_experts, _write_experts,
    ),
)  # fmt: skip
