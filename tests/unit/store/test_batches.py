"""Even batches take the short way: what it makes is what messages of any shape give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptRecord
from penstock.message.batch import encode_batch, split_batch
from penstock.store.batches import EvenBatch, MixedBatch, Place, read_batch
from penstock.store.dispatch import keys_of

PLACE = Place(3, 0xDAA320A7, b"\x05Topic", 1 << 33, 1 << 40, 98, bytes(40))


def even(count, body=b"body", text=b"TAGS\x01a\x02UNIQ_KEY\x01%04d\x02WAIT\x01true\x02", flag=7):
    return [(flag, body[:-1] + b"%c" % (number % 256), text % number) for number in range(count)]


def stored(batch):
    positions, records, entries, keys, key_positions = batch.encode(PLACE)
    texts = [key if isinstance(key, str) else key.decode(errors="replace") for key in keys]
    return batch.total_size(PLACE.overhead), positions, records, entries, texts, list(key_positions)


@pytest.mark.parametrize("count", [1, 2, 16, 63, 64, 65, 128, 300])
@pytest.mark.parametrize("text", [even(1)[0][2].replace(b"0000", b"%04d"), b"UNIQ_KEY\x01%04d\x02"])
def test_an_even_batch_is_stored_as_its_messages_are(count, text):
    items = even(count, text=text)
    batch = read_batch(memoryview(encode_batch(items)))
    assert isinstance(batch, EvenBatch)
    assert stored(batch) == stored(MixedBatch(items))


@pytest.mark.parametrize(
    "change",
    [
        lambda items: [*items[:3], (8, *items[3][1:]), *items[4:]],
        lambda items: [*items[:3], (7, b"bod", items[3][2]), *items[4:]],
        lambda items: [*items[:3], (7, b"body", items[3][2].replace(b"true", b"fals")), *items[4:]],
        lambda items: [*items[:3], (7, b"body", items[3][2].replace(b"0003", b"\x02003")), *items[4:]],
        lambda items: [(7, body, text.replace(b"WAIT", b"KEYS")) for _, body, text in items],
        lambda items: [(7, body, text.replace(b"UNIQ_KEY", b"UNIQUE")) for _, body, text in items],
        lambda items: [(7, body, text[: -len(b"\x02WAIT\x01true\x02")]) for _, body, text in items],
        lambda items: [],
    ],
)
def test_any_other_is_taken_message_by_message(change):
    items = change(even(5))
    batch = read_batch(encode_batch(items))
    assert isinstance(batch, MixedBatch)
    assert batch.messages == len(items)
    if items:
        assert stored(batch) == stored(MixedBatch(items))
        assert sorted(stored(batch)[4]) == sorted(key for _, _, text in items for key in keys_of(text))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1),
            st.sampled_from([b"", b"x", b"y"]),
            st.lists(
                st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"\x01", b"\x02", b"a", b"b", b"\xff"]),
                max_size=8,
            ).map(b"".join),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 3),
)
def test_whatever_the_messages_are(items, times):
    items = [item for item in items for _ in range(times)]
    assert stored(read_batch(encode_batch(items))) == stored(MixedBatch(items))


@given(st.integers(0, 200), st.integers(0, 255), st.integers(0, 22))
def test_a_damaged_batch_is_read_as_it_is_split(at, byte, cut):
    """A length that lies must never be believed because the other elements have the same."""
    data = bytearray(encode_batch(even(3)))
    data[at % len(data)] = byte
    data = bytes(data[: len(data) - cut])
    try:
        items = split_batch(data)
    except CorruptRecord:
        with pytest.raises(CorruptRecord):
            read_batch(data)
        return
    if items:
        assert stored(read_batch(data)) == stored(MixedBatch(items))
