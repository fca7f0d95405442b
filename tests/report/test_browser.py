"""The page in a real browser: no errors, the right pass under the pointer, keys, wide and narrow, dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simcore.apps.main import app
from tests.report.browser import axe_source, browser, opened_page

_YAML = """
model: {layers: 8, hidden: 512, heads: 8, ffn: 1024, vocab: 4096}
cluster: h100-8
parallel: {tp: 2, pp: 2, virtual_stages: 2}
training: {seq: 512, micro_batch: 1, global_batch: 32, recompute: full}
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def report(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    (folder / "job.yaml").write_text(_YAML)
    words = ["run-sim", str(folder / "job.yaml"), "--no-perfetto", "--tornado", "--out", str(folder / "run")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return folder / "run" / "report.html"


def hovered(page: Any, row: int, at: int) -> str:
    """What is told of a pass that the pointer is on."""
    page.locator("#lanes").scroll_into_view_if_needed()
    where = page.evaluate(f"window.page.pipelines[0].where({row}, {at})")
    box = page.locator("#lanes canvas").bounding_box()
    page.mouse.move(box["x"] + where[0], box["y"] + where[1])
    page.wait_for_function("!document.querySelector('#tip').hidden")
    told: str = page.locator("#tip").inner_text()
    return told


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)])
def test_nothing_is_wrong_wide_and_narrow_light_and_dark(
    chromium: Any, report: Path, width: int, dark: bool
) -> None:
    with opened_page(chromium, report, width=width, dark=dark) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(255, 255, 255)") != dark
        # Something is drawn: the canvas has pixels of forwards and of backwards.
        colours = page.evaluate(
            """() => { const c = document.querySelector('#lanes canvas');
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; const seen = {};
            for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 250) seen[[d[i], d[i + 1], d[i + 2]]] = 1;
            return Object.keys(seen); }"""
        )
        wanted = {"#4477aa", "#cc6677"} if not dark else {"#6ca0d8", "#e08a99"}
        assert {f"{int(h[1:3], 16)},{int(h[3:5], 16)},{int(h[5:7], 16)}" for h in wanted} <= set(colours)
        assert page.locator("#memory-chart canvas").count() == 1
        assert page.locator("#roofline-chart canvas").count() == 1


def test_the_pointer_finds_the_right_pass(chromium: Any, report: Path) -> None:
    with opened_page(chromium, report) as page:
        rows = page.evaluate("window.page.data.pipeline.rows")
        names = {"fwd": "forward", "bwd": "backward", "recompute": "recompute"}
        for view in ("first", "steady", "last"):
            page.click(f"button[data-view={view}]")
            page.wait_for_timeout(100)
            low, high = page.evaluate("window.page.pipelines[0].view()")
            for number, row in enumerate(rows):
                compute, at, tried = row["compute"], 0, 0
                for index, (step, long) in enumerate(zip(compute["start"], compute["long"], strict=True)):
                    at += step
                    wide = long > (high - low) / 100
                    if not (low < at and at + long < high and wide and tried < 3):
                        continue
                    tried += 1
                    told = hovered(page, number, index)
                    kind = compute["kinds"][compute["kind"][index]]
                    assert told.startswith(f"{names.get(kind, kind)}, microbatch {compute['mb'][index]}")
                    assert f"stage {row['stage']}, rank {row['rank']}" in told
                    if compute["first"][index] != compute["last"][index]:
                        assert f"layers {compute['first'][index]} to {compute['last'][index]}" in told
                    if compute["gap"][index] > 0:
                        assert f"waited for {row['reasons'][compute['why'][index]]}" in told
        page.click("button[data-view=first]")
        page.wait_for_timeout(100)
        assert "waited for" in hovered(page, 1, 0)


def test_numbers_on_the_page_are_those_of_run_json(chromium: Any, report: Path) -> None:
    shown = json.loads(CliRunner().invoke(app, ["report", str(report.parent), "--json"]).stdout)
    with opened_page(chromium, report) as page:
        for key in ("step_time_s", "tokens_per_s", "mfu", "peak_memory_bytes"):
            assert float(page.get_attribute(f"[data-key={key}]", "data-v")) == shown[key]
        total = page.evaluate(
            "Object.values(window.page.data.waterfall).reduce((sum, ps) => sum + BigInt(ps), 0n) =="
            " BigInt(window.page.data.step_ps) * BigInt(window.page.data.num_ranks)"
        )
        assert total is True


def test_keys_go_from_pass_to_pass_and_are_read_out(chromium: Any, report: Path) -> None:
    with opened_page(chromium, report) as page:
        page.focus("#lanes canvas")
        page.keyboard.press("n")
        assert page.locator("#said").text_content().startswith("forward, microbatch 0")
        page.keyboard.press("n")
        assert page.locator("#said").text_content().startswith("forward, microbatch 1")
        page.keyboard.press("ArrowDown")
        assert "stage 1" in page.locator("#said").text_content()
        before = page.evaluate("window.page.pipelines[0].view()")
        page.keyboard.press("+")
        closer = page.evaluate("window.page.pipelines[0].view()")
        assert closer[1] - closer[0] < 0.7 * (before[1] - before[0])
        page.keyboard.press("ArrowRight")
        assert page.evaluate("window.page.pipelines[0].view()")[0] > closer[0]
        page.keyboard.press("Escape")
        assert page.evaluate("window.page.pipelines[0].view()")[0] == 0


def test_tables_sort_and_the_peak_opens(chromium: Any, report: Path) -> None:
    with opened_page(chromium, report) as page:
        head = page.locator("#kernels table.sortable").first.locator("thead th")
        numbers = "table => [...table.tBodies[0].rows].map(row => Number(row.cells[1].dataset.v))"
        head.nth(1).locator("button").click()
        calls = page.locator("#kernels table.sortable").first.evaluate(numbers)
        assert calls == sorted(calls, reverse=True)
        assert head.nth(1).get_attribute("aria-sort") == "descending"
        head.nth(1).locator("button").click()
        assert page.locator("#kernels table.sortable").first.evaluate(numbers) == sorted(calls)
        assert page.locator("#peak-1").get_attribute("open") is None
        page.select_option("#stage", "1")
        page.click("#peak")
        assert page.locator("#peak-1").get_attribute("open") is not None


def test_a_screen_reader_can_use_it(chromium: Any, report: Path) -> None:
    source = axe_source()
    for dark in (False, True):
        with opened_page(chromium, report, dark=dark) as page:
            page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            page.evaluate(source)
            found = page.evaluate("axe.run()")["violations"]
            assert [(one["id"], one["nodes"][0]["html"][:120]) for one in found] == []


def test_it_prints(chromium: Any, report: Path, tmp_path: Path) -> None:
    with opened_page(chromium, report) as page:
        page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_paper_is_white_also_where_screens_are_dark(chromium: Any, report: Path) -> None:
    state = """() => [document.querySelector('#lanes canvas').toDataURL(),
        getComputedStyle(document.body).backgroundColor,
        [...document.querySelectorAll('#assumed details')].every((one) => one.open)]"""
    with opened_page(chromium, report) as page:
        light, _, opened = page.evaluate(state)
        assert not opened
    with opened_page(chromium, report, dark=True) as page:
        dark = page.evaluate(state)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.evaluate(state) == [light, "rgb(255, 255, 255)", True]
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(state) == dark
        assert dark[0] != light and not dark[2]


def test_two_runs_side_by_side(chromium: Any, report: Path, tmp_path: Path) -> None:
    runner, folder = CliRunner(), report.parent
    again = ["run-sim", str(folder.parent / "job.yaml"), "--no-perfetto", "--no-report", "--set"]
    assert runner.invoke(app, [*again, "gpu.clock=0.9", "--out", str(tmp_path / "b")]).exit_code == 0
    words = ["compare", str(folder), str(tmp_path / "b"), "--html", str(tmp_path / "both.html")]
    assert runner.invoke(app, words).exit_code == 0
    with opened_page(chromium, tmp_path / "both.html") as page:
        assert page.evaluate("window.page.pipelines.length") == 2
        assert "times the speed of A" in page.locator("#answer").inner_text()
