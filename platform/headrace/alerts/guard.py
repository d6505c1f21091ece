"""Where a message may go: public unicast addresses only, decided at connect time for every connection, whoever opens it.

`check_url` refuses early, with words for the form. `install` is the door itself: an audit hook of the interpreter that sees every
connect with the address that was resolved, so a redirect, a second look-up or an odd spelling of 127.0.0.1 changes nothing. An
administrator may allow exact host:port pairs (HEADRACE_ALERT_HOSTS). Standard library only: the sending process imports this.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Iterable
from urllib.parse import urlsplit

WEB_PORTS = frozenset({80, 443, 8080, 8443})
MAIL_PORTS = frozenset({25, 465, 587, 2525})
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Refused(OSError):
    """A connection that this server does not open."""


def is_public(address: str) -> bool:
    """Whether an IP address is a public unicast one, whatever it is wrapped in."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if inner is None and ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_loopback or ip.is_link_local)


def check_url(url: str, allowed: Iterable[str], schemes: tuple[str, ...] = ("https", "http")) -> str:
    """The host and port of a usable URL, as host:port. Raises ValueError with words for a person."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError("this is not a URL") from error
    if parts.scheme not in schemes:
        raise ValueError(f"only {' and '.join(schemes)} addresses are used, not {parts.scheme or 'one without a scheme'}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a name and password in the address are not used: take them out")
    if not parts.hostname:
        raise ValueError("the address names no host")
    port = port or (443 if parts.scheme == "https" else 80)
    check_host(parts.hostname, port, allowed, WEB_PORTS)
    return f"{parts.hostname}:{port}"


def check_host(host: str, port: int, allowed: Iterable[str], ports: frozenset[int]) -> None:
    """The early refusal: a port that is not for this, an address or name that is this machine or its network. Raises ValueError."""
    if f"{host.lower()}:{port}" in {entry.lower() for entry in allowed}:
        return
    if port not in ports:
        raise ValueError(f"port {port} is not one of {', '.join(map(str, sorted(ports)))}: an administrator may allow {host}:{port}")
    if host.rstrip(".").lower() == "localhost" or host.rstrip(".").lower().endswith((".localhost", ".local", ".internal")):
        raise ValueError("this host is inside: only public addresses are used")
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)}
    except (OSError, UnicodeError):
        return  # a name: where it leads is looked at when it is connected to
    if not all(is_public(address) for address in found):
        raise ValueError("this address is inside: only public addresses are used")


def install(allowed: Iterable[str], ports: frozenset[int]) -> list[str]:
    """Closes every other way out of this process, for good. Returns the list in which refusals are noted. Call it once, in a child."""
    open_doors: set[tuple[str, int]] = set()
    for entry in allowed:
        host, _, port = entry.rpartition(":")
        try:
            found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except (OSError, ValueError, UnicodeError):
            continue
        open_doors |= {(str(item[4][0]), int(item[4][1])) for item in found}
    refused: list[str] = []

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            _look(arguments[1], open_doors, ports, refused)

    sys.addaudithook(hook)
    return refused


def _look(address: object, open_doors: set[tuple[str, int]], ports: frozenset[int], refused: list[str]) -> None:
    if isinstance(address, tuple) and len(address) >= 2 and isinstance(address[0], str) and isinstance(address[1], int):
        if (address[0], address[1]) in open_doors:
            return
        if not is_public(address[0]):
            refused.append("the address leads inside: only public addresses are used")
        elif address[1] not in ports:
            refused.append(f"port {address[1]} is not used for this")
        else:
            return
    else:
        refused.append("only network addresses are used")
    raise Refused(refused[-1])
