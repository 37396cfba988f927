"""Stand-in for the platform's control plane, on 127.0.0.1: what the real client asks for before it talks to a worker.

======================  ==============================================================
GET /ca.cer             a root certificate that the client loads
GET /api/v0/endptjobs/  the endpoints (``client.get_endpoint(name)``)
POST /route/            which worker to use, and the grant (``auth_data``)
======================  ==============================================================
"""

from __future__ import annotations

import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Control:
    """``worker``: the URL that grants name; ``ca``: PEM. ``routes`` counts the /route/ requests."""

    def __init__(self, worker: str, ca: bytes) -> None:
        self.routes = 0
        numbers = itertools.count(1)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def reply(self, body: bytes, kind: str = "application/json") -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                if self.path.startswith("/ca.cer"):
                    self.reply(ca, "application/x-x509-ca-cert")
                    return
                endpoint = {"id": 1, "endpoint_name": "local", "api_key": "key", "user_id": 1, "created_at": 0.0}
                self.reply(json.dumps({"results": [endpoint]}).encode())

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
                answer: dict[str, Any] = {}
                if self.path.startswith("/route/"):
                    outer.routes += 1
                    number = next(numbers)
                    answer = {
                        "url": worker,
                        "endpoint": "local",
                        "cost": body.get("cost", 0),
                        "reqnum": number,
                        "request_idx": body.get("request_idx") or number,
                        "signature": "unsigned",
                    }
                self.reply(json.dumps(answer).encode())

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
