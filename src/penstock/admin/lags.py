"""How far groups are, from brokers of ours and of Apache's."""

from __future__ import annotations

from penstock.admin.client import AdminClient
from penstock.admin.modes import PULL, consume_modes
from penstock.errors import ServerError
from penstock.message.names import is_system_group, normal_topic
from penstock.wire.bodies import ConsumeStats, GroupLag
from penstock.wire.codes import ResponseCode


async def group_lags(
    admin: AdminClient, group: str | None = None, topic: str | None = None
) -> list[GroupLag]:
    """By group and topic. Apache's brokers know offsets only: what is in flight in POP mode is not told apart
    there from what is done, and nothing is known to be delayed."""
    try:
        return await admin.group_lags(group, topic)
    except ServerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
    modes = {
        (mode.consumer_group, mode.topic): mode.mode or PULL
        for known in (await consume_modes(admin)).values()
        for mode in known
    }
    names = {group} if group is not None else await _group_names(admin)
    lags: list[GroupLag] = []
    for name in sorted(names):
        try:
            stats = await admin.consume_stats(name, topic)
        except ServerError:  # never consumed anything
            continue
        for lag in _by_topic(name, stats):
            lag.mode = modes.get((lag.group, lag.topic), PULL)
            lags.append(lag)
    return lags


async def _group_names(admin: AdminClient) -> set[str]:
    names: set[str] = set()
    for address in (await admin.masters()).values():
        names.update(await admin.groups(address))
    return {name for name in names if not is_system_group(name)}


def _by_topic(group: str, stats: ConsumeStats) -> list[GroupLag]:
    found: dict[str, GroupLag] = {}
    for queue, offset in stats.offset_table.items():
        topic = normal_topic(queue.topic, group)
        lag = found.setdefault(topic, GroupLag(group, topic))
        waiting = max(0, offset.broker_offset - offset.consumer_offset)
        lag.ready += waiting
        if waiting and offset.last_timestamp > 0:
            # The time of the last message consumed: the oldest that waits is at least this old.
            lag.oldest_timestamp = min(lag.oldest_timestamp or offset.last_timestamp, offset.last_timestamp)
    return [found[topic] for topic in sorted(found)]
