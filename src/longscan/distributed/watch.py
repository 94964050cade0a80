"""Detection of processes that have ended. An exchange with one of them would wait for minutes, and in captured steps forever."""

import logging
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from torch import distributed

GRACE = 25.0  # seconds in which a process may end by itself once another one has ended
_CONNECT = 60.0  # seconds in which all processes must have connected
_NOTICE_SECONDS = 2.0  # time for which an error of an exchange is held back until it is known whether a process has ended
# seconds before the first probe and between probes, and number of probes, which notice a host that lost power
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_NUMBER = struct.Struct("!i")
_LEAVE_MESSAGE = -1  # sent instead of the number of a process by one that has done its work and leaves the watch


@contextmanager
def watch_processes() -> Iterator[None]:
    """Stop this process if another one ends inside the `with` statement, killed or by an error, while this one waits for it.

    Each process holds a connection to process 0, which the system closes when the process ends, whatever it was doing. The others
    then have 25 seconds to end by themselves; after that the process logs which one has ended, and exits with status 1. Errors of
    exchanges inside the `with` statement get a note with the process. All processes of the default process group must call it.

    Raises RuntimeError, ConnectionError or TimeoutError if the processes cannot connect to the address MASTER_ADDR of process 0.
    """
    if distributed.get_world_size() == 1:
        yield
        return
    watch = _Watch()
    try:
        yield
        watch.leave()
    except RuntimeError as error:
        if watch.noticed.wait(_NOTICE_SECONDS):
            error.add_note(watch.describe())
        raise
    finally:
        watch.close()


class _Watch:
    """The connections of one process, and the thread that reads them: to all others in process 0, to process 0 in the others."""

    def __init__(self) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.ended: int | None = None  # the number of the first process that has ended
        self.noticed, self._done = threading.Event(), threading.Event()
        server = _listen() if self.rank == 0 else None
        port: int = 0 if server is None else server.getsockname()[1]
        own = (socket.gethostname(), os.getpid(), port, secrets.token_bytes(16))
        self._processes = [own] * self.size
        distributed.all_gather_object(self._processes, own)
        host, _, port, token = self._processes[0]
        if server is not None:
            self._peers = self._accept(server, token)
        else:
            peer = socket.create_connection((os.environ.get("MASTER_ADDR", host), port), _CONNECT)
            peer.sendall(token + _NUMBER.pack(self.rank))
            self._peers = {peer: 0}
        for peer in self._peers:
            peer.settimeout(None)
            _keep_alive(peer)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _accept(self, server: socket.socket, token: bytes) -> dict[socket.socket, int]:
        """Return the connections of all other processes with their numbers.

        A process introduces itself with `token` and its number. Connections are read simultaneously, so that one that sends
        something else, or nothing, delays no other. It is closed.
        """
        peers: dict[socket.socket, int] = {}
        size, deadline = len(token) + _NUMBER.size, time.monotonic() + _CONNECT
        with selectors.DefaultSelector() as selector, server:
            server.setblocking(False)
            selector.register(server, selectors.EVENT_READ)
            while len(peers) < self.size - 1 and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    connection: Any = key.fileobj
                    if connection is server:
                        _accept_pending(server, selector)
                        continue
                    received: bytearray = key.data
                    received += (part := _receive(connection, size - len(received)))
                    if part and len(received) < size:
                        continue  # the rest has not arrived
                    selector.unregister(connection)
                    if len(received) == size and secrets.compare_digest(received[: len(token)], token):
                        peers[connection] = _NUMBER.unpack(received[len(token) :])[0]
                    else:
                        connection.close()
            for key in list(selector.get_map().values()):  # the server, and connections that have not introduced themselves
                cast("socket.socket", key.fileobj).close()
        if len(peers) < self.size - 1:
            for connection in peers:
                connection.close()
            missing = sorted(set(range(1, self.size)) - set(peers.values()))
            raise TimeoutError(f"processes {missing} of {self.size} have not connected to process 0 in {_CONNECT:.0f} seconds")
        return peers

    def describe(self) -> str:
        """Return which process has ended, in a sentence."""
        assert self.ended is not None
        host, process, *_ = self._processes[self.ended]
        return f"process {self.ended} of {self.size} has ended (pid {process} on {host})"

    def _read(self) -> None:
        """Wait until a process has ended or this one leaves."""
        with selectors.DefaultSelector() as selector:
            for connection in self._peers:
                selector.register(connection, selectors.EVENT_READ, connection)
            while selector.get_map():
                for key, _ in selector.select():
                    peer: socket.socket = key.data
                    message = _receive(peer, _NUMBER.size)
                    if self._done.is_set():
                        return
                    number = _NUMBER.unpack(message)[0] if len(message) == _NUMBER.size else self._peers[peer]
                    selector.unregister(peer)
                    if number != _LEAVE_MESSAGE:
                        self._stop(number)
                        return

    def _stop(self, ended: int) -> None:
        """Send the number of a process that has ended to the others, and exit this process unless it ends by itself in time.

        Only process 0 is connected to all others; any other process sends the number to process 0.
        """
        self.ended = ended
        self.noticed.set()
        self._send(ended)
        if not self._done.wait(GRACE):
            logging.getLogger(__name__).critical("%s: process %s, which waits for it, stops", self.describe(), self.rank)
            os._exit(1)  # the main thread may be in a call that no exception ends

    def _send(self, number: int) -> None:
        """Send a number to process 0, or from there to all others."""
        for peer in self._peers:
            with suppress(OSError):  # the other end may have been closed
                peer.sendall(_NUMBER.pack(number))

    def leave(self) -> None:
        """Notify the other processes that this one has done its work, so that its end is no fault."""
        self._done.set()
        self._send(_LEAVE_MESSAGE)

    def close(self) -> None:
        """Close the connections. If `leave` was not called before, the other processes are notified that this one has ended."""
        self._done.set()
        for peer in self._peers:
            with suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)  # ends the wait of the thread
        self._thread.join()
        for peer in self._peers:
            peer.close()


def _listen() -> socket.socket:
    """Return a socket at a free port of all addresses of this host."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _accept_pending(server: socket.socket, selector: selectors.BaseSelector) -> None:
    """Accept a connection that waits at `server`, and register it with `selector` and an empty bytearray for what it sends."""
    with suppress(OSError):  # the other end may have been closed already
        peer, _ = server.accept()
        peer.setblocking(False)
        selector.register(peer, selectors.EVENT_READ, bytearray())


def _receive(peer: socket.socket, size: int) -> bytes:
    """Return up to `size` bytes: those that came before the other end was closed, or that are there if `peer` does not block.

    An error of the connection, such as a reset, ends them too.
    """
    received = b""
    with suppress(OSError):
        while len(received) < size and (part := peer.recv(size - len(received))):
            received += part
    return received


def _keep_alive(peer: socket.socket) -> None:
    """Let the system close a connection whose other host no longer answers."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # not on every system
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
