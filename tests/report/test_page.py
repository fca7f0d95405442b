"""The page of a run: whole, small, and with the numbers of the run."""

from __future__ import annotations

import base64
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from simcore.timeline import RunInfo

SMALL = """
model: {layers: 4, hidden: 256, heads: 4, ffn: 512, vocab: 1024}
cluster: h100-8
parallel: {tp: 2, pp: 2}
training: {seq: 256, micro_batch: 1, global_batch: 16}
"""
_VOID = ("meta", "link", "br", "input", "hr", "img")


class Page(HTMLParser):
    """What a page holds: its sections, ids, texts, the addresses that it names; its markup must be whole."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sections: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.values: dict[str, float] = {}
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "section":
            self.sections.append(str(named["id"]))
        self.ids += [str(named["id"])] if "id" in named else []
        self.addresses += [str(named[key]) for key in ("href", "src") if key in named]
        if "data-key" in named:
            self.values[str(named["data-key"])] = float(str(named["data-v"]))

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["script"], ["style"]):
            self.text += data


def data_of(text: str) -> dict[str, Any]:
    """What the page's script draws."""
    packed = re.search(r'id="data">([^<]*)<', text)
    assert packed is not None
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed[1])))
    return found


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its page, and with what other hardware would change."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "small.yaml").write_text(SMALL)
    run("run-sim", folder / "small.yaml", "--no-perfetto", "--tornado", "--out", folder / "run")
    return folder / "run"


def test_it_is_one_file_of_whole_markup_that_asks_nobody(small: Path) -> None:
    text = (small / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.sections == [
        "answer", "assumed", "pipeline", "waterfall", "memory", "tornado", "kernels", "links", "path",
    ]  # fmt: skip
    assert len(page.ids) == len(set(page.ids))
    assert page.addresses == ["data:,"]
    assert not re.search(r"https?://(?!www\.w3\.org)", re.sub(r"<script>.*?</script>", "", text, flags=re.S))
    assert "MIT" in text and "Leon Sorokin" in text  # the licence of what draws
    assert len(text.encode()) < 500_000


def test_its_numbers_are_those_of_the_run(small: Path) -> None:
    text = (small / "report.html").read_text(encoding="utf-8")
    page, data = Page(text), data_of(text)
    found = json.loads(run("report", small, "--json"))
    info = RunInfo.read(small)
    for key, value in page.values.items():
        assert value == found[key], key
    assert {"step_time_s", "tokens_per_s", "mfu", "peak_memory_bytes"} == set(page.values)
    assert data["numbers"] == {
        key: value for key, value in found.items() if key not in ("wall_s", "timeline")
    }
    assert int(data["step_ps"]) * data["num_ranks"] == sum(map(int, data["waterfall"].values()))
    assert int(data["step_ps"]) == info.step_ps
    for one in info.assumed:
        assert one.why in page.text
    for line in (*info.warnings, *info.assumptions, info.memory_verdict, info.asked):
        assert line in page.text, line
    assert all(f"{one.what}, 10% less" in page.text for one in info.tornado)


def test_its_pictures_are_those_of_the_timeline(small: Path) -> None:
    data = data_of((small / "report.html").read_text(encoding="utf-8"))
    chart = data["pipeline"]
    assert [row["stage"] for row in chart["rows"]] == [0, 1]
    assert chart["lanes"] == ["tensor", "pipeline", "data", "other"]
    for row in chart["rows"]:
        compute = row["compute"]
        forwards = {
            mb
            for mb, kind in zip(compute["mb"], compute["kind"], strict=True)
            if compute["kinds"][kind] == "fwd"
        }
        assert forwards >= set(range(8))  # 16 samples on two replicas
        assert sum(compute["start"]) + compute["long"][-1] <= chart["ticks"] + 1
    stages = {one["stage"]: one for one in data["memory"]}
    info = RunInfo.read(small)
    for peak in info.memory_peaks:
        curve = stages[peak.stage]
        highest = max(map(sum, zip(*curve["gib"], strict=True)))
        assert highest == pytest.approx(peak.num_bytes / 2**30, abs=2e-3)
        assert curve["peak_s"] == pytest.approx(peak.time_ps / 1e12)
        assert sum(one.num_bytes for one in peak.largest) <= peak.num_bytes
    assert data["roofline"]["peak"] == info.peak_flops_per_s


def test_memory_of_a_step_comes_and_goes_with_its_passes(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(SMALL.replace("pp: 2", "pp: 1").replace("layers: 4", "layers: 24"))
    run("run-sim", tmp_path / "one.yaml", "--no-perfetto", "--out", tmp_path / "run")
    data = data_of((tmp_path / "run/report.html").read_text(encoding="utf-8"))
    (curve,), row = data["memory"], data["pipeline"]["rows"][0]["compute"]
    live = dict(zip(curve["categories"], curve["gib"], strict=True))["activations"]
    passes: list[tuple[int, str, float, float]] = []
    at = 0
    for step, long, mb, kind in zip(row["start"], row["long"], row["mb"], row["kind"], strict=True):
        at += step
        tick = data["pipeline"]["tick_s"]
        passes.append((mb, row["kinds"][kind], at * tick, (at + long) * tick))
    # 16 samples on four replicas: each microbatch's activations are highest where its forward ends, and gone
    # where its backward ends, in each of them alike.
    highest, lowest = [], []
    for number in range(4):
        (begin,) = [one[2] for one in passes if one[:2] == (number, "fwd")]
        end = max(one[3] for one in passes if one[:2] == (number, "bwd"))
        (middle,) = [one[3] for one in passes if one[:2] == (number, "fwd")]
        inside = [(s, held) for s, held in zip(curve["s"], live, strict=True) if begin <= s <= end]
        most_at, most = max(inside, key=lambda one: one[1])
        assert abs(most_at - middle) < 0.1 * (end - begin)
        highest.append(most)
        lowest.append(inside[-1][1])
    assert max(highest) < 1.1 * min(highest)
    assert max(lowest) < 0.2 * min(highest)


def test_a_page_can_be_had_later_and_left_out(small: Path, tmp_path: Path) -> None:
    run("report", small, "--html", tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == (small / "report.html").read_bytes()
    run("run-sim", small.parent / "small.yaml", "--no-perfetto", "--no-report", "--out", tmp_path / "bare")
    assert not (tmp_path / "bare" / "report.html").exists()


def test_a_run_without_model_or_memory_has_a_page(two_stage_run: Path, tmp_path: Path) -> None:
    run("report", two_stage_run, "--html", tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "300 ns" in page.text and "pipeline bubble" in page.text
    assert "memory" in page.sections


def test_two_runs_side_by_side_explain_their_difference(small: Path, tmp_path: Path) -> None:
    yaml = small.parent / "small.yaml"
    run(
        "run-sim",
        yaml,
        "--no-perfetto",
        "--no-report",
        "--set",
        "training.global_batch=32",
        "--out",
        tmp_path / "b",
    )
    said = json.loads(run("compare", small, tmp_path / "b", "--json", "--html", tmp_path / "both.html"))
    text = (tmp_path / "both.html").read_text(encoding="utf-8")
    page, data = Page(text), data_of(text)
    assert page.sections == ["answer", "inputs", "waterfall", "kernels", "pipeline", "pipeline-b"]
    for line in said["verdict"]:
        assert line in page.text
    assert data["comparison"] == said
    assert "training.global_batch" in page.text


def test_names_from_files_are_no_markup(tmp_path: Path) -> None:
    from simcore.graph import GraphBuilder, save_graph

    build = GraphBuilder(1, name="<script>alert(1)</script>")
    template = build.template("fwd")
    template.compute("<img src=x onerror=alert(2)>", recorded_ps=10**9)
    build.program([0], [(template, 0, 0)])
    save_graph(build.build(), tmp_path / "graph")
    run("run-sim", tmp_path / "graph", "--no-perfetto", "--out", tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<script>alert(1)" not in text and "<img" not in text
    assert "<img src=x onerror=alert(2)>" in Page(text).text
