"""The admin client against a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.admin import AdminClient, TopicSettings
from penstock.admin import client as client_module
from penstock.errors import BrokerNotFound, InvalidArgument, NoNameServer, ServerError, TopicNotFound
from penstock.message.queue import MessageQueue
from penstock.testing import RunningBroker, broker
from penstock.transport.loop import run
from penstock.wire.bodies import SubscriptionGroupConfig
from penstock.wire.codes import RequestCode
from penstock.wire.headers import PopHeader, SendHeaderV2, UpdateConsumerOffsetHeader


@pytest.fixture(scope="module")
def server() -> Iterator[RunningBroker]:
    with broker() as running:
        yield running


async def send(admin: AdminClient, address: str, topic: str, count: int) -> None:
    for _ in range(count):
        header = SendHeaderV2("p", topic, "TBW102", 4, 0, 0, 1, 0, "")
        await admin.ask(address, RequestCode.SEND_MESSAGE_V2, header, b"x")


def test_clusters_and_brokers_are_found(server: RunningBroker) -> None:
    async def main() -> None:
        async with AdminClient(server.name_server) as admin:
            assert await admin.masters() == {server.broker_name: server.address}
            assert await admin.masters("DefaultCluster") == {server.broker_name: server.address}
            with pytest.raises(BrokerNotFound, match="there is no cluster nope; known: DefaultCluster"):
                await admin.masters("nope")
            info = await admin.runtime_info(server.address)
            assert info["brokerActive"] == "true"

    run(main())


def test_settings_are_read_and_changed(server: RunningBroker) -> None:
    async def main() -> None:
        async with AdminClient(server.name_server) as admin:
            await admin.update_broker_config(server.address, {"flushDelayOffsetInterval": "12345"})
            assert (await admin.broker_config(server.address))["flushDelayOffsetInterval"] == "12345"
            with pytest.raises(ServerError, match="code 29"):
                await admin.update_broker_config(server.address, {"flushDelayOffsetInterval": "often"})

    run(main())


def test_a_created_topic_is_routed_when_the_call_returns(server: RunningBroker) -> None:
    async def main() -> None:
        async with AdminClient(server.name_server) as admin:
            made = await admin.create_topic("routed", TopicSettings(read_queues=2, write_queues=3))
            assert made[server.broker_name].write_queue_nums == 3
            (data,) = (await admin.route("routed")).queue_datas
            assert (data.read_queue_nums, data.write_queue_nums) == (2, 3)
            assert await admin.delete_topic("routed") == [server.broker_name]
            with pytest.raises(TopicNotFound):
                await admin.route("routed")
            with pytest.raises(TopicNotFound):
                await admin.delete_topic("routed")

    run(main())


def test_topic_statistics_and_progress_of_a_group(server: RunningBroker) -> None:
    async def main() -> None:
        async with AdminClient(server.name_server) as admin:
            await admin.create_topic("counted", TopicSettings(read_queues=2, write_queues=2))
            await send(admin, server.address, "counted", 3)
            queue = MessageQueue("counted", server.broker_name, 0)
            stats = await admin.topic_stats("counted")
            assert stats.offset_table[queue].max_offset == 3
            await admin.update_group(SubscriptionGroupConfig("billing", retry_max_times=5))
            assert (await admin.groups(server.address))["billing"].retry_max_times == 5
            header = UpdateConsumerOffsetHeader("billing", "counted", 0, 2)
            await admin.ask(server.address, RequestCode.UPDATE_CONSUMER_OFFSET, header)
            assert await admin.topic_groups("counted") == ["billing"]
            progress = (await admin.consume_stats("billing")).offset_table[queue]
            assert (progress.broker_offset, progress.consumer_offset) == (3, 2)
            assert await admin.consumer_connection("billing") is None
            moved = await admin.reset_offset("billing", "counted", 0)
            assert moved.offset_table[queue] == 0
            await admin.delete_group("billing", clean_offset=True)
            assert "billing" not in await admin.groups(server.address)
            assert await admin.topic_groups("counted") == []

    run(main())


def test_tables_are_read_page_by_page(server: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PAGE", 4)

    async def main() -> None:
        async with AdminClient(server.name_server) as admin:
            names = set(await admin.topic_configs(server.address))
            assert names == set(await admin.topic_names())
            assert len(names) > 8

    run(main())


def test_an_order_topic_is_known_to_the_name_servers(server: RunningBroker) -> None:
    async def main() -> None:
        async with AdminClient(server.name_server) as admin:
            await admin.create_topic("ordered", TopicSettings(write_queues=2, order=True))
            answer = await admin.ask_name_server(
                RequestCode.GET_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "ordered"}
            )
            assert answer.ext["value"] == f"{server.broker_name}:2"
            await admin.delete_topic("ordered")
            with pytest.raises(ServerError, match="code 22"):
                await admin.ask_name_server(
                    RequestCode.GET_KV_CONFIG, {"namespace": "ORDER_TOPIC_CONFIG", "key": "ordered"}
                )

    run(main())


def test_one_dead_name_server_of_two_does_not_stop_reading_but_fails_writing(server: RunningBroker) -> None:
    async def main() -> None:
        async with AdminClient(f"127.0.0.1:1;{server.name_server}") as admin:
            assert server.broker_name in await admin.masters()
            await admin.create_topic("half")
            with pytest.raises(NoNameServer, match=r"127\.0\.0\.1:1"):
                await admin.delete_topic("half")

    run(main())


@pytest.mark.parametrize("address", ["", ";", []])
def test_an_address_is_needed(address: str | list[str]) -> None:
    with pytest.raises(InvalidArgument):
        AdminClient(address)


def test_lags_and_leases_of_pop_groups(server: RunningBroker) -> None:
    async def main() -> None:
        async with AdminClient(server.name_server) as admin:
            await admin.create_topic("popped", TopicSettings(read_queues=1, write_queues=1))
            await send(admin, server.address, "popped", 3)
            header = PopHeader("workers", "popped", 0, 2, 60_000, 0, 0, 0)
            assert (await admin.ask(server.address, RequestCode.POP_MESSAGE, header)).code == 0
            (lag,) = await admin.group_lags("workers")
            assert (lag.topic, lag.ready, lag.in_flight, lag.delayed) == ("popped", 1, 2, 0)
            assert lag in await admin.group_lags()
            shown = await admin.leases("workers")
            assert shown.total == 2
            (lease,) = shown.leases
            assert (lease.broker_name, lease.offsets) == (server.broker_name, [0, 1])
            with pytest.raises(ServerError, match="there is no group nobody"):
                await admin.leases("nobody")

    run(main())
