"""How far groups are, asked of a broker that knows offsets only, as Apache's do."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.admin import AdminClient, TopicSettings, group_lags, set_consume_mode
from penstock.errors import ServerError
from penstock.message.queue import MessageQueue
from penstock.testing import broker
from penstock.transport.loop import run
from penstock.wire.bodies import SubscriptionGroupConfig
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.headers import SendHeaderV2, UpdateConsumerOffsetHeader


class ApacheLike(AdminClient):
    """What it asks about lags is refused."""

    async def ask(self, address: str, code: int, *args: Any, **options: Any) -> Any:
        if code == RequestCode.GET_GROUP_LAG:
            raise ServerError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "not supported", address=address)
        return await super().ask(address, code, *args, **options)


@pytest.mark.parametrize("group", ["g", None])
def test_what_waits_is_told_by_offsets(group: str | None) -> None:
    async def main() -> None:
        with broker(flush="async") as server:
            async with ApacheLike(server.name_server) as admin:
                await admin.create_topic("t", TopicSettings(read_queues=1, write_queues=1))
                await admin.update_group(SubscriptionGroupConfig(group_name="g"))
                for _ in range(5):
                    header = SendHeaderV2("p", "t", "TBW102", 1, 0, 0, 1, 0, "")
                    await admin.ask(server.address, RequestCode.SEND_MESSAGE_V2, header, b"x")
                queue = MessageQueue("t", server.broker_name, 0)
                commit = UpdateConsumerOffsetHeader("g", queue.topic, queue.queue_id, 2)
                await admin.ask(server.address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
                await set_consume_mode(admin, "t", "g", "POP")
                (lag,) = [lag for lag in await group_lags(admin, group) if lag.topic == "t"]
                assert (lag.group, lag.mode, lag.ready, lag.in_flight, lag.delayed) == ("g", "POP", 3, 0, 0)
                assert lag.oldest_timestamp is not None

    run(main())
