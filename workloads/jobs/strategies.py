"""Rules on strategies of classes of layers: the inner level, what goes with shards, transformers."""

from __future__ import annotations

from typing import Any, Final

from simcore.errors import InputError
from workloads.jobs.draft import Draft
from workloads.models.pieces import LayerClass
from workloads.models.spec import ModelSpec
from workloads.parallel.strategy import StrategySpec, Word

_SAID: Final = "as parallel.strategy says"
#: Classes whose parameters a job without strategies has whole.
_WHOLE: Final[tuple[LayerClass, ...]] = ("dense", "transformer", "expert")


def words_of_the_job(draft: Draft) -> None:
    """A class whose word is what the job's own DDP does anyway has no strategy of its own."""
    strategy = draft.parallel.strategy
    if isinstance(draft.model, ModelSpec) or draft.training.sharding != "ddp":
        return
    by_itself: dict[str, str] = {of: "" for of in _WHOLE if strategy.words(of) == ("ddp", "ddp")}
    if by_itself:
        kept = strategy.model_copy(update=by_itself)
        draft.assume("parallel.strategy", kept, "ddp is what the job does by itself")


def inner_level(draft: Draft) -> None:
    """GPUs that NVLink joins are the inner level, as many of them as divide all."""
    strategy = draft.parallel.strategy
    if strategy.is_said and not strategy.local and not isinstance(draft.model, ModelSpec):
        inner = strategy.model_copy(update={"local": _local(draft)})
        draft.assume("parallel.strategy", inner, "the inner level is an NVLink domain")


def _local(draft: Draft) -> int:
    most = min(draft.domain_gpus, draft.num_gpus)
    return next(size for size in range(most, 0, -1) if draft.num_gpus % size == 0)


def strategies_of_transformers(draft: Draft) -> None:
    """A transformer's strategy as degrees: ``tp.ddp`` is tensor parallelism of a node.

    Embedding and head go with the layers.  InputError for words that no degrees say, with the nearest.
    """
    strategy = draft.parallel.strategy
    if not isinstance(draft.model, ModelSpec) or not strategy.is_said:
        return
    words = strategy.words("transformer") or strategy.words("dense") or ("ddp", "ddp")
    experts = strategy.words("expert")
    local = strategy.local or _local(draft)
    sizes = (local, draft.num_gpus // local)
    draft.assume("parallel.strategy", StrategySpec(), "said as degrees")
    if draft.num_gpus % local:
        raise InputError(
            f"strategy.local={local} does not divide {draft.num_gpus} GPUs; nearest: {_local(draft)}"
        )
    for key, value in (_degrees(draft, words, sizes) | _of_experts(experts, sizes)).items():
        if draft.is_said(key):
            raise InputError(
                f"{draft.where}: {key} and strategy.transformer={'.'.join(words)} both say who shares what;"
                f" nearest: without {key}"
            )
        draft.assume(key, value, _SAID)


def _degrees(draft: Draft, words: tuple[Word, Word], sizes: tuple[int, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    tp = 1
    for word, size in zip(words, sizes, strict=True):
        tp *= size if word == "tp" else 1
    if tp > 1:
        found["parallel.tp"] = tp
    if words[1] == "tp" and words[0] != "tp" and sizes[0] > 1:
        found["parallel.order"] = "dp-cp-ep-tp-pp"
    others = [word for word, size in zip(words, sizes, strict=True) if word != "tp" and size > 1]
    if others == ["ddp", "fsdp"]:
        raise InputError("strategy.transformer=ddp.fsdp: shards lie on neighbours; nearest: fsdp.ddp")
    if "fsdp" in others:
        found["training.sharding"] = "fsdp2"
    elif not draft.is_said("training.sharding"):
        found["training.sharding"] = "ddp"
    if others == ["fsdp", "ddp"]:
        found["parallel.dp_shard"] = sizes[0]
    return found


def _of_experts(words: tuple[Word, Word] | None, sizes: tuple[int, int]) -> dict[str, Any]:
    """Experts of their own on ranks of a level; what else is said of them goes with the layers."""
    if words is None or "mp" not in words:
        return {}
    if words[0] != "mp" and sizes[0] > 1:
        raise InputError(
            f"strategy.expert={'.'.join(words)}: owners of experts are neighbours; nearest: mp.ddp"
        )
    return {"parallel.ep": sizes[0] * (sizes[1] if words[1] == "mp" else 1)}


def what_goes_with_shards(draft: Draft) -> None:
    """Shards are gathered in what is multiplied; layers whose gradients leave one by one are not put off."""
    if not draft.parallel.strategy.has_levels:
        return
    training = draft.training
    wide = training.precision in ("fp32", "tf32") or draft.software.autocast
    dtype = "fp32" if wide else "bf16" if training.precision == "fp8" else training.precision
    if not draft.is_set("training.param_gather_dtype"):
        draft.assume("training.param_gather_dtype", dtype, f"products are in {training.precision}")
    if draft.software.weight_gradients_late and not draft.is_said("software.weight_gradients_late"):
        draft.assume(
            "software.weight_gradients_late",
            False,
            "classes with strategies reduce layer by layer",
        )
