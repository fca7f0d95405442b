"""A run's page served: to this machine, two addresses, and a trace that Perfetto's viewer may open."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from simcore.apps.run.serving import serve
from simcore.errors import InputError


def test_a_page_and_a_trace_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "perfetto.json.gz"
    trace.write_bytes(b"a trace")
    (tmp_path / "secret").write_text("mine")
    got: dict[str, object] = {}

    def ask(server: ThreadingHTTPServer) -> None:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name, path, host in (
            ("page", "/", None), ("trace", "/trace.json.gz", None), ("other", "/secret", None),
            ("up", "/../secret", None), ("foreign", "/", "evil.example"),
        ):  # fmt: skip
            address = f"http://127.0.0.1:{server.server_port}{path}"
            request = urllib.request.Request(address, headers={"Host": host} if host else {})
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    got[name] = (answer.read(), answer.headers["Access-Control-Allow-Origin"])
            except urllib.error.HTTPError as error:
                got[name] = error.code
        server.shutdown()

    serve("<main>the page</main>", trace, 0, once=ask)
    page, _ = got["page"]  # type: ignore[misc]
    assert (
        b"the page" in page
        and b"cannot reach https://ui.perfetto.dev" in page
        and str(trace).encode() in page
    )
    assert got["trace"] == (b"a trace", "https://ui.perfetto.dev")
    assert (got["other"], got["up"], got["foreign"]) == (404, 404, 403)
    said = capsys.readouterr().err
    assert "to this machine" in said and "9001 only" in said


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    def again(server: ThreadingHTTPServer) -> None:
        with pytest.raises(InputError, match=f"port {server.server_port} of 127.0.0.1"):
            serve("", tmp_path / "x", server.server_port)

    serve("", tmp_path / "x", 0, once=again)
