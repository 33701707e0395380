import pytest

from penstock.errors import InvalidArgument, MessageTooLarge
from penstock.message.batch import encode_batch
from penstock.message.record import MAGIC_BLANK, encode_record
from penstock.store.batches import EvenBatch, MixedBatch, read_batch

HOST = bytes([127, 0, 0, 1, 0, 0, 42, 159])
HOST_V6 = bytes(15) + b"\x01" + (10911).to_bytes(4, "big")


def test_a_record_in_the_log_has_exactly_the_bytes_of_the_record_format(box):
    store = box.open()
    position, offset = box.send(
        "Topic", 3, b"hello", props={"TAGS": "a"}, flag=7, sys_flag=1, reconsume_times=2
    )
    expected = encode_record(
        topic=b"Topic",
        queue_id=3,
        flag=7,
        queue_offset=0,
        physical_offset=0,
        sys_flag=1,
        born_ms=box.now_ms - 5,
        born_host=HOST,
        store_ms=box.now_ms,
        store_host=HOST,
        reconsume_times=2,
        prepared_offset=0,
        body=b"hello",
        properties=b"TAGS\x01a\x02",
    )
    assert (position, offset) == (0, 0)
    assert bytes(store.read_record(0)) == expected
    assert store.max_physical_offset == len(expected)


@pytest.mark.parametrize("topic", ["Topic", "%RETRY%" + "g" * 150])
@pytest.mark.parametrize("born_host", [HOST, HOST_V6])
def test_long_topics_and_ipv6_hosts_are_stored_too(box, topic, born_host):
    box.open()
    box.send(topic, 0, b"x", born_host=born_host, props={"a": "b"})
    (record,) = box.records(topic)
    record.verify()
    assert record.topic == topic
    assert record.born_host == born_host
    assert record.sys_flag == (0x10 if born_host == HOST_V6 else 0)


def test_a_batch_gives_the_same_records_as_single_sends(box):
    store = box.open()
    items = [
        (1, b"one", b"TAGS\x01a\x02"),
        (2, b"", b""),
        (3, memoryview(b"three"), b"k\x01v\x02"),
    ]
    positions, first = store.append_batch("T", 0, 0, 5, HOST_V6, 4, MixedBatch(items), box.now_ms)
    box.flush()
    records = box.records()
    assert first == 0
    assert [record.physical_offset for record in records] == positions
    for number, (record, (flag, body, properties)) in enumerate(zip(records, items, strict=True)):
        assert bytes(store.read_record(positions[number])) == encode_record(
            topic=b"T",
            queue_id=0,
            flag=flag,
            queue_offset=number,
            physical_offset=positions[number],
            sys_flag=0x10,
            born_ms=5,
            born_host=HOST_V6,
            store_ms=box.now_ms,
            store_host=HOST,
            reconsume_times=4,
            prepared_offset=0,
            body=body,
            properties=bytes(properties),
        )
        assert record.properties_bytes == bytes(properties)


def test_offsets_are_dense_for_each_queue(box):
    box.open()
    placed = [box.put(topic, queue)[1] for topic, queue in [("A", 0), ("A", 1), ("B", 0), ("A", 0), ("A", 1)]]
    assert placed == [0, 0, 0, 1, 1]


def test_nothing_is_visible_before_its_flush_is_back(box):
    store = box.open()
    box.put(body=b"one")
    flush = store.take_flush()
    box.put(body=b"two")
    assert store.take_flush() is None, "one group is on its way"
    flush.run()
    assert (store.max_offset("T", 0), store.durable < store.end, box.bodies()) == (0, True, [])
    assert [arrival.queue_offset for arrival in store.flushed(flush)] == [0]
    assert (store.max_offset("T", 0), store.durable < store.end, box.bodies()) == (1, True, [b"one"])
    box.flush()
    assert (store.durable, box.bodies()) == (store.end, [b"one", b"two"])
    assert store.take_flush() is None


def test_arrivals_tell_what_a_waiting_pull_needs(box):
    box.open()
    box.put("T", 2, props={"TAGS": "TagA"})
    (arrival,) = box.flush()
    assert (arrival.topic, arrival.queue_id, arrival.store_ms) == ("T", 2, box.now_ms)
    assert arrival.messages() == [(0, 0, 2598919)]


def test_a_batch_arrives_as_one_and_tells_of_each_message(box):
    store = box.open()
    box.send("T", 2)
    items = [(0, b"", b"TAGS\x01TagA\x02"), (0, b"", b""), (0, b"", b"TAGS\x01TagA\x02")]
    positions, _ = store.append_batch("T", 2, 0, 0, HOST, 0, MixedBatch(items), box.now_ms)
    (arrival,) = box.flush()
    assert arrival.messages() == list(zip((1, 2, 3), positions, (2598919, 0, 2598919), strict=True))


def test_a_full_segment_is_closed_by_a_blank_record_and_the_next_begins(box):
    store = box.open()
    positions = [box.send(body=bytes(900))[0] for _ in range(9)]
    assert positions[4:] == [4096, 4096 + 992, 4096 + 2 * 992, 4096 + 3 * 992, 8192]
    files = box.files()
    names = [name for name in files if name.startswith("commitlog/")]
    assert names == [f"commitlog/{start:020d}" for start in (0, 4096, 8192)]
    assert {len(files[name]) for name in names} == {4096}
    blank = files[names[0]][4 * 992 :]
    assert blank[:8] == (4096 - 4 * 992).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big")
    assert len(box.records()) == 9
    assert store.min_physical_offset == 0


def test_one_group_may_span_several_segments(box):
    box.open()
    for _ in range(12):
        box.put(body=bytes(900))
    assert len(box.flush()) == 12
    box.kill()
    box.open()
    assert box.bodies() == [bytes(900)] * 12


def test_a_batch_is_never_split_over_two_segments(box):
    store = box.open()
    box.send(body=bytes(2500))
    positions, _ = store.append_batch(
        "T", 0, 0, 0, HOST, 0, MixedBatch([(0, bytes(900), b"")] * 3), box.now_ms
    )
    assert positions[0] == 4096
    box.flush()
    assert len(box.records()) == 4


def test_store_times_never_go_down(box):
    box.open()
    box.send()
    box.now_ms -= 10_000
    box.send()
    box.stop()
    box.open()
    box.send()
    times = [record.store_ms for record in box.records()]
    assert times == [times[0]] * 3


def test_prepared_and_rolled_back_records_are_in_the_log_but_in_no_queue(box):
    store = box.open()
    for sys_flag in (4, 12, 8, 0):
        box.put(sys_flag=sys_flag, props={"UNIQ_KEY": f"U{sys_flag}"})
    arrivals = box.flush()
    assert [arrival.queue_offset for arrival in arrivals] == [0, 1]
    assert [record.sys_flag for record in box.records()] == [8, 0]
    assert [len(store.query_keys("T", f"U{flag}", 9, 0, box.now_ms).records) for flag in (4, 12, 8)] == [
        1,
        0,
        1,
    ]
    box.kill()
    box.open()
    assert [record.sys_flag for record in box.records()] == [8, 0]


@pytest.mark.parametrize(
    "fields",
    [{"body": bytes(1001)}, {"props": {"k": "v" * 32_766}}],
    ids=["body", "properties"],
)
def test_a_message_over_its_limit_is_refused_and_leaves_no_trace(box, fields):
    store = box.open(max_message_bytes=1000)
    with pytest.raises(MessageTooLarge, match="more than"):
        box.put(**fields)
    assert store.take_flush() is None
    assert box.send()[1] == 0


def test_a_field_that_does_not_fit_is_refused_and_leaves_no_trace(box):
    store = box.open()
    with pytest.raises(InvalidArgument, match="out of range"):
        box.put(flag=1 << 31)
    with pytest.raises(InvalidArgument, match="out of range"):
        store.append_batch(
            "T", 0, 0, 0, HOST, 0, MixedBatch([(0, b"", b""), (1 << 31, b"", b"")]), box.now_ms
        )
    even = read_batch(encode_batch([(0, b"", b"UNIQ_KEY\x01%d\x02" % number) for number in range(2)]))
    assert isinstance(even, EvenBatch)
    with pytest.raises(InvalidArgument, match="out of range"):
        store.append_batch("T", 0, 1 << 31, 0, HOST, 0, even, box.now_ms)
    assert store.take_flush() is None
    assert box.send() == (0, 0)


def test_a_record_larger_than_a_segment_is_refused(box):
    box.open()
    with pytest.raises(MessageTooLarge, match="does not fit"):
        box.put(body=bytes(4000))


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a\0"])
def test_a_topic_that_is_no_directory_name_is_refused(box, topic):
    box.open()
    with pytest.raises(InvalidArgument):
        box.put(topic)
