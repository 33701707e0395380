from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.client.pulled import PulledMessage, PullInfo
from penstock.message.ids import pack_host
from penstock.message.properties import encode_properties
from penstock.message.queue import MessageQueue
from penstock.message.record import RecordView, encode_record

MakeMessage = Callable[..., PulledMessage]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "scenario(number): scenarios at the end of the client chapter")


@pytest.fixture
def make_message() -> MakeMessage:
    def make(
        offset: int,
        *,
        topic: str = "T",
        queue_id: int = 0,
        body: bytes = b"body",
        properties: dict[str, str] | None = None,
        reconsume_times: int = 0,
    ) -> PulledMessage:
        record = encode_record(
            topic=topic.encode(),
            queue_id=queue_id,
            flag=0,
            queue_offset=offset,
            physical_offset=offset * 1000,
            sys_flag=0,
            born_ms=1,
            born_host=pack_host("127.0.0.1", 1),
            store_ms=2,
            store_host=pack_host("127.0.0.1", 2),
            reconsume_times=reconsume_times,
            prepared_offset=0,
            body=body,
            properties=encode_properties(properties or {}).encode(),
        )
        return PulledMessage(RecordView(record), PullInfo(MessageQueue(topic, "b", queue_id), 0, 100))

    return make
