"""The name server: which broker serves which topic. A pure core; `runtime` gives it sockets and a clock."""

from penstock.namesrv.server import NameServer
from penstock.namesrv.settings import NamesrvSettings

__all__ = ["NameServer", "NamesrvSettings"]
