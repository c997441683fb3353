"""The port at which a group's ranks meet: taken before anything is loaded, and kept while ranks come and go."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

from server.launch.errors import StartError
from server.launch.ranks.placement import Placement

_BACKLOG = 1024


@contextlib.contextmanager
def rendezvous_listeners(placement: Placement) -> Iterator[list[socket.socket | None]]:
    """A listening socket for each group, ``None`` where ranks meet at somebody else's.

    Raises
    ------
    StartError
        A port is in use, or the address is not one of this machine.
    """
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(_listen(placement.host, placement.port and placement.port + group))
            if placement.group_size > 1 and placement.serves_http and placement.binds_port
            else None
            for group in range(placement.num_groups)
        ]


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise StartError(f"--dist-init-addr {host}:{port}: there is no such address ({error})") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise StartError(
                f"port {port} of {host}, where the ranks are to meet, is in use; choose another with --dist-init-addr, "
                "on every node"
            ) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise StartError(
                f"--dist-init-addr {host}:{port} is no address of this machine; it must be the one of node 0, the node "
                "started without --node-rank"
            ) from error
        raise StartError(f"the ranks cannot meet on port {port} of {host}: {error.strerror}") from error
    return listener
