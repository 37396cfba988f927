"""Under TLS no connection moves: raw frames and tunnels carry everything, and the app sees https and wss."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from tests.raw.servers import Pair, pair


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def secure(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    folder: Path = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*command, "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    with pair("handover", request.param, ssl_keyfile=str(key), ssl_certfile=str(cert)) as found:
        yield found


def test_requests(secure: Pair) -> None:
    with secure.client(0) as client:
        for number in range(6):
            found = client.ask("/", secure.sids[1], "POST", body=b"x" * 10**number).json
            assert (found["worker"], found["scheme"], found["size"]) == ("1", "https", 10**number)
            assert found["client"] == ["127.0.0.1", client.port]
        reply = client.ask("/big?n=2000000", secure.sids[1])
        assert reply.whole and len(reply.body) == 2_000_000


def test_websockets(secure: Pair) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    async def main() -> None:
        async with connect(
            f"wss://127.0.0.1:{secure.doors[0]}/ws", additional_headers={"x-session": secure.sids[1]}, ssl=context
        ) as ws:
            worker, _, client, scheme = json.loads(await ws.recv())
            assert (worker, client, scheme) == ("1", list(ws.local_address), "wss")
            await ws.send("x" * 500_000)
            assert len(await ws.recv()) == 500_000

    asyncio.run(main())
