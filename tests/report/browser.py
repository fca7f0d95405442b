"""A real browser for pages: headless Chromium, started so that it asks nobody for anything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: Nothing in the background, no sandbox (tests may run as root), no graphics card.
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-default-apps", "--disable-dev-shm-usage",
)  # fmt: skip
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_AXE = Path(__file__).parents[2] / ".venv/axe-core/axe.min.js"


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium; skips where it or playwright is not there (`make browser` gets both)."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: make browser")
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip("no Chromium: make browser")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def opened_page(opened: Any, path: Path, *, dark: bool = False, width: int = 1280) -> Iterator[Any]:
    """A page from the disk, drawn; it fails what says anything on the console or asks for another address."""
    said: list[str] = []
    context = opened.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", offline=True
    )
    page = context.new_page()
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("requestfailed", lambda request: said.append(f"asked for {request.url}"))
    page.goto(path.resolve().as_uri())
    page.wait_for_function("window.page && window.page.ready")
    yield page
    assert said == []
    context.close()


def axe_source() -> str:
    """axe-core's script; skips where it was not fetched."""
    if not _AXE.is_file():
        pytest.skip("no axe-core: make browser")
    return _AXE.read_text(encoding="utf-8")
