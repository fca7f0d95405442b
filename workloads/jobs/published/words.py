"""What a row's words say of precision and recomputation.

Tables write these as they like.  Words that nobody foresaw leave the preset's choice, never an error.
"""

from __future__ import annotations

import re
from typing import Any, Final

from simcore.errors import InputError
from workloads.jobs.published.row import RunRow

_YES: Final = re.compile(r"^(yes|y|true|on|1|enabled)\b", re.IGNORECASE)
_NO: Final = re.compile(r"^(none|no|n|false|off|0|disabled|without|not (used|enabled))\b", re.IGNORECASE)

#: Scales of fp8, in the order in which they are looked for.
_FP8_RECIPES: Final = (
    # CS, DS, SC, MX: as Megatron-Bridge's tables shorten them.  torchao's tensorwise is left to the
    # preset: whether its maximum is a pass of its own depends on torch.compile.
    ("mxfp8", r"mx-?fp8|fp8[\s_-]*mx|\bmx\b"),
    ("blockwise", r"block-?wise|sub-?channel|[\s_-]sc\b|128\s?x\s?128|1\s?x\s?128"),
    ("rowwise", r"row-?\s?wise|axis-?\s?wise|per[\s-]?row"),
    ("current", r"current|dynamic|[\s_-]cs\b"),
    ("delayed", r"delayed|[\s_-]ds\b"),
)

#: Every so-many-th layer, in words.
_ORDINALS: Final = {"other": 2, "second": 2, "2nd": 2, "third": 3, "3rd": 3, "fourth": 4, "4th": 4}

#: Parts of a layer that cost next to nothing to run again, and Megatron-Core's names of modules.
_RECOMPUTED: Final = {
    "layernorm": r"norm",
    "mla_up_proj": r"mla[\s_-]*up",
    "mlp": r"\bmlp",
    "moe": r"\bmoe\b(?![ _-]?act)",
    "moe_act": r"\bact|moe[ _-]?act",
    "shared_experts": r"shared[ _-]?expert",
}
_MODULES: Final = r"norm|\bact|silu|swiglu|gelu|mlp|moe|shared|router|proj|softmax|dropout|rope|mla|expert"


def says_yes(text: str) -> bool:
    """Whether a column of yes or no says yes; anything but a plain yes does not."""
    return bool(_YES.match(text.strip()))


def precision_of(row: RunRow) -> dict[str, Any]:
    """Training settings from ``precision``: "amp_bf16", "fp8 hybrid", "FP8-CS", "16-bit mixed", "float16".

    Products in MXFP4 are taken to be like those in NVFP4.
    Errors: InputError for integers of 4 bits, which are not modelled.
    """
    said = _precision_words(row)
    if re.search(r"int4|4-bit", said):
        raise InputError(
            f"{row.id}: precision {row.text('precision')!r}: integers of 4 bits are not modelled"
        )
    for name, pattern in (
        ("nvfp4", "fp4|float4|e2m1"),
        ("fp8", "fp8|e4m3|e5m2"), ("bf16", "bf16"), ("fp16", r"fp16|\b16-(bit|mixed|true)"), ("tf32", "tf32"),
        ("fp32", r"fp32|\b32-(bit|true)|single"),
    ):  # fmt: skip
        if re.search(pattern, said):
            if name == "bf16" and "fp16" in said:
                return {}
            # bf16 gradients lose too much when accumulated: Megatron keeps them in fp32
            return {"precision": name} | (
                {"grad_dtype": "fp32", "grad_reduce_dtype": "fp32"} if "fp32 grad" in said else {}
            )
    return {}


def fp8_recipe_of(row: RunRow) -> str:
    """How fp8 is scaled where ``precision`` says it, else ""."""
    said = _precision_words(row)
    return next((name for name, pattern in _FP8_RECIPES if re.search(pattern, said)), "")


def fp8_attention_of(row: RunRow) -> bool:
    """Whether attention is said to be in fp8: "fp8 (delayed, fp8 attention)", or by a flag, FP8_DPA=1."""
    flags = row.text("overlap_notes").lower()
    if re.search(r"fp8_(dpa|mha|dot_product_attention)\s*=\s*(1|true|on)\b", flags):
        return True
    return bool(re.search(r"fp8[\s_-]*(attention|dpa|mha)", _precision_words(row)))


def _precision_words(row: RunRow) -> str:
    said = row.text("precision").lower().replace("bfloat16", "bf16").replace("float8", "fp8")
    return re.sub(r"float(16|32)", r"fp\1", said)


#: Shares of its blocks that a run computes again where its table has both utilisations: hardware's over the
#: model's is 1 + share / 3 (foundation-model-stack/fms-fsdp@5a296afe42 README: 13B 0.69 / 0.61, 34B and 70B
#: 0.74 / 0.55).
_BLOCKS_AGAIN: Final = ((r"^fms_fsdp .*\b13b", 0.4), (r"^fms_fsdp .*\b(34b|70b)", 1.0))


def _called(row: RunRow) -> str:
    return f"{row.family} {row.text('model')}".lower()


def recompute_of(row: RunRow, layers: int) -> dict[str, Any]:
    """Training settings from ``recompute``; ``layers``: of a stage, where a share of them is recomputed.

    A list of modules ("norm, act", "mla_up_proj, mlp") is selective recomputation of these, by Megatron's
    names; where none is known it costs next to nothing: none.
    """
    said = row.text("recompute").lower()
    if not row.says("recompute"):
        return {}
    if _NO.match(said):
        return {"recompute": "none"}
    if re.match(r"not\b", said):
        return {}
    if re.search(r"\bops?\b|\bsac\b", said) and "layer" not in said:
        return {"recompute": "ops"}
    some = _share_of(said, layers)
    if some:
        return {"recompute": "full", "recompute_layers": some}
    if re.match(r"full|uniform|all\b|every|entire", said) or says_yes(said):
        return {"recompute": "full"}
    if "selective layer" in said:
        return {"recompute": "full", "recompute_layers": layers // 2}
    if said.startswith("selective"):
        if re.search(r"[fh]sdp", row.text("zero_fsdp"), re.IGNORECASE):
            # FSDP trainers choose blocks, not parts of one: every second where the share is not given.
            of_all = next((share for model, share in _BLOCKS_AGAIN if re.search(model, _called(row))), 0.5)
            return {"recompute": "full", "recompute_layers": int(of_all * layers)}
        return {"recompute": "selective"}
    # MaxText's policies keep what products give ("minimal", "save_dots") and run attention again.
    if re.search(r"attention|attn|core|minimal|dots", said):
        return {"recompute": "selective"}
    if re.search(r"checkpoint|recompute|remat|nothing", said):
        return {"recompute": "full"}
    modules = tuple(name for name, pattern in _RECOMPUTED.items() if re.search(pattern, said))
    if modules:
        return {"recompute": "selective", "recompute_modules": modules}
    return {"recompute": "none"} if re.search(_MODULES, said) else {}


def _share_of(said: str, layers: int) -> int:
    """Layers of a stage that are recomputed whole; 0 where no number is said.

    Megatron's ``block N`` counts the layers of a pipeline stage (megatron/training/arguments.py,
    --recompute-num-layers); its ``uniform N`` recomputes all, N at a time.
    """
    if "uniform" in said:
        return 0
    every = re.search(r"every (other|second|third|fourth|2nd|3rd|4th|(\d+)(?:th)? layers)", said)
    part = re.search(r"(\d+)\s*(?:of|out of|/)\s*(?:every\s*)?(\d+)", said)
    percent = re.search(r"(\d+(?:\.\d+)?)\s*%", said)
    count = re.search(r"block[^\d]{0,20}(\d+)|(\d+)\s*(?:\w+\s)?layers|num[ _-]?layers\D{0,3}(\d+)", said)
    if every:
        wanted = layers // (_ORDINALS.get(every[1]) or int(every[2]) or 1)
    elif part and 0 < int(part[1]) <= int(part[2]):
        wanted = round(layers * int(part[1]) / int(part[2]))
    elif percent:
        wanted = round(layers * float(percent[1]) / 100)
    elif count and "selective layer" not in said:
        wanted = int(next(found for found in count.groups() if found))
    elif re.search(r"\bhalf\b", said):
        wanted = layers // 2
    else:
        return 0
    return max(1, min(wanted, layers))
