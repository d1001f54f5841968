"""Sockets that are bound before they listen, and the addresses shown for them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ninfer.config import HttpSettings
from ninfer.errors import StartupError
from ninfer.listener import base_url, bind_socket, server_config, start_listening


def test_a_bound_socket_does_not_listen_yet() -> None:
    with bind_socket("127.0.0.1", 0) as bound:
        address = bound.getsockname()
        with socket.socket() as client:
            assert client.connect_ex(address) != 0
        bound.listen()
        with socket.socket() as client:
            assert client.connect_ex(address) == 0


def test_a_taken_port_is_refused() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        with pytest.raises(StartupError, match=r"cannot listen on 127\.0\.0\.1"):
            bind_socket("127.0.0.1", busy.getsockname()[1])


def test_a_host_that_does_not_exist_is_refused() -> None:
    with pytest.raises(StartupError, match=r"cannot listen on no\.such\.host\.invalid:80"):
        bind_socket("no.such.host.invalid", 80)


def test_the_configuration_is_generous() -> None:
    config = server_config(HttpSettings())
    with bind_socket("127.0.0.1", 0) as bound:
        start_listening(bound, config)
        assert bound.fileno() == -1, "the server owns the socket now"
    (server,) = config.create_sockets().insecure_sockets
    server.close()
    assert not config.include_server_header
    assert config.h2_max_concurrent_streams >= 256
    assert config.alpn_protocols == ["h2", "http/1.1"]


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        (HttpSettings(), "http://127.0.0.1:8080/v1"),
        (HttpSettings(host="::1", port=9), "http://[::1]:9/v1"),
        (HttpSettings(host="[::1]", tls_cert=Path("c"), tls_key=Path("k")), "https://[::1]:8080/v1"),
    ],
)
def test_addresses(settings: HttpSettings, url: str) -> None:
    assert base_url(settings) == url


@pytest.mark.parametrize("host", ["a" * 64, "x..y"])
def test_what_cannot_be_a_host_name_is_refused(host: str) -> None:
    with pytest.raises(StartupError, match="not a host name"):
        bind_socket(host, 0)
