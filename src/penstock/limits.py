"""Every bound in one place, each with its reason. Sizes in bytes, times in milliseconds."""

from __future__ import annotations

from typing import Final

# ---- wire -------------------------------------------------------------------------------------------
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Protocol: a frame with its length field; a longer one closes the connection."""

CONNECTION_IDLE_MS: Final = 120_000
"""Protocol: both sides close a connection with no traffic for this long."""

HALF_FRAME_MS: Final = 30_000
"""A frame that has begun must be complete in this time, so that half-sent frames cannot hold memory."""

CONNECTION_WRITE_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""A connection with more than this unsent is not read from until the peer has caught up."""

TURN_REQUESTS: Final = 256
TURN_ANSWER_BYTES: Final = 256 * 1024
"""What one connection may have served before the others have their turn: a few milliseconds of work."""

MAX_JSON_DEPTH: Final = 64
"""Nesting of a JSON body that is not plain JSON: the parser for those recurses."""

MAX_JSON_REFERENCED: Final = 100_000
"""Values that references may add to a JSON body: a few lines can otherwise stand for millions."""

# ---- messages ---------------------------------------------------------------------------------------
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""Protocol default of maxMessageSize, on both sides."""

MAX_PROPERTIES_BYTES: Final = 32_767
"""The stored length field is a signed 16-bit integer."""

MAX_RECORD_OVERHEAD_BYTES: Final = 65_536
"""Protocol: an encoded record may exceed the body limit by this much."""

MAX_TOPIC_CHARS: Final = 127
MAX_RETRY_TOPIC_CHARS: Final = 255
MAX_GROUP_CHARS: Final = 120

MAX_DECOMPRESSED_BYTES: Final = 64 * 1024 * 1024
"""A compressed body that would grow past this is refused: a small frame must not exhaust memory."""

# ---- pull -------------------------------------------------------------------------------------------
PULL_MAX_BYTES: Final = 262_144
PULL_MAX_MESSAGES: Final = 32
"""Protocol: one answer from memory, unless the broker's settings say otherwise."""

BULK_PULL_BYTES: Final = 4 * 1024 * 1024
BULK_PULL_MESSAGES: Final = 1024
"""One answer to a reader that asks for large ones, as Spark's tasks do: a small message costs it a tenth."""

PULL_SCAN_ENTRIES: Final = 800
"""Protocol: queue entries looked at by one filtered pull, so that a rare tag cannot stall the broker."""

HELD_PULLS_PER_BROKER: Final = 100_000
"""Long polls held at once; past this a pull is answered "nothing" immediately."""

# ---- broker -----------------------------------------------------------------------------------------
PENDING_FLUSH_BYTES: Final = 64 * 1024 * 1024
"""Bytes waiting for the disk; past this sends get SYSTEM_BUSY instead of growing memory."""

RELAYED_REQUESTS: Final = 10_000
"""Requests passed on to clients (running info, direct consumption) and not yet answered."""

# ---- POP --------------------------------------------------------------------------------------------
POP_MAX_MESSAGES: Final = 32
"""Protocol: messages of one pop."""

POP_MAX_BYTES: Final = 4 * 1024 * 1024
"""A pop that has found this much looks at no further queue, so that its answer always fits a frame."""

MAX_INVISIBLE_MS: Final = 3 * 86_400_000
"""How long a popped message may be kept from others: as far as the reference's timer reaches."""

ACK_BITS_BYTES: Final = 1_024
"""Bits of one entry of a batch ack; a batch spans at most the queue entries that one read looks at."""

LEASES_PER_BROKER: Final = 4_000_000
"""Popped batches not yet acked; past this pops get SYSTEM_BUSY instead of growing memory."""

ROUTES_ASKED_FOR: Final = 1_000
"""Routes that a broker asks name servers for at the same time; consumers of further topics ask again."""

LEASES_LISTED: Final = 10_000
"""Leases that one request for them shows; more would keep the broker from its work."""

REQUEST_MODES_PER_BROKER: Final = 100_000
"""Consumption modes set for a group on a topic; each needs a topic and a group that exist."""

REVIVES_PER_TICK: Final = 1_000
"""Expired messages copied to a retry topic in one tick, so that a hung group cannot stall the others."""

# ---- broker tables ----------------------------------------------------------------------------------
TOPICS_PER_BROKER: Final = 100_000
"""Topics are created by sends, so a client with random names must not be able to fill the memory."""

GROUPS_PER_BROKER: Final = 100_000
"""Subscription groups are created by pulls and heartbeats: same reason."""

OFFSETS_PER_BROKER: Final = 2_000_000
"""Stored consumer offsets (topic, group, queue). The protocol checks no queue id, so a bound is needed."""

QUEUE_LOCKS_PER_BROKER: Final = 1_000_000
"""Locks of orderly consumers; the protocol grants locks for unknown queues too."""

GROUPS_PER_CONNECTION: Final = 4_096
"""Producer and consumer groups that one connection may announce by heartbeats."""

REMEMBERED_SUBSCRIPTIONS: Final = 10_000
"""Subscriptions of pulls by groups without heartbeat, kept for the admin tools; the oldest go first."""

REMEMBERED_TEXTS: Final = 1_000
"""Property texts that the sends of a broker share but for the unique key; when full it starts anew."""

REMEMBERED_TEXT_CHARS: Final = 1_000
"""Of each of them, so that they cannot fill the memory."""

WAITING_REPLIES: Final = 1_000_000
"""Replies that wait for the disk; past this requests that would add one get SYSTEM_BUSY."""

QUERY_MAX_MESSAGES: Final = 64
"""Protocol: messages in the answer to one key query (maxMsgsNumBatch)."""

QUERY_MAX_BYTES: Final = 8 * 1024 * 1024
"""Bytes in the answer to one key query: it must fit a frame, and not hold a connection's buffer for long."""

DELAY_DELIVERIES_PER_TICK: Final = 1_000
"""Due messages of one delay level moved in one tick, so that a backlog cannot stall other requests."""

SQL92_CHARS: Final = 16_384
"""Filter text of a subscription; compiling is linear in it."""

SQL92_DEPTH: Final = 64
"""Nesting of a filter expression, so that neither parsing nor evaluating can exhaust the stack."""

STATISTICS_SERIES: Final = 200_000
"""Counters by topic, queue and group that the tools can look at; past this only totals are counted."""

QUEUES_PER_TOPIC: Final = 16_384
"""Asked for by an administrator or a group's retryQueueNums; the statistics of a topic list all of them."""

CONSUME_QUEUE_ENTRIES_SHOWN: Final = 10_000
"""Queue entries in the answer to one QUERY_CONSUME_QUEUE."""

REMARK_CHARS: Final = 2_000
"""Of the text in a refusal: it quotes what was wrong, which can be megabytes."""

LONGEST_DELAY_MS: Final = 100 * 366 * 24 * 3_600_000
"""Of a delay level: the time of delivery has to fit the 64 bits of a queue entry."""
