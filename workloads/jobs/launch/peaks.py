"""Rows of a table of measured peaks of memory as jobs: their columns are flags of Megatron-LM.

A row's flags (``other_flags``, JSON) are read as a user's are (:mod:`workloads.jobs.launch.megatron`); what
only columns say is put as the flag that it stands for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from simcore.errors import InputError
from simcore.outside import csv_rows, json_document
from simcore.records import dataclass
from workloads.jobs.complete import Description, complete
from workloads.jobs.launch.dialect import read_words
from workloads.jobs.launch.megatron import MEGATRON
from workloads.jobs.launch.options import Words
from workloads.jobs.published.row import RunRow

#: Columns without which no row can be read.
REQUIRED: Final = ("test", "gpu", "model_kind", "max_allocated_bytes", "other_flags")

_GENERATIONS: Final = {
    "A100": "ampere", "H100": "hopper", "H200": "hopper", "B200": "blackwell", "GB200": "blackwell",
}  # fmt: skip
#: Whole numbers of columns, and what flags call them.
_NUMBERS: Final = {
    "tp": "tensor-model-parallel-size", "pp": "pipeline-model-parallel-size", "cp": "context-parallel-size",
    "ep": "expert-model-parallel-size", "etp": "expert-tensor-parallel-size", "layers": "num-layers",
    "hidden": "hidden-size", "heads": "num-attention-heads", "ffn": "ffn-hidden-size",
    "kv_channels": "kv-channels", "seq": "seq-length", "micro_batch": "micro-batch-size",
    "global_batch": "global-batch-size", "vocab": "vocab-size",
    "vocab_divisor": "make-vocab-size-divisible-by",
    "mtp_layers": "mtp-num-layers", "experts": "num-experts", "topk": "moe-router-topk",
    "moe_ffn": "moe-ffn-hidden-size", "moe_shared_ffn": "moe-shared-expert-intermediate-size",
}  # fmt: skip
#: Columns that are true or false.
_SWITCHES: Final = {
    "swiglu": "swiglu", "untied": "untie-embeddings-and-output-weights", "mla": "multi-latent-attention",
    "grouped_gemm": "moe-grouped-gemm", "fp8_param": "fp8-param-gather",
    "distributed_optimizer": "use-distributed-optimizer", "sequence_parallel": "sequence-parallel",
    "overlap_grad_reduce": "overlap-grad-reduce", "overlap_param_gather": "overlap-param-gather",
    "precision_aware_optimizer": "use-precision-aware-optimizer",
}  # fmt: skip
_TEXTS: Final = {
    "moe_layer_freq": "moe-layer-freq", "dispatcher": "moe-token-dispatcher-type",
    "attention_backend": "attention-backend", "transformer_impl": "transformer-impl",
    "optimizer": "optimizer",
}  # fmt: skip
#: Flags of the public models that rows without flags are of: Llama 3 (arXiv 2407.21783), and DeepSeek-V2 and
#: V3 (arXiv 2405.04434, 2412.19437), whose latent attention has equal ranks and sizes of heads.
_PUBLIC: Final[Mapping[str, tuple[str, ...]]] = {
    "--normalization": ("RMSNorm",), "--disable-bias-linear": (), "--position-embedding-type": ("rope",),
}  # fmt: skip
#: Rows leave regularisation out; models with RMSNorm have no dropout (tests/functional_tests/test_cases/moe
#: of NVIDIA/Megatron-LM), others Megatron-LM's usual one.
_NO_DROPOUT: Final[Mapping[str, tuple[str, ...]]] = {
    "--hidden-dropout": ("0",), "--attention-dropout": ("0",),
}  # fmt: skip
_LATENT: Final[Mapping[str, tuple[str, ...]]] = {
    "--q-lora-rank": ("1536",), "--kv-lora-rank": ("512",), "--qk-head-dim": ("128",),
    "--qk-pos-emb-head-dim": ("64",), "--v-head-dim": ("128",),
}  # fmt: skip
#: Entries of tokenizers that rows name without a size: NVIDIA's bert-large-cased vocabulary, Llama 2's,
#: Nemotron's of 256,000 pieces.
_TOKENIZERS: Final = (("256k", 256_000), ("Llama2Tokenizer", 32_000), ("BertWordPiece", 28_996))
#: Flags that move no byte of a peak: when exchanges run and how they are cut into pieces, dtypes that are
#: the usual ones, and dimensions from a checkpoint, which are in the row.
_WITHOUT_INFLUENCE: Final = (
    "--use-checkpoint-args", "--overlap-p2p-communication-warmup-flush", "--tp-comm-overlap-cfg",
    "--step-batch-size-schedule", "--delay-wgrad-compute",
    "--outer-dp-sharding-strategy", "--first-last-layers-bf16", "--num-layers-at-end-in-bf16",
    "--megatron-fsdp-main-params-dtype", "--megatron-fsdp-main-grads-dtype",
    "--megatron-fsdp-grad-comm-dtype",
    "--hierarchical-context-parallel-sizes", "--overlap-param-gather-with-optimizer-step",
    "--no-use-layer-wise-param-layout", "--ddp-num-buckets", "--ddp-pad-buckets-for-high-nccl-busbw",
    "--moe-hybridep-num-sms", "--moe-flex-dispatcher-num-sms", "--moe-router-padding-for-quantization",
    "--reuse-grad-buf-for-mxfp8-param-ag",
)  # fmt: skip
#: Flags that say which activations wait in the host's memory.
_OFFLOADING: Final = ("--fine-grained-activation-offloading", "--cpu-offloading-num-layers")
#: GPUs of a node of the machines that rows ran on, where a row does not say how many there were.
_NODE: Final = 8


@dataclass(frozen=True)
class PeakRow:
    """One row: a process of a job, and the peaks of its allocator."""

    row: RunRow

    @property
    def id(self) -> str:
        """Test, platform and rank."""
        rank = self.row.text("reporting_rank")
        own = "" if not rank or rank.startswith("last") else f"rank {rank}"
        return " ".join(filter(None, (self.row.text("test"), self.row.text("platform"), own)))

    @property
    def family(self) -> str:
        """The family of tests that it belongs to."""
        return self.row.text("test").partition("/")[0]

    @property
    def quality(self) -> str:
        """A: every input is published; B: something is guessed."""
        return self.row.text("quality").upper()

    def measured(self, kind: str) -> int:
        """Bytes ``allocated`` or ``reserved`` at most; 0 where the row does not say."""
        return int(self.row.number(f"max_{kind}_bytes", 0))


@dataclass(frozen=True)
class PeakJob:
    """A row's job, and the pipeline stage whose rank was measured."""

    job: Description
    stage: int


def read_peak_rows(path: str) -> list[PeakRow]:
    """Rows of a CSV file.  Errors: InputError as :func:`simcore.outside.csv_rows`."""
    rows = csv_rows(Path(path), "peaks of memory", REQUIRED)
    return [PeakRow(RunRow(line, columns)) for line, columns in rows]


def peak_jobs(peak: PeakRow) -> list[PeakJob]:
    """What a row ran, completed as a user's job is: two where nobody published on how many GPUs.

    On as few as its degrees ask for, and on as many as its batch has micro batches for.
    Errors: InputError for what cannot be said, with the reason.
    """
    row = peak.row
    columns, flags = _words_of_columns(row), _words_of_flags(row)
    if flags:  # the width of a layer is Megatron-LM's usual one where they do not say it
        columns.pop("--ffn-hidden-size", None)
    words = {**columns, **flags}
    if row.text("model_kind").startswith("simumax"):
        words = {**_PUBLIC, **(_LATENT if row.text("mla").lower() == "true" else {}), **words}
    _refuse(row, words)
    stacks = _encoder_decoder(words)
    generation = next((of for name, of in _GENERATIONS.items() if row.text("gpu").startswith(name)), "")
    words |= _attention(row, words, generation)
    if words.get("--normalization") == ("RMSNorm",):
        words = {**_NO_DROPOUT, **words}
    return [_completed(peak, words, stacks, num_gpus, generation) for num_gpus in _plausible_gpus(row, words)]


def _completed(
    peak: PeakRow, words: Words, stacks: Mapping[str, Mapping[str, Any]], num_gpus: int, generation: str
) -> PeakJob:
    row = peak.row
    launch = read_words(MEGATRON, words, peak.id, num_gpus)
    if launch.not_understood:
        raise InputError(launch.not_understood[0])
    content = {section: dict(values) for section, values in launch.content.items()}
    _of_kind(row, content)
    for section, values in stacks.items():
        content[section].update(values)
    if row.says("alloc_conf"):
        content["software"]["allocator"] = row.text("alloc_conf")
    job = complete(content, peak.id, num_gpus=num_gpus, generation=generation)
    stage = int(row.number("pp_stage")) if row.says("pp_stage") else job.parallel.pp - 1
    return PeakJob(job, stage)


def _words_of_columns(row: RunRow) -> dict[str, tuple[str, ...]]:
    """What columns say; ``ffn`` of tests is four times ``hidden`` there, whatever the block."""
    found: dict[str, tuple[str, ...]] = {}
    for column, flag in _NUMBERS.items():
        if row.says(column) and row.number(column, 0):
            found[f"--{flag}"] = (str(row.count(column)),)
    for column, flag in _SWITCHES.items():
        if row.text(column).lower() == "true":
            found[f"--{flag}"] = ()
    for column, flag in _TEXTS.items():
        if row.says(column):
            found[f"--{flag}"] = (row.text(column),)
    if row.number("capacity_factor", 0):
        found["--moe-expert-capacity-factor"] = (row.text("capacity_factor"),)
    if row.says("kv_heads") and row.says("heads") and row.count("kv_heads") != row.count("heads"):
        found |= {"--group-query-attention": (), "--num-query-groups": (str(row.count("kv_heads")),)}
    if row.says("fsdp"):
        strategy = row.text("fsdp").rpartition(" ")[2]
        found |= {"--use-megatron-fsdp": (), "--data-parallel-sharding-strategy": (strategy,)}
    return {**found, **_precision(row), **_recompute(row), **_vocabulary(row), **_loss(row)}


def _precision(row: RunRow) -> Words:
    """Such as "bf16", "bf16 + fp8 hybrid tensorwise"; gradients in fp32 or the model's dtype."""
    base, _, narrow = row.text("precision").partition("+")
    base = base.strip()
    found: dict[str, tuple[str, ...]] = {} if base in ("", "fp32") else {f"--{base}": ()}
    if narrow:
        kind = narrow.split()
        if len(kind) != 3 or kind[0] != "fp8":
            raise InputError(f"precision {row.text('precision')!r} is not known here")
        found |= {"--fp8-format": (kind[1],), "--fp8-recipe": (kind[2],)}
    if row.text("grads") == "fp32" and base == "fp16":
        found["--accumulate-allreduce-grads-in-fp32"] = ()
    elif row.text("grads") == "model dtype" and base == "bf16":
        found["--grad-reduce-in-bf16"] = ()
    return found


def _recompute(row: RunRow) -> Words:
    """Such as "selective [layernorm mlp]", "full", "none"."""
    found = re.fullmatch(r"(selective|full)(?:\s*\[([\w\s]*)\])?.*", row.text("recompute"))
    if not found:
        return {}
    words: dict[str, tuple[str, ...]] = {"--recompute-granularity": (found[1],)}
    return {**words, "--recompute-modules": tuple(found[2].split())} if found[2] else words


def _vocabulary(row: RunRow) -> Words:
    if row.says("vocab"):
        return {}
    said = row.text("vocab_note")
    if row.text("model_kind") == "bert":
        said = "BertWordPiece"
    return next(({"--vocab-size": (str(size),)} for name, size in _TOKENIZERS if name in said), {})


def _loss(row: RunRow) -> Words:
    said = row.text("cross_entropy_fusion")
    if not said or said.lower() in ("no", "none", "false"):
        return {}
    kind = {"te": "te", "native": "native"}.get(said, "te")
    return {"--cross-entropy-loss-fusion": (), "--cross-entropy-fusion-impl": (kind,)}


def _words_of_flags(row: RunRow) -> dict[str, tuple[str, ...]]:
    """Flags as the row's JSON has them: true is a flag without a word, "[a b]" several words."""
    text = row.text("other_flags") or "{}"
    content = json_document(text, f"{row.id}: other_flags")
    if not isinstance(content, Mapping):
        raise InputError("other_flags is no JSON object")
    found: dict[str, tuple[str, ...]] = {}
    for key, value in content.items():
        name = "--" + str(key).replace("_", "-")
        if value is True:
            found[name] = ()
        elif value is not False and value is not None:
            said = str(value)
            several = said.startswith("[") and said.endswith("]") and name != "--moe-layer-freq"
            found[name] = tuple(said[1:-1].split()) if several else (said,)
    if found.get("--cp-comm-type") == ("a2a+p2p",):  # two rings' worth of ranks: what is kept is the same
        found["--cp-comm-type"] = ("p2p",)
    return found


def _attention(row: RunRow, words: Words, generation: str) -> Words:
    """Transformer Engine's choice where nothing is said (pytorch/attention/dot_product_attention/utils.py).

    cuDNN's kernel on Hopper; flash-attn before it, and where equal bits are asked for of Blackwell, for which
    cuDNN has none.  Builds of the machines called dracooci fell back to none (inferred: their rows without a
    word on it all hold the scores).
    """
    said = words.get("--attention-backend", ("auto",)) != ("auto",) or "--use-flash-attn" in words
    if said or words.get("--transformer-impl") == ("local",):
        return {}
    same_bits = "--deterministic-mode" in words
    if "dracooci" in row.text("platform"):
        return {"--attention-backend": ("unfused",)}
    cudnn = generation == "hopper" or (generation == "blackwell" and not same_bits)
    return {"--attention-backend": ("fused" if cudnn else "flash",)}


def _refuse(row: RunRow, words: dict[str, tuple[str, ...]]) -> None:
    """What would be taken for something else; and words that repeat what columns say."""
    if row.says("cpu_offload") and not words.keys() & set(_OFFLOADING):
        raise InputError("activations wait in host memory, and no flag says which")
    if not words.keys() & {"--num-layers", "--encoder-num-layers", "--hybrid-layer-pattern"}:
        raise InputError("the number of layers is not given")
    begins = re.match(r"0:([0-9]{1,9})\b", " ".join(words.get("--step-batch-size-schedule", ())))
    if begins and "--global-batch-size" not in words:  # batches grow in steps: the first
        words["--global-batch-size"] = (begins[1],)
    for name in _WITHOUT_INFLUENCE:
        words.pop(name, None)
    if words.get("--main-grads-dtype") == ("fp32",):  # as it is unasked
        del words["--main-grads-dtype"]


def _encoder_decoder(words: dict[str, tuple[str, ...]]) -> dict[str, dict[str, Any]]:
    """Of an encoder-decoder: its second stack, as Megatron-LM has no word of it in GPT's flags."""
    layers, decoder = words.pop("--encoder-num-layers", None), words.pop("--decoder-num-layers", None)
    seq, second = words.pop("--encoder-seq-length", None), words.pop("--decoder-seq-length", None)
    if layers is None:
        return {}
    words["--num-layers"] = layers
    if seq:
        words["--seq-length"] = seq
    found: dict[str, dict[str, Any]] = {"model": {}, "training": {}}
    found["model"]["decoder_layers"] = int((decoder or layers)[0])
    if second:
        found["training"]["decoder_seq"] = int(second[0])
    extra = int(words.pop("--vocab-extra-ids", ("0",))[0])
    if extra and "--vocab-size" in words:
        words["--vocab-size"] = (str(int(words["--vocab-size"][0]) + extra),)
    return found


#: Flags that give a stage several chunks.
_INTERLEAVES: Final = {"--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"}


def _plausible_gpus(row: RunRow, words: Words) -> list[int]:
    """GPUs as the row has them, else one node where that was the usual, else the fewest and the most."""
    if row.says("world_size"):
        return [row.count("world_size")]

    def degree(name: str, usual: int = 1) -> int:
        return int(words.get(f"--{name}-parallel-size", (str(usual),))[0])

    inner = degree("tensor-model") * degree("pipeline-model") * degree("context")
    of_experts = (
        degree("pipeline-model") * degree("expert-model") * degree("expert-tensor", degree("tensor-model"))
    )
    fewest = math.lcm(_NODE, inner, of_experts)
    if "release" not in row.text("test_type"):
        return [fewest]
    samples = int(words.get("--global-batch-size", ("1",))[0]) // row.count("micro_batch", 1)
    if words.keys() & _INTERLEAVES:  # microbatches come in rounds of as many as there are stages
        samples //= degree("pipeline-model")
    most = inner * math.gcd(max(1, samples), 1 << 20)
    return [fewest, most] if most > fewest and most % fewest == 0 else [fewest]


def _of_kind(row: RunRow, content: dict[str, dict[str, Any]]) -> None:
    """Families beside GPT's."""
    kind = row.text("model_kind")
    if kind in ("bert", "t5"):
        content["model"]["family"] = kind
    if kind == "bert":
        content["model"]["token_types"] = 2
