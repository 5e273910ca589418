"""The network that tests cut: it takes no part in what they find."""

from __future__ import annotations

import gc
import socket
import threading
import warnings
from contextlib import suppress

from .proxy import Proxy


def test_one_that_is_closed_while_clients_come_leaves_no_socket() -> None:
    # What others left is theirs.
    gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(20):
            _close_among_clients()
        gc.collect()
    assert not [str(one.message) for one in told]


def _close_among_clients() -> None:
    proxy = Proxy("postgresql://nobody@127.0.0.1:1/nothing")
    come, over = threading.Semaphore(0), threading.Event()

    def visit() -> None:
        while not over.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", proxy.port), timeout=5):
                come.release()

    clients = [threading.Thread(target=visit) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        for _ in range(20):
            assert come.acquire(timeout=10)
        proxy.close()
    finally:
        over.set()
        for client in clients:
            client.join(10)
