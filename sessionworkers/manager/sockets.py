"""The public sockets: bound by the server once, listened on by every worker.

As uvicorn binds them for several workers, but for three things: a name is bound with all its addresses (uvicorn does so
with one worker only), ``--fd`` may be of any family, and a socket file that nobody listens on is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from dataclasses import dataclass

from sessionworkers.errors import StartupError

_NO_SUCH_ADDRESS = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@dataclass
class Listening:
    """Bound sockets; ``address`` is what a client would type."""

    sockets: list[socket.socket]
    address: str

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()


class FileSocket(socket.socket):
    """A Unix socket whose file goes when it is closed, by whoever closes it: with one worker uvicorn does.

    That is early enough also where the process ends by a signal and nothing else is run.
    """

    _made: tuple[str, int, int] | None = None

    def bind_file(self, path: str) -> None:
        self.bind(path)
        os.chmod(path, 0o666)  # uvicorn's: who may connect is decided by the directory
        found = os.lstat(path)
        self._made = (path, found.st_dev, found.st_ino)

    def close(self) -> None:
        super().close()
        if self._made is not None:
            (path, device, inode), self._made = self._made, None
            with contextlib.suppress(OSError):
                found = os.lstat(path)
                if (found.st_dev, found.st_ino) == (device, inode):  # not another server's by now
                    os.unlink(path)


def bind(*, host: str | None, port: int, uds: str | None, fd: int | None, tls: bool) -> Listening:
    """Bind what uvicorn's options of these names say; inheritable, not yet listening. Raises StartupError."""
    try:
        if uds is not None:
            listening = _bind_file(uds)
        elif fd is not None:
            sock = socket.socket(fileno=fd)
            listening = Listening([sock], f"socket {sock.getsockname()}")
        else:
            sockets = _bind_addresses(host or "", port)
            shown = f"[{host}]" if host and ":" in host else host or "0.0.0.0"
            listening = Listening(sockets, f"{'https' if tls else 'http'}://{shown}:{sockets[0].getsockname()[1]}")
    except OSError as error:
        where = f"unix socket {uds}" if uds is not None else f"fd {fd}" if fd is not None else f"{host}:{port}"
        raise StartupError(f"cannot listen on {where}: {error.strerror or error}") from error
    for sock in listening.sockets:
        sock.set_inheritable(True)
    return listening


def bind_loopback(port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket on 127.0.0.1 for the end server of explicit sessions; inheritable. Raises StartupError.

    ``shared``: with SO_REUSEPORT, where each worker binds its own.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        raise StartupError(
            f"cannot listen on 127.0.0.1:{port} for ends of sessions (--local-port): {error.strerror or error}"
        ) from error
    sock.set_inheritable(True)
    return sock


LOCAL_PORT_VARIABLES = ("SESSIONWORKERS_LOCAL_PORT", "WORKER_HTTP_PORT")
"""Where a worker's app finds the loopback port; the second name is the one that worker sessions come from."""

NO_PORT = "--local-port is not set: with a Unix socket or a descriptor there is no public port to count from (0: none)"


def tell_local_port(sock: socket.socket) -> None:
    """Put the port into this process's environment, for the app that is imported next."""
    for name in LOCAL_PORT_VARIABLES:
        os.environ[name] = str(sock.getsockname()[1])


def _bind_file(path: str) -> Listening:
    sock = FileSocket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        sock.bind_file(path)
    except BaseException:
        sock.close()
        raise
    return Listening([sock], f"unix socket {path}")


def _remove_stale(path: str) -> None:
    """Remove a socket file that a killed server left; one that answers stays, and bind() then fails."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
            except OSError:
                pass  # a full backlog: somebody is there


def _bind_addresses(host: str, port: int) -> list[socket.socket]:
    """One socket for each address of ``host``, all on one port (with port 0: the one that the first was given)."""
    flags = socket.AI_PASSIVE
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    addresses.sort(key=lambda item: item[0] != socket.AF_INET)  # the address shown is the first one's
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError:
                if sockets or len(addresses) > 1:
                    continue  # a family that this kernel was built without
                raise
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and len(addresses) > 1:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # its IPv4 twin is bound on its own
            chosen = sockets[0].getsockname()[1] if len(sockets) > 1 else port
            try:
                sock.bind((address[0], chosen, *address[2:]))
            except OSError as error:
                if len(sockets) > 1 and error.errno in _NO_SUCH_ADDRESS:
                    sockets.pop().close()
                    continue
                raise
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    if not sockets:
        raise OSError(f"no address of {host or 'this machine'} can be used")
    return sockets
