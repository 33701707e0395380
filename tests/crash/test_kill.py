"""kill -9 of a real `penstock serve` under load, again and again on one data directory.

What the broker confirmed must be there afterwards, once and unchanged. What was asked but never confirmed may
be there or not, but whole. A few lives end while they start, and a few by SIGTERM, so that recovery begins at
different places.
"""

from __future__ import annotations

import asyncio
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import RemotingError
from penstock.message.batch import encode_batch
from penstock.message.ids import unique_id
from penstock.message.record import RecordView, check_record, split_records
from penstock.transport.client import Connection
from penstock.wire.bodies import SubscriptionGroupConfig, TopicConfigSerializeWrapper, TopicRouteData
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command

KILLS, FULL_KILLS = 3, 100
"""For each of the two ways to flush."""
LONGEST_LIFE_S = 0.8
FULL_CHECK_EVERY = 10
"""Restarts between two looks at everything; the others look at what is new and at a sample of the rest."""

FILE_BYTES = 1 << 20
SMALL_FILES = {
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}
"""So that every life fills some of each kind."""

TOPICS = ("orders", "payments", "events")
QUEUES = 3
GROUP = "readers"
DELAYED = "later"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
CQ_ENTRY = struct.Struct(">qiq")


def body_of(number: int) -> bytes:
    """Its number, then a filling from which any shift or cut shows; some bodies span many pages."""
    size = 60_000 if number % 89 == 0 else 8 + number * 7919 % 400
    return (number.to_bytes(8, "big") * (size // 8 + 1))[:size]


def number_of(record: RecordView) -> int:
    return int.from_bytes(record.body[:8], "big")


class Ledger:
    """What was asked of the broker, and what it confirmed."""

    def __init__(self) -> None:
        self.asked: dict[int, tuple[str, int, str]] = {}
        """number → topic, queue, unique key."""
        self.stored: dict[int, int] = {}
        """number → queue offset: confirmed."""
        self.delayed: dict[int, int] = {}
        """number → offset in the schedule queue: confirmed."""
        self.offsets_asked: dict[tuple[str, int], int] = {}
        self.offsets: dict[tuple[str, int], int] = {}
        self.topics: set[str] = set()
        self.checked: dict[tuple[str, int], int] = {}
        """(topic, queue) → messages that an earlier check has seen."""
        self._number = 0

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def properties(self, number: int, topic: str, queue_id: int) -> str:
        key = unique_id()
        self.asked[number] = (topic, queue_id, key)
        return f"KEYS\x01key-{number}\x02TAGS\x01t{number % 5}\x02UNIQ_KEY\x01{key}\x02n\x01{number}\x02"

    def check(self, record: RecordView) -> int:
        """Whether a record is one that was asked for, whole and unchanged; tells its number."""
        record.verify()
        number = number_of(record)
        assert record.body == body_of(number)
        properties = record.properties
        assert properties["n"] == str(number)
        assert properties["KEYS"] == f"key-{number}"
        assert properties["TAGS"] == f"t{number % 5}"
        assert properties["UNIQ_KEY"] == self.asked[number][2]
        return number


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Connection]:
    connection = await Connection.open(address, connect_timeout_ms=10_000)
    try:
        yield connection
    finally:
        await connection.close()


# ---- the load ---------------------------------------------------------------------------------------


class Load:
    """Everything at once, until the connection breaks."""

    def __init__(self, ledger: Ledger, rng: random.Random) -> None:
        self.ledger = ledger
        self.rng = rng
        self._confirmed = asyncio.Event()

    async def run(
        self, address: str, process: subprocess.Popen[str], end: signal.Signals, *, at_once: bool
    ) -> None:
        """The process gets the signal in the middle of it: some time after its first confirmation, however
        busy the machine is, or perhaps before that."""
        if at_once:
            self._confirmed.set()

        async def strike() -> None:
            await self._confirmed.wait()
            await asyncio.sleep(self.rng.uniform(0.0, 0.05 if at_once else LONGEST_LIFE_S))
            process.send_signal(end)

        producers = [self.send] * 12 + [self.send_batch] * 3 + [self.send_delayed, self.commit, self.create]
        async with connected(address) as first, connected(address) as second:
            await asyncio.gather(
                strike(),
                *(self._until_broken(work, (first, second)[n % 2]) for n, work in enumerate(producers)),
            )

    async def _until_broken(
        self, work: Callable[[Connection], Coroutine[Any, Any, None]], connection: Connection
    ) -> None:
        try:
            while True:
                await work(connection)
        except RemotingError:
            pass

    async def _send(
        self, connection: Connection, topic: str, queue_id: int, properties: str, body: bytes, batch: bool
    ) -> int | None:
        """The confirmed queue offset."""
        values = ("p", topic, "TBW102", str(QUEUES), str(queue_id), "0", "1", "0", properties, "0", "false")
        ext = {**dict(zip("abcdefghijk", values, strict=True)), "m": "true" if batch else "false"}
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        answer = await connection.request(code, ext, body, timeout_ms=20_000)
        if answer.code != ResponseCode.SUCCESS:  # a broker that stops may say so
            raise AssertionError(f"{answer.code}: {answer.remark}")
        assert int(answer.ext["queueId"]) == queue_id
        return int(answer.ext["queueOffset"])

    async def send(self, connection: Connection) -> None:
        ledger, number = self.ledger, self.ledger.next_number()
        topic, queue_id = self.rng.choice(TOPICS), self.rng.randrange(QUEUES)
        properties = ledger.properties(number, topic, queue_id)
        ledger.stored[number] = await self._send(
            connection, topic, queue_id, properties, body_of(number), batch=False
        )
        ledger.topics.add(topic)
        self._confirmed.set()

    async def send_batch(self, connection: Connection) -> None:
        ledger = self.ledger
        topic, queue_id = self.rng.choice(TOPICS), self.rng.randrange(QUEUES)
        numbers = [ledger.next_number() for _ in range(self.rng.randint(1, 20))]
        items = [(0, body_of(n), ledger.properties(n, topic, queue_id).encode()) for n in numbers]
        first = await self._send(connection, topic, queue_id, "", encode_batch(items), batch=True)
        for place, number in enumerate(numbers):
            ledger.stored[number] = first + place
        await asyncio.sleep(0.01)

    async def send_delayed(self, connection: Connection) -> None:
        ledger, number = self.ledger, self.ledger.next_number()
        properties = ledger.properties(number, DELAYED, 0) + "DELAY\x011\x02"
        ledger.delayed[number] = await self._send(
            connection, DELAYED, 0, properties, body_of(number), batch=False
        )
        await asyncio.sleep(0.01)

    async def commit(self, connection: Connection) -> None:
        ledger = self.ledger
        queue = (self.rng.choice(tuple(ledger.topics) or ("TBW102",)), self.rng.randrange(QUEUES))
        offset = ledger.offsets_asked[queue] = ledger.offsets_asked.get(queue, 0) + 1
        ext = {"consumerGroup": GROUP, "topic": queue[0], "queueId": str(queue[1])}
        answer = await connection.request(
            RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "commitOffset": str(offset)}, timeout_ms=20_000
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        ledger.offsets[queue] = offset

    async def create(self, connection: Connection) -> None:
        name = f"made-{self.ledger.next_number()}"
        ext = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
        ext |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false"}
        answer = await connection.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext, timeout_ms=20_000)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        self.ledger.topics.add(name)
        await asyncio.sleep(0.05)


# ---- the checks -------------------------------------------------------------------------------------


class Check:
    """Asks a broker that has just started for everything in the ledger."""

    def __init__(self, ledger: Ledger, connection: Connection, rng: random.Random, *, full: bool) -> None:
        self.ledger = ledger
        self.connection = connection
        self.rng = rng
        self.full = full

    async def ask(self, code: int, **ext: Any) -> Command:
        return await self.connection.request(
            code, {key: str(value) for key, value in ext.items()}, timeout_ms=20_000
        )

    async def run(self, log: dict[tuple[str, int], list[int]]) -> None:
        ledger = self.ledger
        queues = [(topic, queue_id) for topic in TOPICS for queue_id in range(QUEUES)]
        found = await asyncio.gather(*(self.read_queue(*queue) for queue in queues))
        for queue, (start, positions) in zip(queues, found, strict=True):
            assert positions == log.get(queue, [])[start:], queue
            assert await self.max_offset(*queue) == len(log.get(queue, [])), queue
        await self.check_delayed()
        await self.check_keys()
        for (topic, queue_id), offset in ledger.offsets.items():
            answer = await self.ask(14, consumerGroup=GROUP, topic=topic, queueId=queue_id)
            asked = ledger.offsets_asked[topic, queue_id]
            assert offset <= int(answer.ext["offset"]) <= asked, (topic, queue_id)
        answer = await self.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        table = TopicConfigSerializeWrapper.decode(answer.body or b"").topic_config_table
        assert ledger.topics <= table.keys()

    async def max_offset(self, topic: str, queue_id: int) -> int:
        return int((await self.ask(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=queue_id)).ext["offset"])

    async def pull(self, topic: str, queue_id: int, offset: int) -> Command:
        return await self.ask(
            RequestCode.PULL_MESSAGE,
            consumerGroup=GROUP,
            topic=topic,
            queueId=queue_id,
            queueOffset=offset,
            maxMsgNums=32,
            sysFlag=4,
            commitOffset=0,
            suspendTimeoutMillis=0,
            subscription="*",
            subVersion=0,
            expressionType="TAG",
        )

    async def read_queue(self, topic: str, queue_id: int) -> tuple[int, list[int]]:
        """Looks at a queue from an offset on; tells it, and where in the log each message is."""
        ledger = self.ledger
        offset = start = 0 if self.full else ledger.checked.get((topic, queue_id), 0)
        numbers: list[int] = []
        positions: list[int] = []
        while True:
            answer = await self.pull(topic, queue_id, offset)
            if answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST):
                break
            assert answer.code == ResponseCode.SUCCESS, (topic, queue_id, offset, answer.remark)
            for record in split_records(answer.body or b""):
                assert (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, offset)
                number = ledger.check(record)
                assert ledger.asked[number][:2] == (topic, queue_id)
                numbers.append(number)
                positions.append(record.physical_offset)
                offset += 1
        assert len(set(numbers)) == len(numbers), "a message is there twice"
        places = {number: start + place for place, number in enumerate(numbers)}
        confirmed = {
            number: at
            for number, at in ledger.stored.items()
            if ledger.asked[number][:2] == (topic, queue_id) and at >= start
        }
        wrong = {
            number: (at, places.get(number)) for number, at in confirmed.items() if places.get(number) != at
        }
        assert not wrong, f"{topic} queue {queue_id}: confirmed offset and place: {wrong}"
        ledger.checked[topic, queue_id] = offset
        return start, positions

    async def check_delayed(self) -> None:
        for number, offset in self.sample(self.ledger.delayed.items(), 20):
            answer = await self.pull(SCHEDULE, 0, offset)
            assert answer.code == ResponseCode.SUCCESS, (number, offset, answer.remark)
            assert self.ledger.check(split_records(answer.body or b"")[0]) == number

    async def check_keys(self) -> None:
        """What is asked for by key is found, once; keys of other messages may share a hash."""
        newest = sorted(self.ledger.stored)[-100:]
        for number in {*newest, *self.sample(self.ledger.stored, 100)}:
            topic, _, unique_key = self.ledger.asked[number]
            for key in (f"key-{number}", unique_key):
                answer = await self.ask(
                    12, topic=topic, key=key, maxNum=64, beginTimestamp=0, endTimestamp=1 << 62
                )
                assert answer.code == ResponseCode.SUCCESS, (number, key, answer.remark)
                found = [self.ledger.check(record) for record in split_records(answer.body or b"")]
                assert found.count(number) == 1, (number, key, found)

    def sample(self, items: Any, count: int) -> list[Any]:
        every = list(items)
        return every if len(every) <= count else self.rng.sample(every, count)

    async def wait_for_delayed(self) -> None:
        """Every confirmed one arrives, perhaps twice: a crash may come before the note that it has."""
        deadline = time.monotonic() + 30
        missing = set(self.ledger.delayed)
        offset = 0
        while missing:
            assert time.monotonic() < deadline, f"not delivered: {missing}"
            answer = await self.pull(DELAYED, 0, offset)
            if answer.code != ResponseCode.SUCCESS:
                await asyncio.sleep(0.1)
                continue
            for record in split_records(answer.body or b""):
                missing.discard(self.ledger.check(record))
                offset += 1


def read_log(data: Path) -> dict[tuple[str, int], list[int]]:
    """(topic, queue) → positions of its records, by walking the files of the commit log."""
    queues: dict[tuple[str, int], list[int]] = {}
    for record in walk(data):
        positions = queues.setdefault((record.topic, record.queue_id), [])
        assert record.queue_offset == len(positions), record
        positions.append(record.physical_offset)
    return queues


def walk(data: Path) -> Iterator[RecordView]:
    for path in sorted((data / "commitlog").iterdir()):
        content, at = path.read_bytes(), 0
        while (size := check_record(content, at, len(content), crc=True)) > 0:
            record = RecordView(content, at)
            assert record.physical_offset == int(path.name) + at
            yield record
            at += size
        if size < 0:
            assert not any(content[at:]), f"{path.name}: something is left behind the last record at {at}"


def check_queue_files(data: Path) -> None:
    """After a clean stop the files of the consume queues are what the log says, entry by entry."""
    for (topic, queue_id), positions in read_log(data).items():
        directory = data / "consumequeue" / topic / str(queue_id)
        entries = [
            entry
            for path in sorted(directory.iterdir())
            for entry in CQ_ENTRY.iter_unpack(path.read_bytes())
            if entry[1] > 0
        ]
        assert [position for position, _, _ in entries] == positions, (topic, queue_id)


# ---- the lives of a broker --------------------------------------------------------------------------


def kill_while_it_starts(data: Path, rng: random.Random, options: list[str]) -> None:
    command = [sys.executable, "-m", "penstock.cli", "serve", "--data", str(data), *options]
    process = subprocess.Popen(
        [*command, "--namesrv-port", "0", "--broker-port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(rng.uniform(0.1, 0.5))
    process.kill()
    process.wait()


async def make_group(address: str) -> None:
    async with connected(address) as connection:
        body = SubscriptionGroupConfig(group_name=GROUP).encode()
        answer = await connection.request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


@pytest.mark.crash
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_what_was_confirmed_survives_kill_9(
    start: Callable[..., Any], tmp_path: Path, request: pytest.FixtureRequest, flush: str
) -> None:
    kills = FULL_KILLS if request.config.getoption("--crash-full") else KILLS
    rng = random.Random(flush)
    ledger = Ledger()
    data = tmp_path / "data"
    options = ["--flush", flush]
    for key, value in SMALL_FILES.items():
        options += ["--set", f"{key}={value}"]

    async def check(address: str, *, full: bool) -> None:
        async with connected(address) as connection:
            await Check(ledger, connection, rng, full=full).run(read_log(data))

    serve = start("serve", *options)
    asyncio.run(make_group(serve.addresses[0]))
    for life in range(kills):
        end = signal.SIGTERM if life % 7 == 5 else signal.SIGKILL
        before, at_once = len(ledger.stored), life % 5 == 3
        asyncio.run(Load(ledger, rng).run(serve.addresses[0], serve.process, end, at_once=at_once))
        code, _, errors = serve.end()
        assert (code, errors) == (0 if end == signal.SIGTERM else -signal.SIGKILL, "")
        assert at_once or len(ledger.stored) > before
        if life % 4 == 1:
            kill_while_it_starts(data, rng, options)
        serve = start("serve", *options)
        asyncio.run(check(serve.addresses[0], full=life % FULL_CHECK_EVERY == 0 or life == kills - 1))

    async def check_the_end() -> None:
        async with connected(serve.addresses[0]) as connection:
            await Check(ledger, connection, rng, full=True).wait_for_delayed()
        async with connected(serve.name_server) as connection:
            for topic in ledger.topics:
                answer = await connection.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
                assert TopicRouteData.decode(answer.body or b"").queue_datas

    asyncio.run(check_the_end())
    assert serve.stop()[0] == 0
    check_queue_files(data)
    assert ledger.offsets
    assert ledger.delayed
    assert any(topic.startswith("made-") for topic in ledger.topics)
