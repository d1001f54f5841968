"""The socket and the HTTP server on it: bound early, listening late (serving spec, 1 and 2.1)."""

from __future__ import annotations

import logging
import socket
import ssl

from hypercorn.config import Config

from ninfer.api.edge import SLOW_PEER_S
from ninfer.config import HttpSettings
from ninfer.errors import StartupError
from ninfer.http2 import mend_http2
from ninfer.short_way import shorten_ways

# Idle connections are cheap and agents come back to them; a request on one has no time limit of the server's.
KEEP_ALIVE_S = 120.0
# From the end of the drain to the end of the connections, for the last bytes to be taken.
GRACEFUL_S = 3.0


def bind_socket(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet; StartupError when the address is not to be had."""
    where = f"{host}:{port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartupError(f"cannot listen on {where}: {error.strerror or error}") from None
    except UnicodeError:  # the resolver's word for a label that is empty or too long
        raise StartupError(f"cannot listen on {where}: this is not a host name") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _drop_dead_peers(bound)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise StartupError(f"cannot listen on {where}: {error.strerror or error}") from None
    return bound


def _drop_dead_peers(listener: socket.socket) -> None:
    """Accepted connections inherit this: a peer that takes no byte for a minute is cut off, buffers and all."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(SLOW_PEER_S * 1000))


def server_config(settings: HttpSettings) -> Config:
    """The HTTP server's configuration; where it serves is said by :func:`start_listening`.

    HTTP/1.1 and HTTP/2 by ALPN over TLS, by prior knowledge without; StartupError for unusable TLS files.
    """
    mend_http2()
    shorten_ways()
    config = Config()
    config.alpn_protocols = ["h2", "http/1.1"]
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn")
    config.include_server_header = False
    config.backlog = 1024
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.keep_alive_max_requests = 1_000_000
    config.graceful_timeout = GRACEFUL_S
    config.h11_max_incomplete_size = 64 * 1024
    config.h2_max_concurrent_streams = 1024
    if settings.tls_cert is not None and settings.tls_key is not None:
        config.certfile = str(settings.tls_cert)
        config.keyfile = str(settings.tls_key)
        try:
            config.create_ssl_context()
        except (OSError, ssl.SSLError) as error:
            raise StartupError(f"--tls-cert {config.certfile} and --tls-key {config.keyfile}: {error}") from None
    return config


def start_listening(listener: socket.socket, config: Config) -> None:
    """Listen, and hand the socket to the server that gets this configuration.

    raises OSError when somebody else listens on the address by now: two sockets may be bound to it until one listens
    """
    listener.listen(config.backlog)
    config.bind = [f"fd://{listener.detach()}"]


def base_url(settings: HttpSettings) -> str:
    """Where clients find the API."""
    scheme = "https" if settings.tls_cert is not None else "http"
    host = settings.host.strip("[]")
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.port}/v1"
