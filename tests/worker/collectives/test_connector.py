"""What the other end of a connection between hosts may show: whatever it is, the daemon hears that there is none."""

from __future__ import annotations

import datetime
import queue
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from worker.collectives.connector import KEY_BYTES, Connector
from worker.collectives.progress import Progress
from worker.engine.host_messages import Connect, Disconnected, FromHost

HANGS_S = 60.0


def strangers_context(folder: Path) -> ssl.SSLContext:
    """The context of a server whose key is of no kind that a node has."""
    key, name = ec.generate_private_key(ec.SECP384R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    file = folder / "stranger.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(private + builder.sign(key, SHA256()).public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_certificate_of_no_node_is_one_that_does_not_know_the_key(tmp_path: Path) -> None:
    told: queue.Queue[FromHost] = queue.Queue()
    connector = Connector(told.put, tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        context = strangers_context(tmp_path)

        def answer() -> None:
            caller, _ = listener.accept()
            with context.wrap_socket(caller, server_side=True) as secured:
                assert secured.recv(1) == b"", "the key is told to nobody who does not have it"

        answering = threading.Thread(target=answer)
        answering.start()
        port = listener.getsockname()[1]
        connector.begin(Connect("buffer", bytes(KEY_BYTES), "127.0.0.1", port, 1 << 16, True, HANGS_S, HANGS_S))
        assert told.get(timeout=HANGS_S) == Disconnected("buffer")
        answering.join(HANGS_S)
    assert connector.remote("buffer").start_connecting(), "another attempt may begin"


def test_a_host_without_a_further_thread_says_that_there_is_no_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: queue.Queue[FromHost] = queue.Queue()
    connector = Connector(told.put, tmp_path)
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", no_thread)
        connector.begin(Connect("buffer", bytes(KEY_BYTES), "127.0.0.1", 1, 1 << 16, True, HANGS_S, HANGS_S))
    assert told.get(timeout=HANGS_S) == Disconnected("buffer")
    assert connector.remote("buffer").start_connecting(), "another attempt may begin"


def test_operations_are_performed_by_whoever_waits_where_there_is_no_further_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    progress = Progress()
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", no_thread)
        first = progress.start(lambda waited_for: np.array([waited_for]), meanwhile=True)
        assert first.result() == [True]
    performed = threading.Event()

    def work(waited_for: bool) -> np.ndarray[Any, Any]:
        performed.set()
        return np.array([waited_for])

    later = progress.start(work, meanwhile=True)
    assert performed.wait(HANGS_S) and later.result() == [False]


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
