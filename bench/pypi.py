"""The PyPI package rocketmq-python-client, which speaks only gRPC."""

from __future__ import annotations

import servers


def why_not(broker: servers.Running) -> str:
    return "it speaks gRPC and nothing else, and this broker has no gRPC front"


def figures(broker: servers.Running, seconds: float) -> dict[str, float]:
    raise NotImplementedError
