"""Rows of recommendation models as descriptions: a model by its name, or by what the columns say of it."""

from __future__ import annotations

import re
from typing import Any, Final

from simcore.errors import InputError
from workloads.jobs.presets import Preset
from workloads.jobs.published.row import RunRow
from workloads.models.zoo import listed_model
from workloads.models.zoo.recommenders import POPULARITY, recommender, wide_and_deep

#: What a table says of where embeddings lie, and the strategy and placement that it means; the first counts.
_PLACEMENTS: Final = (
    (r"replica|data.?parallel$|single|^ddp", "ddp", "auto"),
    (r"\bauto\b", "mp", "auto"),
    (r"grid", "mp", "grid_shard"),
    (r"column", "mp", "column_wise"),
    (r"(table|node).{0,3}row", "mp", "table_row_wise"),
    (r"row.?wise", "mp", "row_wise"),
    (r"whole tables|table.?wise", "mp", "table_wise"),
    (r"", "mp", "auto"),
)
#: User-item pairs of a sample of MLPerf inference, on average (its load generator draws 100 to 700).
PAIRS: Final = 270
#: Pairs that a GPU takes at once where a row does not say it: what NVIDIA's submissions of MLPerf inference
#: v4.1 have (gpu_batch_size of dlrm-v2).
_PAIRS_AT_ONCE: Final = 51_200


def is_recommender(row: RunRow) -> bool:
    """Whether a row is of a model with tables."""
    return row.says("num_tables") or row.says("lookups_per_sample") or _named(row) is not None


def _named(row: RunRow) -> str | None:
    name = row.text("model")
    model = listed_model(name)
    tables = model is not None and any(block.block == "tables" for block in model.blocks)
    return name if tables else None


def recommender_words(row: RunRow, preset: Preset) -> dict[str, dict[str, Any]]:
    """Model, strategy and batch of a row.  InputError for tables that it does not tell."""
    gpus = row.count("gpus")
    lie = re.search(r"embeddings?:\s*([^;]*)", row.text("strategy"), re.IGNORECASE)
    said = (lie[1] if lie else row.text("strategy")).strip()
    embedding, tables = next(
        (word, how) for pattern, word, how in _PLACEMENTS if re.search(pattern, said, re.IGNORECASE)
    )
    strategy = {"embedding": embedding, "tables": tables}
    usual = preset.values("parallel").get("strategy")
    if tables == "auto" and embedding == "mp" and usual:
        strategy = dict(usual)
    training: dict[str, Any] = {"micro_batch": samples_at_once(row)}
    training["global_batch"] = training["micro_batch"] * gpus
    if row.says("optimizer"):
        training["optimizer"] = _optimizer(row.text("optimizer"), preset)
    return {
        "model": _model(row),
        "parallel": {"dp": gpus, "strategy": strategy},
        "training": training, "software": {},
    }  # fmt: skip


def samples_at_once(row: RunRow) -> int:
    """Samples of one batch on a GPU."""
    gpus = row.count("gpus")
    for column, ways in (("local_batch", 1), ("batch_per_gpu", 1), ("global_batch", gpus)):
        if row.says(column):
            return max(1, int(row.number(column)) // ways)
    return _PAIRS_AT_ONCE if counts_queries(row) else 65_536 // gpus


def counts_queries(row: RunRow) -> bool:
    """Whether a sample of the row is a query of several pairs (MLPerf inference)."""
    said = f"{row.text('samples_per_query_note')} {row.text('source_repo_or_paper')}"
    return re.search(r"pairs|inference_results", said) is not None


def _optimizer(said: str, preset: Preset) -> str:
    for name in ("rowwise_adagrad", "adagrad", "adam", "lars", "momentum", "sgd"):
        if name.replace("_", "") in said.lower().replace("-", "").replace("_", ""):
            return name
    return str(preset.values("training").get("optimizer", "sgd"))


def _model(row: RunRow) -> dict[str, Any]:
    widths = row.text("dense_mlp")
    name = _named(row)
    if name is not None and re.search(r"wide", name, re.IGNORECASE):
        return {"name": name, "blocks": wide_and_deep(_widths(widths) or (1024,) * 5)}
    if name is not None:
        narrow = re.search("int8", row.text("precision")) is not None
        return _with_rows(name, "int8") if narrow else {"model": name}
    return {"name": row.text("model"), "blocks": _by_columns(row)}


def _with_rows(name: str, dtype: str) -> dict[str, Any]:
    """A model by name, its tables in another dtype."""
    model = listed_model(name)
    assert model is not None
    blocks = [block.model_dump(exclude_unset=True) for block in model.blocks]
    return {
        "name": name,
        "blocks": [{**one, "dtype": dtype} if one["block"] == "tables" else one for one in blocks],
    }


def _by_columns(row: RunRow) -> list[Any]:
    """Tables alike of the sizes that columns give."""
    count = row.count("num_tables", 0) if row.says("num_tables") else 0
    if not count:
        raise InputError(f"{row.id}: {row.text('model')!r} is not known by name, and num_tables is empty")
    dim = row.count("embedding_dim", 128)
    rows = max(1, round(row.number("embedding_params_b", count * 1e6 * dim / 1e9) * 1e9 / (count * dim)))
    lookups = row.number("lookups_per_sample", count) / count
    tables = [{"rows": rows, "dim": dim, "pooling": lookups, "count": count}]
    said = row.text("dense_mlp")
    bottom, _, top = said.partition("top")
    inside, outside = _widths(bottom), _widths(top)
    if not outside:
        inside, outside = (), _widths(said) or (1024, 1024, 512, 256)
    dense = inside[0] if inside else 13
    hidden = list(inside[1:]) or [512, 256, dim]
    how = row.text("interaction").lower()
    if re.search("cross|dcn", how):
        layers, rank = re.search(r"(\d+)\s*layer", how), re.search(r"rank\s*(\d+)", how)
        between: list[Any] = [
            {
                "block": "cross",
                "layers": int(layers[1]) if layers else 3,
                "rank": int(rank[1]) if rank else 512,
            }
        ]
    elif "dot" in how or not how:
        between, hidden[-1] = [{"block": "dot", "pad": 8}], dim
    else:
        between = [{"block": "concat"}]
    return recommender(
        tables, bottom=hidden, top=[width for width in outside[1:] if width > 1] or [1024, 512, 256],
        dense=dense, interaction=between, popularity=POPULARITY,
    )  # fmt: skip


def _widths(text: str) -> tuple[int, ...]:
    """Widths of "1024x5" or "13-512-256"."""
    times = re.search(r"(\d+)\s*x\s*(\d+)", text)
    if times:
        return (int(times[1]),) * int(times[2])
    found = re.search(r"\d+(?:-\d+)+", text)
    return tuple(int(part) for part in found[0].split("-")) if found else ()
