"""Decides which web addresses may be read: `read_link` checks a link, `connect_publicly` its network address.

A policy writes links, and pages redirect; neither may lead into this machine's internal network. A host name does not
determine its address, and may resolve differently each time. So addresses are checked when the connection is made:
`connect_publicly` opens the socket for exactly the address that it checked.
"""

import socket
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from yarl import URL

if TYPE_CHECKING:
    import aiohttp

_PRIVATE = tuple(
    map(
        IPv4Network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
            *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        ),
    )
)
"""IPv4 blocks that are not the public internet (IANA's special-purpose registry, multicast, reserved)."""
_PUBLIC_6 = IPv6Network("2000::/3")
"""Allocated IPv6 addresses; mapped, translated, unique-local, link-local and multicast addresses are not in it."""
_PRIVATE_6 = tuple(map(IPv6Network, ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")))
"""Protocol assignments (Teredo among them), documentation and 6to4, which holds an IPv4 address."""
_INNER_NAMES = (".localhost", ".local", ".internal")
NOT_READABLE = "is not an address that may be read"
SHOWN = 200
"""Maximum characters of an address that a refusal shows."""


class NotAllowed(Exception):
    """An address that may not be read; its text names it and says why."""


class NotPublic(OSError):
    """A connection to an address that is not public was refused."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Allowed targets of links: `Reach(base="http://127.0.0.1:8000/", hosts=("127.0.0.1:8000", "wiki.corp"))`"""

    base: str = ""
    """Base URL of relative links; if empty, they are not followed."""
    hosts: Collection[str] = ()
    """Hosts that may be read even in an internal network, as `host` or `host:port`, in lower case."""
    open_web: bool = False
    """Whether every public host may be read, at the usual ports."""


def is_public(address: str) -> bool:
    """Whether a network address is on the public internet; raises ValueError if it is not a network address.

    is_public("93.184.216.34") and not is_public("169.254.169.254") and not is_public("::ffff:93.184.216.34")
    """
    parsed = ip_address(address)
    if parsed.version == 4:
        return not any(parsed in network for network in _PRIVATE)
    return parsed in _PUBLIC_6 and not any(parsed in network for network in _PRIVATE_6)


def connect_publicly(address_info: "aiohttp.AddrInfoType") -> socket.socket:
    """A socket for one address of `getaddrinfo`'s form, as aiohttp's `socket_factory`; raises NotPublic."""
    family, kind, protocol, _, address = address_info
    if not is_public(address[0]):
        raise NotPublic("not a public address")
    return socket.socket(family=family, type=kind, proto=protocol)


def read_link(link: str, reach: Reach, base: str = "") -> tuple[URL, bool]:
    """The absolute address, and whether its host is one of `reach.hosts`; raises NotAllowed.

    base: the page that a redirect came from; `reach.base` if empty.
    """
    if not link.isprintable():
        raise NotAllowed(f"{link[:SHOWN]} {NOT_READABLE}")
    try:
        url = parsed(urljoin(base or reach.base, link))
    except ValueError as error:  # an unpaired bracket, a port above 65535
        raise NotAllowed(f"{link[:SHOWN]} {NOT_READABLE}") from error
    known = with_port(url) in reach.hosts or (_host(url) in reach.hosts and url.is_default_port())
    if why := _objection(url) or ("" if known else _objection_to_stranger(url, reach)):
        raise NotAllowed(f"{link[:SHOWN]} {why}")
    return url, known


def parsed(link: str) -> URL:
    """The link as a URL; raises ValueError for an invalid address."""
    try:
        return URL(link)
    except IndexError as error:  # yarl's own, for http://[::1]@
        raise ValueError(f"{link[:SHOWN]} is cut off") from error


def with_port(url: URL) -> str:
    """The host with its port: "example.org:443", "[::1]:8000"."""
    return f"{_host(url)}:{url.port}"


def _host(url: URL) -> str:
    host = (url.raw_host or "").rstrip(".").lower()
    return f"[{host}]" if ":" in host else host


def _objection(url: URL) -> str:
    if url.scheme and url.scheme not in ("http", "https"):
        return "is neither http nor https"
    if not url.scheme or not _host(url):
        return "is not a full address such as https://example.org/page"
    if url.user is not None or url.password is not None:
        return "has a name or password in it"
    return ""


def _objection_to_stranger(url: URL, reach: Reach) -> str:
    if not reach.open_web:
        return NOT_READABLE
    if not url.is_default_port():
        return "has an unusual port"
    return "" if _may_be_public(_host(url).strip("[]")) else "is not on the public internet"


def _may_be_public(host: str) -> bool:
    """Whether a host, not resolved, may be a public one; other spellings of IPv4 addresses (127.1, 0x7f.1) are not."""
    try:
        return is_public(host)
    except ValueError:
        pass
    try:
        socket.inet_aton(host)
    except OSError:
        return "." in host and ":" not in host and not host.endswith(_INNER_NAMES)
    return False


def is_web_address(url: str) -> bool:
    """Whether the address is http or https and has a host, which is required in configurations."""
    try:
        return not _objection(parsed(url))
    except ValueError:
        return False


def is_loopback(url: str) -> bool:
    """Whether an address is that of the machine itself: 127.0.0.1, ::1 or localhost; False if it is not an address."""
    try:
        host = (parsed(url).host or "").rstrip(".")
        return host == "localhost" or host.endswith(".localhost") or ip_address(host).is_loopback
    except ValueError:
        return False


def redact(url: str) -> str:
    """An address for errors and logs: without credentials and query, which may contain keys."""
    try:
        return str(parsed(url).with_user(None).with_query(None).with_fragment(None))
    except ValueError:
        return "an address that cannot be parsed" if set("@?#") & set(url) else url


def has_password(text: str) -> bool:
    """Whether a text is an address with a password in it; False if it is not an address."""
    try:
        return "://" in text and parsed(text).password is not None
    except ValueError:
        return False
