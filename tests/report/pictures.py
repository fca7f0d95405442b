"""README's pictures, drawn again: ``python -m tests.report.pictures RUN_DIR``, that of ``make run``.

Needs what ``make browser`` gets.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from simcore.analysis import analyse
from simcore.report.page import write_page
from simcore.timeline import Timeline
from tests.report.browser import browser, opened_page

IMAGES = Path(__file__).parents[2] / "docs/images"
_MARGIN = 14


def _kept(page: Any, section: str, name: str) -> None:
    """A section with a margin."""
    box = page.locator(section).bounding_box()
    clip = {
        "x": box["x"] - _MARGIN, "y": box["y"] + page.evaluate("scrollY") + 2,
        "width": box["width"] + 2 * _MARGIN, "height": box["height"] + _MARGIN,
    }  # fmt: skip
    page.screenshot(path=IMAGES / name, clip=clip, full_page=True)


def main(run: Path) -> None:
    """Of the run's folder."""
    timeline = Timeline.open(run)
    path = IMAGES / "page.html"
    write_page(timeline, analyse(timeline), path)
    try:
        with browser() as opened, opened_page(opened, path, width=1100) as page:
            _kept(page, "#waterfall", "report-waterfall.png")
            page.click("button[data-view=first]")
            page.wait_for_timeout(200)
            chart = page.evaluate("window.page.data.pipeline.rows[4].compute")
            at = next(
                number
                for number, (mb, long) in enumerate(zip(chart["mb"], chart["long"], strict=True))
                if mb == 2 and long > max(chart["long"]) / 3
            )
            x, y = page.evaluate(f"window.page.pipelines[0].where(4, {at})")
            box = page.locator("#lanes canvas").bounding_box()
            page.mouse.move(box["x"] + x, box["y"] + y)
            page.wait_for_timeout(200)
            _kept(page, "#pipeline", "report-pipeline.png")
    finally:
        path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
