"""Whether the other processes of a training are alive.

A collective call waits for everyone, for ten minutes or for ever. So every process has a connection
to the first one, on which nothing is said but a farewell. When it breaks without one, the other
side is gone: the system says so at once for a process that died, in half a minute for a machine.
No clock of ours decides: a process that is merely slow stays connected.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from selectors import EVENT_READ, DefaultSelector

from dada.safe_text import quoted

FAREWELL = b"."
CONNECT = 60.0  # seconds
# All may fail of one cause, and each says it. Who is still here after so long waits in vain.
GRACE = 5.0
# Seconds until a silent machine is asked, between questions, and how many stay unanswered.
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
GONE = (
    "process {who} of {world} has ended, killed or out of memory; "
    "what was done is kept: start all of them again with `resume=True`"
)


JOIN_VARIABLE = "DADA_JOIN_SECONDS"
JOIN = 45.0  # seconds for all to come: who died before has no connection that could break
ABSENT = (
    "not all {world} processes came within {seconds:g} s; start all of them again with --resume, "
    f"or give them longer with the variable {JOIN_VARIABLE}"
)


@contextmanager
def ends_if_alone() -> Iterator[None]:
    """Around the finding of the other processes: ends this one if they do not come in time.

    It would wait for ever for one that has died. `torchrun` sees that itself, and knows better than
    a clock.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        yield
        return
    given = os.environ.get(JOIN_VARIABLE, str(JOIN))
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise ValueError(f"{JOIN_VARIABLE} should be a number of seconds, but is {quoted(given)}")
    absent = ABSENT.format(world=os.environ.get("WORLD_SIZE", "the"), seconds=seconds)
    timer = threading.Timer(seconds, _end_with, [absent])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_with(line: str) -> None:
    with suppress(Exception):
        print(f"dada: {line}", file=sys.stderr, flush=True)
    os._exit(1)


class Watch:
    """The connections of one process, and who was lost."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        self.failed = False  # an error is on its way out of here: no farewell then
        self.lost = threading.Event()
        self.who = 0
        self._peers: dict[socket.socket, int] = {}

    def listen(self) -> socket.socket:
        """For the first process: a socket whose port the others are told."""
        return socket.create_server(("", 0), backlog=self.world)

    def accept(self, server: socket.socket) -> None:
        server.settimeout(CONNECT)
        with server:
            while len(self._peers) < self.world - 1:
                peer, _ = server.accept()
                peer.settimeout(CONNECT)
                said = peer.recv(8)
                if said.isdigit() and 0 < int(said) < self.world:
                    self._add(peer, int(said))
                else:
                    peer.close()  # somebody who has the wrong door
        self._begin()

    def connect(self, port: int) -> None:
        address = os.environ.get("MASTER_ADDR", "localhost"), port
        peer = socket.create_connection(address, CONNECT)
        peer.sendall(str(self.rank).encode().rjust(8, b"0"))
        self._add(peer, 0)
        self._begin()

    def farewell(self) -> None:
        """At the end of a process that did what it was asked."""
        for peer in self._peers if not self.failed else ():
            with suppress(OSError):
                peer.sendall(FAREWELL)

    def _add(self, peer: socket.socket, rank: int) -> None:
        peer.settimeout(None)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self._peers[peer] = rank

    def _begin(self) -> None:
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        selector = DefaultSelector()
        for connection, rank in self._peers.items():
            selector.register(connection, EVENT_READ, rank)
        while selector.get_map():
            for key, _ in selector.select():
                peer = key.fileobj
                assert isinstance(peer, socket.socket)
                selector.unregister(peer)
                try:
                    said = peer.recv(1)
                except OSError:
                    said = b""
                if said != FAREWELL:
                    self.who = key.data
                    self.lost.set()
                    self._end()

    def _end(self) -> None:
        """Ends this process, unless its main thread sees the loss and ends before.

        It cannot where it waits for the process that is gone.
        """
        time.sleep(GRACE)
        _end_with(self.reason().replace("`resume=True`", "--resume"))

    def reason(self) -> str:
        return GONE.format(who=self.who, world=self.world)
