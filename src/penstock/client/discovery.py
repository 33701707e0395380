"""Name-server addresses from an HTTP server, for deployments where they change."""

from __future__ import annotations

import asyncio
import logging
import urllib.request

from penstock.client.config import ClientSettings, parse_addresses
from penstock.errors import InvalidArgument, NoNameServer

log = logging.getLogger("penstock.client")

TIMEOUT_SECONDS = 3.0


def url_of(settings: ClientSettings) -> str:
    domain = settings.discovery_domain
    host = domain if ":" in domain else f"{domain}:8080"
    unit = f"-{settings.unit_name}?nofix=1" if settings.unit_name else ""
    return f"http://{host}/rocketmq/{settings.discovery_subgroup}{unit}"


async def fetch(settings: ClientSettings) -> list[str]:
    """The addresses in the first line of the answer. Raises NoNameServer."""
    if not settings.discovery_domain:
        raise NoNameServer(
            "no name server is configured: pass name_server='host:port', set NAMESRV_ADDR, "
            "or give discovery_domain"
        )
    url = url_of(settings)
    try:
        addresses = parse_addresses(await asyncio.to_thread(_get_first_line, url))
    except (OSError, InvalidArgument) as error:
        raise NoNameServer(f"{url} gave no name-server addresses: {error}") from None
    if not addresses:
        raise NoNameServer(f"{url} gave no name-server addresses")
    return addresses


def _get_first_line(url: str) -> str:
    with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:  # the scheme is always http
        return str(response.readline(4_096), "utf-8")
