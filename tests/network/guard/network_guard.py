"""A guard in Python: whoever looks up a name or reaches outside this machine is stopped.

What libraries do without Python, ``strace`` sees alone.
"""

from __future__ import annotations

import ipaddress
import sys
import traceback
from typing import Any

LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")
PACKETS = ("socket.connect", "socket.sendto", "socket.sendmsg")


def is_here(host: object) -> bool:
    """Tell whether a host's name or address means this machine."""
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if host in (None, "", "localhost", "0.0.0.0", "::"):
        return True
    try:
        return ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return False


def outside(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Return what an event of Python reaches for, if that is not on this machine."""
    if event in LOOKUPS:
        return None if is_here(arguments[0]) else str(arguments[0])
    if event in PACKETS:
        address = arguments[1]  # that of a local socket is a path, of a connected one None
        if isinstance(address, tuple) and not is_here(address[0]):
            return str(address)
    return None


def forbid(log: str | None) -> None:
    """Stop this process from reaching outside, for good.

    Args:
        log: file in which the attempts are written down, if any.
    """

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if not event.startswith("socket."):
            return
        target = outside(event, arguments)
        if target is not None:
            if log is not None:
                with open(log, "a", encoding="utf-8") as file:  # noqa: PTH123
                    stack = "".join(traceback.format_stack(limit=8))
                    file.write(f"{event} {target}, {' '.join(sys.argv)}\n{stack}\n")
            raise PermissionError(f"{event}: {target} is outside this machine")

    sys.addaudithook(watch)
