"""Finds the proxy of a request in the usual variables: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."""

from ipaddress import ip_address
from urllib.request import getproxies_environment, proxy_bypass

from yarl import URL

from coa.errors import UserError
from coa.http.addresses import redact


def proxy_of(url: URL) -> URL | None:
    """The proxy for requests to an address; None if there is none, as always for this machine's own addresses. Raises
    UserError for a proxy that is not asked by HTTP."""
    proxies = getproxies_environment()
    address = proxies.get(url.scheme) or proxies.get("all", "")
    if not address or is_loopback(url.host or "") or proxy_bypass(f"{url.host}:{url.port}", proxies):
        return None
    try:
        proxy = URL(address if "://" in address else f"http://{address}")
    except ValueError:
        proxy = URL()
    if proxy.scheme not in ("http", "https") or not proxy.host:
        raise UserError(
            f"the proxy of {url.scheme} addresses is {redact(address)}, expected one such as http://proxy:3128"
        )
    return proxy


def is_loopback(host: str) -> bool:
    """Whether a host is this machine: "localhost", "127.0.0.1", "::1"."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return f".{host.rstrip('.').lower()}".endswith(".localhost")
    return address.is_loopback or address.is_unspecified
