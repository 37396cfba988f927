"""What uvicorn takes and then fails with in each worker, or serves elsewhere than was asked: told before it starts."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Mapping
from typing import Any

import click
import uvicorn
import uvicorn.config
from uvicorn.importer import ImportFromStringError, import_from_string


class _Encrypted(Exception):
    """The key asks for a password that was not given: uvicorn asks for it on the terminal."""


def check_options(kwargs: Mapping[str, Any]) -> None:
    """Raises click.BadParameter for a value of uvicorn's options that cannot work."""
    workers = kwargs.get("workers")
    if workers is not None and workers < 1:
        raise _bad("workers", f"{workers} is too few: must be 1 or more, or auto")
    port = kwargs.get("port")
    if isinstance(port, int) and not 0 <= port <= 65535:  # the event loop takes what is left of it in 16 bits
        raise _bad("port", f"{port} is no port: 1 to 65535, or 0 for one that is free")
    for name, table in (("http", "HTTP_PROTOCOLS"), ("ws", "WS_PROTOCOLS"), ("loop", "LOOP_FACTORIES")):
        _check_choice(name, kwargs.get(name), getattr(uvicorn.config, table, None))


def check_tls(config: uvicorn.Config) -> None:
    """Raises click.UsageError where certificate and key cannot be used."""
    if not config.is_ssl or getattr(config, "ssl_context_factory", None) is not None:
        return
    if not config.ssl_certfile:
        raise click.UsageError("--ssl-keyfile needs --ssl-certfile")
    for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
        path = getattr(config, name, None)
        if path:
            try:
                with open(path, "rb"):
                    pass
            except OSError as error:
                raise _bad(name, f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        with contextlib.suppress(_Encrypted):
            context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile, config.ssl_keyfile_password or _ask)
    except ssl.SSLError as error:
        key = config.ssl_keyfile or config.ssl_certfile
        raise click.UsageError(
            f"--ssl-certfile {str(config.ssl_certfile)!r} and the key in {str(key)!r} cannot be used: {error}"
        ) from error


def _ask() -> str:
    raise _Encrypted


def _check_choice(name: str, value: Any, table: Mapping[str, str | None] | None) -> None:
    if table is None or not isinstance(value, str):
        return
    if value in table:
        known = table[value]
        try:
            if known is not None:
                import_from_string(known)
        except (ImportError, ImportFromStringError) as error:  # of a package that is not installed
            raise _bad(name, f"{value!r} cannot be used: {error}") from error
    elif ":" not in value:
        raise _bad(name, f"{value!r} is none of {', '.join(table)}, and no module:name")


def _bad(name: str, text: str) -> click.BadParameter:
    return click.BadParameter(text, param_hint=f"'--{name.replace('_', '-')}'")
