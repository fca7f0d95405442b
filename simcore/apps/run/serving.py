"""``report --serve``: a run's page on this machine alone, with its trace for Perfetto's own viewer."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from simcore.apps.progress import say
from simcore.errors import InputError

#: The one port from which ui.perfetto.dev may open a trace (its content security policy).
PORT: Final = 9001
_HOST: Final = "127.0.0.1"
_VIEWER: Final = "https://ui.perfetto.dev"
_TRACE: Final = "/trace.json.gz"
_BAR: Final = """<section id="perfetto"><h2>Perfetto</h2>
<p id="reach">Looking for {viewer} ...</p></section><script>
fetch("{viewer}/", {{ mode: "no-cors" }}).then(() => {{
  const link = document.createElement("a");
  link.href = "{viewer}/#!/?url=http://{host}:{port}{trace}";
  link.textContent = "Open the trace in Perfetto's viewer";
  document.getElementById("reach").replaceChildren(link);
}}, () => {{
  document.getElementById("reach").textContent = "This browser cannot reach {viewer}: open " + {file!r} +
    " there from a machine that can; everything else on this page needs no network.";
}});
</script>"""


def serve(
    page: str, trace: Path, port: int, *, once: Callable[[ThreadingHTTPServer], None] | None = None
) -> None:
    """Serve a page (HTML) and a trace until interrupted.  InputError where the port is taken.

    ``once``: called with the server in place of waiting, for tests.
    """
    bar = _BAR.format(viewer=_VIEWER, host=_HOST, port=port, trace=_TRACE, file=str(trace))
    text = page.replace("</main>", f"{bar}</main>", 1).encode()
    try:
        server = ThreadingHTTPServer((_HOST, port), _handler(text, trace))
    except OSError as error:
        raise InputError(f"port {port} of {_HOST}: {error.strerror}; another one: --port") from None
    with server:
        say(f"serving http://{_HOST}:{server.server_port}/ to this machine, until Ctrl-C")
        if port != PORT:
            say(f"Perfetto's viewer opens traces from port {PORT} only: without --port it would")
        try:
            (once or ThreadingHTTPServer.serve_forever)(server)
        except KeyboardInterrupt:
            say("stopped")


def _handler(page: bytes, trace: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Two addresses, and nothing else; to nobody who came by another name."""

        def do_GET(self) -> None:
            host = self.headers.get("Host", "").partition(":")[0]
            if host not in (_HOST, "localhost"):
                self.send_error(403)
            elif self.path.split("?")[0] in ("/", "/report.html"):
                self._answer(page, "text/html; charset=utf-8")
            elif self.path.split("?")[0] == _TRACE:
                self._answer(trace.read_bytes(), "application/gzip")
            else:
                self.send_error(404)

        def _answer(self, content: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Access-Control-Allow-Origin", _VIEWER)
            self.send_header("Cache-Control", "no-cache")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing of requests."""

    return Handler
