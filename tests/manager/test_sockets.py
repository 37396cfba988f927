"""Binding the public sockets."""

from __future__ import annotations

import os
import pathlib
import socket
import stat

import pytest

from sessionworkers.errors import StartupError
from sessionworkers.manager.sockets import bind


def test_a_free_port_is_named_and_inherited() -> None:
    listening = bind(host="127.0.0.1", port=0, uds=None, fd=None, tls=False)
    (sock,) = listening.sockets
    assert listening.address == f"http://127.0.0.1:{sock.getsockname()[1]}"
    assert sock.getsockname()[1] and sock.get_inheritable()
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    assert not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)  # refused, not left waiting, until one serves
    listening.close()


def test_a_name_is_bound_with_all_its_addresses_on_one_port() -> None:
    listening = bind(host="localhost", port=0, uds=None, fd=None, tls=True)
    assert {sock.getsockname()[1] for sock in listening.sockets} == {listening.sockets[0].getsockname()[1]}
    assert listening.address.startswith("https://localhost:")
    listening.close()


@pytest.mark.parametrize("host", ["", "0.0.0.0"])
def test_all_interfaces(host: str) -> None:
    listening = bind(host=host, port=0, uds=None, fd=None, tls=False)
    assert listening.address.startswith("http://0.0.0.0:")
    assert "0.0.0.0" in {sock.getsockname()[0] for sock in listening.sockets}
    listening.close()


def test_ipv6() -> None:
    try:
        listening = bind(host="::1", port=0, uds=None, fd=None, tls=False)
    except StartupError:
        pytest.skip("no IPv6 here")
    assert listening.sockets[0].family == socket.AF_INET6
    assert listening.address.startswith("http://[::1]:")
    listening.close()


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=f"127.0.0.1:{port}: Address already in use"):
            bind(host="127.0.0.1", port=port, uds=None, fd=None, tls=False)


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_an_inherited_socket_of_any_family(family: socket.AddressFamily, tmp_path: pathlib.Path) -> None:
    with socket.socket(family) as given:
        given.bind(str(tmp_path / "s") if family == socket.AF_UNIX else ("127.0.0.1", 0))
        listening = bind(host=None, port=0, uds=None, fd=os.dup(given.fileno()), tls=False)
        assert listening.sockets[0].family == family
        assert listening.sockets[0].getsockname() == given.getsockname()
        listening.close()


def test_a_descriptor_that_is_no_socket() -> None:
    read, write = os.pipe()
    with pytest.raises(StartupError, match=f"cannot listen on fd {read}: "):
        bind(host=None, port=0, uds=None, fd=read, tls=False)
    os.close(read)
    os.close(write)


class TestSocketFile:
    def test_open_to_all_and_removed(self, tmp_path: pathlib.Path) -> None:
        path = tmp_path / "s"
        listening = bind(host=None, port=0, uds=str(path), fd=None, tls=False)
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        assert listening.address == f"unix socket {path}"
        listening.close()
        assert not path.exists()

    def test_a_dead_servers_is_replaced_a_live_ones_is_not(self, tmp_path: pathlib.Path) -> None:
        path = str(tmp_path / "s")
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(path)
        with socket.socket(socket.AF_UNIX) as live:
            bind(host=None, port=0, uds=path, fd=None, tls=False).close()
            live.bind(path)
            live.listen()
            with pytest.raises(StartupError, match="Address already in use"):
                bind(host=None, port=0, uds=path, fd=None, tls=False)
            assert os.path.exists(path)

    def test_another_servers_file_is_not_removed(self, tmp_path: pathlib.Path) -> None:
        path = tmp_path / "s"
        listening = bind(host=None, port=0, uds=str(path), fd=None, tls=False)
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            listening.close()
            assert path.exists()

    def test_a_file_that_is_no_socket_stays(self, tmp_path: pathlib.Path) -> None:
        path = tmp_path / "s"
        path.write_text("precious")
        with pytest.raises(StartupError):
            bind(host=None, port=0, uds=str(path), fd=None, tls=False)
        assert path.read_text() == "precious"
