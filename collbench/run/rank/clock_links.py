"""Direct connections along a tree of ranks, for messages that are as even and as short as a socket
can make them.

Messages of the control group wake two threads on each side: between two processes of one 2-core
machine the middles of its round trips scatter by 10 to 20 us, those of these connections, whose
ends spin, by 0.1 to 0.7 us (p95, the tightest of 10). A rank with children listens, until they have
come or CONNECT_S is over, on the one address that the control group uses; who connects must send
the 16 random bytes that the child was told over the control group.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable, Sequence

import psutil

from collbench.core.errors import first_line
from collbench.machine.routes import find_named_interface, resolve_host_name
from collbench.run.rank.control import Control

CONNECT_S = 10.0

TOKEN_BYTES = 16

SPINS = 500  # about 1 us each

WORD = struct.Struct("<q")

Offer = tuple[str, int, dict[str, str]]  # address, port, and each child's token


def control_address() -> str:
    """Where the control group listens: on the interface of GLOO_SOCKET_IFNAME, else as this host's
    name resolves."""
    name = find_named_interface()
    if not name:
        return resolve_host_name()
    addresses = psutil.net_if_addrs().get(name, ())
    for family in (socket.AF_INET, socket.AF_INET6):
        for address in addresses:
            # a link-local one leads nowhere without the name of the interface that it is reached by
            if address.family == family and not address.address.startswith("fe80:"):
                return address.address
    raise OSError(f"interface {name} has no address that other hosts reach")


def listen_at(address: str, backlog: int | None = None) -> socket.socket:
    """A listener at a free port of an address of this host."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=backlog)


class Links:
    """This rank's connections to its ``parent`` and ``children``; made by all ranks together, each
    of the others' choice. ``trouble`` is the reason why some rank could not connect, at every rank;
    then there are none.
    """

    def __init__(self, control: Control, parent: int | None, children: Sequence[int]) -> None:
        self._parent, self._children = parent, children
        self._peers: dict[int, socket.socket] = {}
        tokens = {child: secrets.token_bytes(TOKEN_BYTES) for child in children}
        listener, offer, trouble = self._listen(tokens)
        offers: list[Offer | None] = control.collect(offer)
        try:
            if parent is not None and (parent_offer := offers[parent]):
                self._peers[parent] = socket.create_connection(
                    (parent_offer[0], parent_offer[1]), CONNECT_S
                )
                self._peers[parent].sendall(bytes.fromhex(parent_offer[2][str(control.rank)]))
            if listener:
                self._accept(listener, tokens)
        except OSError as e:
            trouble = first_line(e)
        finally:
            if listener:
                listener.close()
        for link in self._peers.values():
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setblocking(False)
        troubles = enumerate(control.collect(trouble))
        self.trouble = next(
            (f"rank {rank} has no connection: {why}" for rank, why in troubles if why), ""
        )
        if self.trouble:
            self.close()

    def _listen(self, tokens: dict[int, bytes]) -> tuple[socket.socket | None, Offer | None, str]:
        if not tokens:
            return None, None, ""
        try:
            at = control_address()
            listener = listen_at(at, backlog=2 * len(tokens) + 8)
        except OSError as e:
            return None, None, first_line(e)
        offered = {str(child): token.hex() for child, token in tokens.items()}
        return listener, (at, listener.getsockname()[1], offered), ""

    def _accept(self, listener: socket.socket, tokens: dict[int, bytes]) -> None:
        """Take the children in. A connection that shows another token is closed; one that says
        nothing holds nobody up."""
        until = time.monotonic() + CONNECT_S
        with selectors.DefaultSelector() as ready:
            ready.register(listener, selectors.EVENT_READ)
            while (
                tokens.keys() - self._peers.keys() and (time_left := until - time.monotonic()) > 0
            ):
                for key, _ in ready.select(time_left):
                    assert isinstance(key.fileobj, socket.socket)
                    if key.fileobj is listener:
                        ready.register(listener.accept()[0], selectors.EVENT_READ)
                        continue
                    ready.unregister(key.fileobj)
                    self._admit(key.fileobj, tokens)
            for key in [key for key in ready.get_map().values() if key.fileobj is not listener]:
                key.fileobj.close()  # type: ignore[union-attr]
        if missing := sorted(tokens.keys() - self._peers.keys()):
            raise TimeoutError(f"rank {missing[0]} did not connect in {CONNECT_S:g} s")

    def _admit(self, link: socket.socket, tokens: dict[int, bytes]) -> None:
        link.setblocking(False)
        try:
            received = link.recv(TOKEN_BYTES)
        except OSError:
            received = b""
        for child, token in tokens.items():
            if child not in self._peers and secrets.compare_digest(received, token):
                self._peers[child] = link
                return
        link.close()

    def ask(self, peer: int, times: int, read: Callable[[], int]) -> list[tuple[int, int, int]]:
        """Ping-pongs: this rank's clock before, the peer's in between, this one's after. The peer
        must ``serve``."""
        link, trips = self._peers[peer], []
        for _ in range(times):
            before = read()
            link.send(WORD.pack(0))
            reading = _receive_word(link)
            trips.append((before, reading, read()))
        return trips

    def serve(self, peer: int, times: int, read: Callable[[], int]) -> None:
        """Answer a peer's questions after this clock, so many times."""
        link = self._peers[peer]
        for _ in range(times):
            _receive_word(link)
            link.send(WORD.pack(read()))

    def latest(self, value: int, ahead: int) -> int:
        """The largest of all ranks' values plus the root's ``ahead``, at every rank: up the tree
        and down again."""
        for child in self._children:
            value = max(value, _receive_word(self._peers[child]))
        if self._parent is None:
            value += ahead
        else:
            self._peers[self._parent].send(WORD.pack(value))
            value = _receive_word(self._peers[self._parent])
        for child in self._children:
            self._peers[child].send(WORD.pack(value))
        return value

    def close(self) -> None:
        """Close the connections to all peers."""
        for link in self._peers.values():
            link.close()
        self._peers.clear()


def _receive_word(link: socket.socket) -> int:
    """The next message. To sleep would add the time of waking up to one way of the two, so that it
    is spun for, except where it comes so late that somebody may need this core for it to come."""
    for _ in range(SPINS):
        try:
            received = link.recv(WORD.size)
            break
        except BlockingIOError:
            pass
    else:
        link.setblocking(True)
        received = link.recv(WORD.size)
        link.setblocking(False)
    if len(received) != WORD.size:
        raise ConnectionError("Connection closed by peer")
    return int(WORD.unpack(received)[0])
