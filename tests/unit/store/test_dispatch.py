"""What entries take from properties: a whole batch at once gives what each message alone gives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.dispatch import keys_of, tag_code_of, take_apart


def one_by_one(texts):
    keys = [(number, key) for number, text in enumerate(texts) for key in keys_of(text)]
    return [tag_code_of(text) for text in texts], [key for _, key in keys], [number for number, _ in keys]


def at_once(texts):
    codes, keys, owners = take_apart(texts)
    return codes, [key if isinstance(key, str) else key.decode(errors="replace") for key in keys], owners


@pytest.mark.parametrize(
    "texts",
    [
        [],
        [b"", b""],
        [b"UNIQ_KEY\x01A1\x02TAGS\x01a\x02", b"UNIQ_KEY\x01A2\x02TAGS\x01a\x02", b"UNIQ_KEY\x01A\x02"],
        [b"UNIQ_KEY\x01A1\x02TAGS\x01a\x02", b"UNIQ_KEY\x01A2\x02TAGS\x01b\x02"],
        [b"UNIQ_KEY\x01A1\x02KEYS\x01a b\x02", b"UNIQ_KEY\x01A2\x02KEYS\x01a b\x02"],
        [b"UNIQ_KEY\x01A\x02XUNIQ_KEY\x01A\x02", b"UNIQ_KEY\x01A\x02XUNIQ_KEY\x01B\x02"],
        [
            b"UNIQ_KEY\x01123456789\x02",
            b"UNIQ_KEY\x011\x02TAGS\x01ab\x02",
            b"UNIQ_KEY\x011\x02KEYS\x01ab\x02",
        ],
        [b"UNIQ_KEY\x01A1\x02UNIQ_KEY\x01\x02", b"UNIQ_KEY\x01A2\x02UNIQ_KEY\x01\x02"],
        [b"UNIQ_KEY\x01A1", b"UNIQ_KEY\x01A2", b"KEYS\x01k1\x02", b"KEYS\x01k2\x02"],
    ],
)
def test_a_batch_taken_apart_gives_what_each_message_alone_gives(texts):
    assert at_once(texts) == one_by_one(texts)


@given(
    st.lists(
        st.lists(
            st.sampled_from([b"UNIQ_KEY", b"KEYS", b"TAGS", b"X", b"\x01", b"\x02", b"a", b"b", b"\xff"]),
            max_size=9,
        ).map(b"".join),
        max_size=4,
    )
)
def test_whatever_the_properties_look_like(texts):
    texts = [text for text in texts for _ in range(2)]
    assert at_once(texts) == one_by_one(texts)
