"""What several of the tests here need done."""

from __future__ import annotations

from typing import Any


def expire_half(pops: Any) -> int:
    """Old files go, as they do after their days; tells the first offset that is left."""
    bench = pops.bench
    bench.now_ms += 10_000 * 3_600_000  # files have their times from the real clock
    assert bench.ask(329, {}).code == 0  # DELETE_EXPIRED_COMMITLOG
    for _ in range(5):
        bench.now_ms += 70_000
        for job in bench.store.tick(bench.now_ms):
            job()
    return int(bench.store.min_offset("T", 0))


def item(body: bytes, properties: str) -> bytes:
    """One message of a batch body."""
    text = properties.encode()
    head = (0).to_bytes(4, "big") + (0).to_bytes(4, "big") + (0).to_bytes(4, "big")
    rest = len(body).to_bytes(4, "big") + body + len(text).to_bytes(2, "big") + text
    return (4 + len(head) + len(rest)).to_bytes(4, "big") + head + rest
