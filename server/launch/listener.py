"""The listening socket: taken before anything slow happens, shared by all HTTP processes."""

from __future__ import annotations

import errno
import ipaddress
import socket

from server.launch.errors import StartError

_BACKLOG = 2048


def bind_listener(host: str, port: int) -> socket.socket:
    """Take the port, without accepting connections yet: until :func:`listen`, clients are refused, not kept waiting.

    Raises
    ------
    StartError
        The address is not one of this machine, or the port is in use or reserved.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        raise StartError(f"--host {host}: this is no address of this machine ({error})") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _explained(error, host, port) from error
    return listener


def listen(listener: socket.socket) -> None:
    """Let clients connect; raises :class:`StartError` if another server has taken the port since it was bound."""
    host, port = listener.getsockname()[:2]
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        raise _explained(error, host, port) from error
    listener.set_inheritable(True)


def is_loopback(listener: socket.socket) -> bool:
    """Whether only clients on this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _explained(error: OSError, host: str, port: int) -> StartError:
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"port {port} of {host} is in use, perhaps by another server. Stop that, or choose a port with --port "
            "(0 takes a free one)."
        )
    if error.errno == errno.EACCES:
        return StartError(f"port {port} of {host} is reserved for the administrator; choose one from 1024 with --port")
    if error.errno == errno.EADDRNOTAVAIL:
        return StartError(f"--host {host}: this is no address of this machine; 0.0.0.0 is every one of them")
    return StartError(f"cannot listen on port {port} of {host}: {error.strerror}")
