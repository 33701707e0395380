"""How far consumer groups are: offsets, lag and time spans, and copying one group's place to another."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from penstock.broker.admin_common import broker_address, queue_of, refuse_bad_group, unknown_topic
from penstock.broker.replies import Refusal
from penstock.wire.bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumerOffsetSerializeWrapper,
    ConsumeStats,
    ConsumeStatsList,
    DelayOffsetSerializeWrapper,
    OffsetWrapper,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    QueueTimeSpan,
    TopicConfig,
)
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command
from penstock.wire.headers import (
    CloneGroupOffsetHeader,
    GetBrokerConsumeStatsHeader,
    GetConsumeStatsHeader,
    QueryConsumeTimeSpanHeader,
    QueryCorrectionOffsetHeader,
    ViewBrokerStatsDataHeader,
)
from penstock.wire.peer import Peer

if TYPE_CHECKING:
    from penstock.broker.broker import Broker, Handler

NO_CORRECTION = (1 << 63) - 1


class ProgressAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.handlers: dict[int, Handler] = {
            RequestCode.GET_CONSUME_STATS: self.consume_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.all_consume_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.time_span,
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats_data,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
            RequestCode.QUERY_CORRECTION_OFFSET: self.correction_offsets,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
        }

    # ---- lag ------------------------------------------------------------------------------------

    def consume_stats(self, peer: Peer, command: Command, now_ms: int) -> None:
        """The listed topics, else the one topic, else all that the group has offsets for."""
        header = command.header(GetConsumeStatsHeader)
        broker, group = self._broker, header.consumer_group
        listed = [name for name in (header.topic_list or "").split(";") if name]
        if not listed:
            listed = [header.topic] if header.topic else broker.offsets.topics_of(group)
        stats = ConsumeStats()
        for name in dict.fromkeys(listed):
            config = broker.topics.get(name)
            if config is not None and not self._has_left(group, name):
                self._add_queues(stats, group, config, config.read_queue_nums)
        broker.reply(peer, command, body=stats.encode())

    def all_consume_stats(self, peer: Peer, command: Command, now_ms: int) -> None:
        only_ordered = command.header(GetBrokerConsumeStatsHeader).is_order
        broker = self._broker
        result = ConsumeStatsList(broker_addr=broker_address(broker.settings))
        topics: dict[str, list[str]] = {group: [] for group in sorted(broker.groups.table)}
        for name, group in broker.offsets.pairs():
            if group in topics:
                topics[group].append(name)
        for group, names in topics.items():
            of_topics: list[ConsumeStats] = []
            for name in names:
                config = broker.topics.get(name)
                if config is None or (only_ordered and not config.order) or self._has_left(group, name):
                    continue
                stats = ConsumeStats()
                self._add_queues(stats, group, config, config.write_queue_nums)
                of_topics.append(stats)
                for queue in stats.offset_table.values():
                    result.total_diff += queue.broker_offset - queue.consumer_offset
                    result.total_inflight_diff += queue.pull_offset - queue.consumer_offset
            result.consume_stats_list.append({group: of_topics})
        broker.reply(peer, command, body=result.encode())

    def _has_left(self, group: str, topic: str) -> bool:
        """A live group that subscribes other topics only: what it once consumed here is of no interest."""
        live = self._broker.clients.consumer_group(group)
        return live is not None and bool(live.subscriptions) and topic not in live.subscriptions

    def _add_queues(self, stats: ConsumeStats, group: str, config: TopicConfig, queues: int) -> None:
        broker, topic = self._broker, config.topic_name
        for queue_id in range(queues):
            consumed = max(0, broker.offsets.query(group, topic, queue_id))
            stats.offset_table[queue_of(broker.settings, topic, queue_id)] = OffsetWrapper(
                broker_offset=max(0, broker.store.max_offset(topic, queue_id)),
                consumer_offset=consumed,
                pull_offset=max(consumed, broker.offsets.query_pulled(group, topic, queue_id)),
                last_timestamp=self._store_time(topic, queue_id, consumed - 1, missing=0),
            )
        stats.consume_tps += broker.statistics.tps("GROUP_GET_NUMS", f"{topic}@{group}")

    def _store_time(self, topic: str, queue_id: int, offset: int, *, missing: int) -> int:
        time_ms = self._broker.store.store_time(topic, queue_id, offset) if offset >= 0 else 0
        return time_ms if time_ms > 0 else missing

    # ---- time -----------------------------------------------------------------------------------

    def time_span(self, peer: Peer, command: Command, now_ms: int) -> None:
        """When the oldest, the newest and the last consumed message of each queue were stored."""
        header = command.header(QueryConsumeTimeSpanHeader)
        broker, topic = self._broker, header.topic
        config = broker.topics.get(topic)
        if config is None:
            raise unknown_topic(f"topic[{topic}] not exist")
        body = QueryConsumeTimeSpanBody()
        for queue_id in range(config.write_queue_nums):
            oldest, newest = (
                broker.store.min_offset(topic, queue_id),
                broker.store.max_offset(topic, queue_id),
            )
            consumed = broker.offsets.query(header.group, topic, queue_id)
            oldest_ms = self._store_time(topic, queue_id, oldest, missing=-1)
            consumed_ms = self._store_time(topic, queue_id, consumed - 1, missing=oldest_ms)
            newest_ms = self._store_time(topic, queue_id, newest - 1, missing=-1)
            next_ms = self._store_time(topic, queue_id, max(oldest, consumed), missing=0)
            body.consume_time_span_set.append(
                QueueTimeSpan(
                    message_queue=queue_of(broker.settings, topic, queue_id),
                    min_time_stamp=oldest_ms,
                    max_time_stamp=newest_ms,
                    consume_time_stamp=consumed_ms,
                    delay_time=max(0, now_ms - next_ms) if next_ms else 0,
                    min_time_stamp_str=_time_text(oldest_ms),
                    max_time_stamp_str=_time_text(newest_ms),
                    consume_time_stamp_str=_time_text(consumed_ms),
                )
            )
        broker.reply(peer, command, body=body.encode())

    def stats_data(self, peer: Peer, command: Command, now_ms: int) -> None:
        header = command.header(ViewBrokerStatsDataHeader)
        view = self._broker.statistics.view(header.stats_name, header.stats_key)
        if view is None:
            raise Refusal(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        minute, hour, day = (BrokerStatsItem(*window) for window in view)
        self._broker.reply(peer, command, body=BrokerStatsData(minute, hour, day).encode())

    # ---- offsets --------------------------------------------------------------------------------

    def all_offsets(self, peer: Peer, command: Command, now_ms: int) -> None:
        offsets = self._broker.offsets
        body = ConsumerOffsetSerializeWrapper(offsets.table, offsets.data_version, offsets.pulled)
        self._broker.reply(peer, command, body=body.encode())

    def delay_offsets(self, peer: Peer, command: Command, now_ms: int) -> None:
        delay = self._broker.delay
        body = DelayOffsetSerializeWrapper(dict(delay.progress), delay.data_version)
        self._broker.reply(peer, command, body=body.encode())

    def correction_offsets(self, peer: Peer, command: Command, now_ms: int) -> None:
        """The lowest offset of each queue over the topic's groups, where the compared group is not behind."""
        header = command.header(QueryCorrectionOffsetHeader)
        broker, topic = self._broker, header.topic
        ignored = {name.strip() for name in (header.filter_groups or "").split(",")}
        lowest: dict[int, int] = {}
        for group in broker.offsets.groups_of(topic):
            if group in ignored:
                continue
            for queue_id, offset in broker.offsets.queues(group, topic).items():
                if offset >= broker.store.min_offset(topic, queue_id):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        for queue_id, offset in broker.offsets.queues(header.compare_group, topic).items():
            if queue_id in lowest and lowest[queue_id] > offset:
                lowest[queue_id] = NO_CORRECTION
        broker.reply(peer, command, body=QueryCorrectionOffsetBody(lowest).encode())

    def clone(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Without a topic, every topic that the source group has offsets for."""
        header = command.header(CloneGroupOffsetHeader)
        broker, source = self._broker, header.src_group
        refuse_bad_group(header.dest_group)
        broker.check_backlog()
        for topic in [header.topic] if header.topic else broker.offsets.topics_of(source):
            if broker.topics.get(topic) is None or (not header.offline and self._has_left(source, topic)):
                continue
            broker.offsets.clone(source, header.dest_group, topic, now_ms)
        broker.reply(peer, command, position=broker.store.end)


def _time_text(time_ms: int) -> str:
    """Local time in the tools' own form."""
    seconds, millis = divmod(time_ms, 1000)
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d#%H:%M:%S}:{millis:03d}"
