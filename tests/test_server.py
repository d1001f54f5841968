"""The HTTP server as a task: a port that is lost, peers that do not answer its end."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import anyio
import pytest
import trustme
from quart import Quart

from ninfer.config import HttpSettings, Settings
from ninfer.errors import StartupError
from ninfer.listener import bind_socket, server_config
from ninfer.server import HttpTask, prepare_slot_folder, with_disk_folder

pytestmark = pytest.mark.asyncio


async def test_a_port_that_somebody_else_listened_on_first() -> None:
    with bind_socket("127.0.0.1", 0) as ours, socket.socket() as theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        theirs.bind(ours.getsockname())
        theirs.listen()
        task = HttpTask(Quart("x"), ours, server_config(HttpSettings()), stopped=anyio.Event())
        may_listen, given_up = anyio.Event(), anyio.Event()
        may_listen.set()
        with anyio.fail_after(10):
            await task.run(may_listen, given_up.set)
        assert task.error is not None
        assert given_up.is_set()
        assert task.closed.is_set()


async def test_a_tls_peer_that_does_not_answer_the_end_is_left_behind(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    certificate.private_key_pem.write_to_path(tmp_path / "key")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    config = server_config(HttpSettings(tls_cert=tmp_path / "cert", tls_key=tmp_path / "key"))
    config.graceful_timeout = 0.01

    def connect() -> ssl.SSLSocket:
        peer = trusting.wrap_socket(socket.create_connection(address, 10), server_hostname="localhost")
        peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert peer.recv(1)
        return peer

    with bind_socket("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        task = HttpTask(Quart("x"), listener, config, stopped=anyio.Event())
        may_listen = anyio.Event()
        may_listen.set()
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(task.run, may_listen, lambda: None)
                await anyio.wait_all_tasks_blocked()
                peer = await anyio.to_thread.run_sync(connect)
                task.stopped.set()
                with anyio.move_on_after(0.5):
                    await task.closed.wait()
                assert not task.closed.is_set()
                tasks.cancel_scope.cancel()
        assert task.closed.is_set()
        peer.close()


async def test_slots_are_not_saved_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = Settings(Path("m.ninfer"), slot_folder=tmp_path / "file")
    with pytest.raises(StartupError, match=r"--slot-save-path \S+file cannot be used: it is not a folder"):
        prepare_slot_folder(settings)


async def test_the_folder_of_the_disk_cache_belongs_to_one_server(tmp_path: Path) -> None:
    settings = Settings(Path("m.ninfer"), disk_folder=tmp_path / "new" / "cache")
    with with_disk_folder(settings) as first:
        assert first.scheduler.disk_name.startswith("kv-")
        with pytest.raises(StartupError, match="in use by another server"), with_disk_folder(settings):
            pass
    with with_disk_folder(settings) as second:
        assert first.scheduler.disk_name != second.scheduler.disk_name
    (tmp_path / "file").touch()
    with (
        pytest.raises(StartupError, match="file cannot be used: it is not a folder"),
        with_disk_folder(Settings(Path("m.ninfer"), disk_folder=tmp_path / "file")),
    ):
        pass
    with with_disk_folder(Settings(Path("m.ninfer"))) as without:
        assert without.scheduler.disk_name == ""
