"""One Spark session and one broker for all tests here: a session takes ten seconds and half a gigabyte."""

from __future__ import annotations

import itertools
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parent))  # for faults.py and the like, which the tests share


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "scenario(*numbers): numbered scenarios of the Spark integration")
    config.addinivalue_line("markers", "chaos: kills processes of Spark")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests only when asked for. The first test with a session also waits for the JVM, on a busy
    machine for a minute."""
    if not config.getoption("--spark-full"):
        long = [item for item in items if "spark_full" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]
    for item in items:
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture
def spark_full() -> None:
    """Marks a test that runs only when asked for."""


class Topics:
    """Topics with messages at known places, on whichever cluster the tests run against.

    With `alone` each topic is on one broker only, and they take turns: tests that count queues then hold on
    clusters of any size.
    """

    def __init__(self, name_server: str, *, alone: bool = False) -> None:
        from penstock.spark.brokers import brokers

        self.name_server = name_server
        self._alone = alone
        self.brokers = brokers(name_server)
        self._numbers = itertools.count(1)
        self._prefix = f"spark-{os.getpid()}-{time.time_ns() // 1_000_000}"

    def options(self, topic: str, **more: str) -> dict[str, str]:
        return {"nameServer": self.name_server, "subscribe": topic} | more

    def addresses(self) -> dict[str, str]:
        cluster = self.brokers.run(self.brokers.api.cluster_info())
        return {name: data.broker_addrs[0] for name, data in cluster.broker_addr_table.items()}

    def addresses_of(self, topic: str) -> dict[str, str]:
        """The brokers that a topic is on, or will be."""
        addresses = self.addresses()
        if not self._alone:
            return addresses
        name = sorted(addresses)[zlib.crc32(topic.encode()) % len(addresses)]
        return {name: addresses[name]}

    def new(self, queues: int = 3) -> str:
        topic = f"{self._prefix}-{next(self._numbers)}"
        self.set_queues(topic, queues)
        return topic

    def set_queues(self, topic: str, queues: int) -> None:
        from penstock.wire.codes import RequestCode
        from penstock.wire.headers import UpdateAndCreateTopicHeader

        header = UpdateAndCreateTopicHeader(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
        )
        request = self.brokers.api.remoting.request
        for address in self.addresses_of(topic).values():
            answer = self.brokers.run(request(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header))
            assert answer.code == 0, answer.remark
        deadline = time.monotonic() + 30
        while True:
            route = self.brokers.run(self.brokers.api.topic_route(topic))
            counts = [data.read_queue_nums for data in route.queue_datas] if route is not None else []
            if counts == [queues] * len(self.addresses_of(topic)):
                return
            assert time.monotonic() < deadline, "the name server does not know the topic"
            time.sleep(0.05)

    def send(
        self,
        topic: str,
        queue_id: int,
        bodies: Sequence[bytes],
        properties: bytes = b"",
        broker_name: str | None = None,
    ) -> None:
        """Messages in this order, at the end of this queue; returns when they can be read."""
        from penstock.message.batch import encode_batch
        from penstock.message.queue import MessageQueue
        from penstock.wire.codes import RequestCode
        from penstock.wire.headers import SendHeaderV2

        header = SendHeaderV2(
            producer_group="tests",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=time.time_ns() // 1_000_000,
            flag=0,
            properties="WAIT\x01true\x02",
            batch=True,
        )
        addresses = self.addresses_of(topic)
        name = broker_name or next(iter(addresses))
        address = addresses[name]
        queue = MessageQueue(topic, name, queue_id)
        end = self.brokers.run(self.brokers.api.max_offset(address, queue)) + len(bodies)
        for start in range(0, len(bodies), 1000):
            body = encode_batch((0, body, properties) for body in bodies[start : start + 1000])
            send = self.brokers.api.send(address, RequestCode.SEND_BATCH_MESSAGE, header, body, 5_000)
            answer = self.brokers.run(send)
            assert answer.code == 0, answer.remark
        deadline = time.monotonic() + 30
        while self.brokers.run(self.brokers.api.max_offset(address, queue)) < end:
            assert time.monotonic() < deadline, "acknowledged messages do not become visible"
            time.sleep(0.01)

    def group_offset(self, topic: str, group: str, queue_id: int) -> int | None:
        from penstock.message.queue import MessageQueue

        name, address = next(iter(self.addresses_of(topic).items()))
        query = self.brokers.api.query_offset(
            address, group, MessageQueue(topic, name, queue_id), zero_if_not_found=False
        )
        return self.brokers.run(query)


@pytest.fixture
def topics_of() -> Callable[[str], Topics]:
    """For tests with a broker of their own."""
    return Topics


@pytest.fixture(scope="session")
def topics() -> Iterator[Topics]:
    """PENSTOCK_TEST_NAME_SERVER names another cluster to run against, such as Apache's."""
    from penstock.testing import broker

    elsewhere = os.environ.get("PENSTOCK_TEST_NAME_SERVER")
    if elsewhere:
        yield Topics(elsewhere, alone=True)
    else:
        with broker() as running:
            yield Topics(running.name_server)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from penstock.spark import session
    from penstock.spark.spark_session import ARROW_UNCHECKED

    # Serial collection and the first compiler only: half the start-up time, and the jobs here are tiny.
    java = f"{ARROW_UNCHECKED} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    started = session(
        "tests",
        master="local[2,4]",
        memory="1g",
        config={"spark.driver.extraJavaOptions": java, "spark.log.level": "ERROR"},
    )
    yield started
    started.stop()


@pytest.fixture
def read(spark: SparkSession, topics: Topics) -> Callable[..., Any]:
    """A batch DataFrame of a topic."""

    def load(topic: str, **options: str) -> Any:
        return spark.read.format("rocketmq").options(**topics.options(topic, **options)).load()

    return load
