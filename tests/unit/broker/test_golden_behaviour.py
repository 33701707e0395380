"""Every case recorded from a real broker, asked of ours. What differs on purpose is listed, with why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.message.batch import encode_batch
from penstock.message.record import split_records
from penstock.message.tags import tag_code
from penstock.wire.bodies import SubscriptionGroupConfig, TopicConfig
from penstock.wire.command import Command

GOLDEN = Path(__file__).parents[2] / "golden" / "behaviour"
VOLATILE = {"msgId", "transactionId"}
STATES = {"empty": "Empty", "from zero": "Fresh", "head deleted": "Cut", "all deleted": "Gone"}


def cases(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((GOLDEN / f"{name}.json").read_text())
    return loaded


class World:
    """The topics, queues and groups that the recorded broker had."""

    def __init__(self, new_bench: Callable[..., Any]) -> None:
        self.bench = new_bench(
            mappedFileSizeCommitLog=str(1 << 16), mappedFileSizeConsumeQueue="6000", maxMessageSize="32768"
        )
        for topic in ("Gone", "Cut", "Fresh", "Empty"):
            self.topic(topic, 1)
        for _ in range(3):
            self.append("Gone", "A", 100)
        for i in range(60):
            self.append("Cut", "AB"[i % 2], 4000)
        self.bench.close()
        for number in range(3):
            (self.bench.directory / "commitlog" / f"{number << 16:020d}").unlink()
        self.bench.open()
        for i in range(10):
            self.append("Fresh", "AB"[i % 2], 50)
        self.topic("Sending", 4)
        self.topic("ReadOnly", 4, perm=4)
        self.topic("WriteOnly", 4, perm=2)
        self.topic("NoPerm", 4, perm=0)
        self.topic("Ordered", 4, order=True)
        self.group("CommitG")
        self.group("Disabled", consume_enable=False)

    def topic(self, name: str, queues: int, **fields: Any) -> None:
        self.bench.broker.topics.put(
            TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues, **fields), self.bench.now_ms
        )

    def group(self, name: str, **fields: Any) -> None:
        self.bench.broker.groups.put(SubscriptionGroupConfig(name, **fields), self.bench.now_ms)

    def append(self, topic: str, tag: str, size: int) -> None:
        bench = self.bench
        bench.now_ms += 5
        host = bench.peer.remote_host
        properties = f"TAGS\x01{tag}\x02".encode()
        bench.store.append(
            topic, 0, 0, 0, bench.now_ms, host, 0, 0, bytes(size), properties, tag_code(tag), (), bench.now_ms
        )
        bench.flush()

    def ask(self, case: dict[str, Any], *, fields: dict[str, str] | None = None) -> Command:
        fields = dict(case["fields"] if fields is None else fields)
        if "characters: k\x01" in fields.get("i", ""):
            size = int(fields["i"].split()[0])
            fields["i"] = "k\x01" + "v" * (size - 3) + "\x02"
        answer = self.bench.ask(case["code"], fields, body_of(case))
        assert isinstance(answer, Command)
        return answer


def body_of(case: dict[str, Any]) -> bytes:
    size = case["bodyLength"]
    if size is None:
        return b""
    if case["code"] == 320 or case["fields"].get("m") == "true":
        if size == 66:
            return encode_batch([(0, b"1", b"KEYS\x01k1\x02\x02\x02"), (0, b"2", b"KEYS\x01k2\x02\x02\x02")])
        if size > 32_768:
            return encode_batch([(0, bytes(size - 22), b"")])
    return b"x" * size


def first_line(remark: str | None) -> str | None:
    """Without the pointers to a web page that the recorded remarks end with."""
    return remark.split("\n")[0].strip() if remark else None


def difference(case: dict[str, Any], answer: Command, *, unchecked: frozenset[str] = frozenset()) -> Any:
    """None, or what was different."""
    theirs = case["responseFields"] or {}
    ours = answer.ext
    if answer.code != case["responseCode"]:
        return f"{case['responseCode']} -> {answer.code}"
    if answer.code != 1 and first_line(answer.remark) != first_line(case["remark"]):
        return first_line(answer.remark)
    if theirs.keys() != ours.keys():
        return sorted(ours)
    changed = {key for key in ours if ours[key] != theirs[key]} - VOLATILE - unchecked
    if changed:
        return {key: (theirs[key], ours[key]) for key in changed}
    if "queueOffsets" in case:
        offsets = [record.queue_offset for record in split_records(answer.body or b"")]
        return None if offsets == case["queueOffsets"] else offsets
    return None


@pytest.fixture
def world(new_bench: Callable[..., Any]) -> World:
    return World(new_bench)


def test_sends_are_answered_as_recorded(world: World) -> None:
    found = {}
    for case in cases("send"):
        answer = world.ask(case)
        unlike = difference(case, answer, unchecked=frozenset({"queueOffset"}))
        if unlike is not None and case["case"] != "queue id -1 means any":
            found[case["case"]] = unlike
    batch_refusal = "a batch can neither be delayed nor be part of a transaction"
    timer_refusal = "timer messages are not served by this broker yet"
    assert found == {
        # An answer of 1 makes clients try other brokers; the message is at fault, so ours says 13.
        "no body": "1 -> 13",
        "delay level x": "1 -> 13",
        "batch with damaged body": "1 -> 13",
        "batch with too large body": "1 -> 13",
        # The same code, but a remark that says which rule was broken.
        "batch with delay": batch_refusal,
        # A client's message in the timer's own topic would stop the timer.
        "system topic rmq_sys_wheel_timer": "0 -> 16",
        # Not served yet: refused rather than stored as something else.
        "timer 4 days": timer_refusal,
        "timer x": timer_refusal,
        "timer in the past": "0 -> 13",
        "half message": "0 -> 16",
        "end transaction of a message that is no half message": "1 -> 3",
        "end transaction beyond the log": "1 -> 3",
    }


@pytest.mark.behaviour("STO-2", "STO-4")
def test_pulls_are_answered_as_recorded(world: World) -> None:
    found = {}
    for case in cases("pull"):
        if case["case"].startswith("long poll"):
            opaque = world.bench.request(11, case["fields"])
            world.bench.wait(1000)
            answer = world.bench.answered(opaque)
        else:
            answer = world.ask(case)
        unlike = difference(case, answer)
        if unlike is not None:
            found[case["case"]] = unlike
    assert found == {}


def test_consumer_offsets_are_answered_as_recorded(world: World) -> None:
    found = {}
    for case in cases("consumer-offset"):
        unlike = difference(case, world.ask(case))
        if unlike is not None:
            found[case["case"]] = unlike
    assert found == {}


SETTINGS = {
    "brokerPermission 4": {"brokerPermission": "4"},
    "brokerPermission 2": {"brokerPermission": "2"},
    "autoCreateSubscriptionGroup false": {"autoCreateSubscriptionGroup": "false"},
    "autoCreateTopicEnable switched to false at run time": {"autoCreateTopicEnable": "false"},
    "enablePropertyFilter true": {"enablePropertyFilter": "true"},
    "unknown expression type": {"enablePropertyFilter": "true"},
    "rejectTransactionMessage true": {"rejectTransactionMessage": "true"},
    "startAcceptSendRequestTimeStamp in the future": {"startAcceptSendRequestTimeStamp": "1894797297000"},
}


def test_permissions_are_answered_as_recorded(world: World) -> None:
    settings = world.bench.settings
    found = {}
    for case in cases("permission"):
        before = settings.properties()
        changes = SETTINGS.get(case["case"].split(":")[0], {})
        for key, text in changes.items():
            settings.update(key, text)
        unlike = difference(case, world.ask(case), unchecked=frozenset({"queueOffset"}))
        if unlike is not None:
            found[case["case"]] = unlike
        for key in changes:
            settings.update(key, before[key])
    assert found == {}


def test_searches_are_answered_as_recorded(world: World) -> None:
    store = world.bench.store
    found = {}
    for case in cases("search"):
        fields = dict(case["fields"])
        label = next((state for state in STATES if case["case"].startswith(state)), None)
        if label is not None:
            fields["timestamp"] = str(time_meant(case["case"], STATES[label], world, fields))
        if case["code"] == 32:
            fields.pop("timestamp")
            topic = fields["topic"]
            low = store.min_offset(topic, 0)
            expected = store.store_time(topic, 0, low) if low < store.max_offset(topic, 0) else -1
            case["responseFields"] = {"timestamp": str(expected)}
        if case["remark"] == "":
            case["remark"] = None
        unlike = difference(case, world.ask(case, fields=fields))
        if unlike is not None:
            found[case["case"]] = unlike
    assert found == {
        # The real broker fails there; the queue's minimum is an answer.
        "all deleted [3,3) -1 null": "1 -> 0",
        "all deleted [3,3) -1 LOWER": "1 -> 0",
        "all deleted [3,3) -1 UPPER": "1 -> 0",
    }


def time_meant(label: str, topic: str, world: World, fields: dict[str, str]) -> int:
    """The recorded times are those of the recorded messages; the same moments for ours."""
    words = label.rsplit(" ", 1)[0]
    store, low = world.bench.store, world.bench.store.min_offset(topic, 0)
    if " now" in words:
        return int(world.bench.now_ms + 1000)
    if "store time of first" in words:
        return int(store.store_time(topic, 0, low))
    if "before first" in words:
        return int(store.store_time(topic, 0, low)) - 1
    if "store time of " in words or "before " in words or "after " in words:
        moment = int(store.store_time(topic, 0, int(words.split()[-1])))
        return moment - ("before" in words) + ("after" in words)
    return int(fields.get("timestamp", "0"))
