"""The broker's state as the tools show it: a table of texts with the protocol's keys.

Some keys describe machinery that this broker does not have (thread pools, page cache locks): requests are
served as they come, so those queues are empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.broker.stats import PUT_TIME_BOUNDS_MS, Statistics
from penstock.message.names import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

VERSION_DESCRIPTION: Final = "V5_5_0"
"""The protocol version that we speak, in the form that tools print."""

QUEUE_CAPACITIES: Final = {
    "send": 10_000,
    "pull": 100_000,
    "litePull": 100_000,
    "query": 20_000,
    "ack": 100_000,
}
PUT_TIME_CLASSES: Final = (
    "<=0ms",
    "0~10ms",
    "10~50ms",
    "50~100ms",
    "100~200ms",
    "200~500ms",
    "500ms~1s",
    "1~2s",
    "2~3s",
    "3~4s",
    "4~5s",
    "5~10s",
    "10s~",
)
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def runtime_info(broker: Broker, now_ms: int) -> dict[str, str]:
    return {
        **_puts_and_gets(broker.statistics, now_ms),
        **_log(broker),
        **_delay(broker),
        **_machinery(broker),
    }


def _puts_and_gets(statistics: Statistics, now_ms: int) -> dict[str, str]:
    puts, size = statistics.put_messages, statistics.put_bytes
    rates = [statistics.rates(seconds) for seconds in (10, 60, 600)]

    def per_second(*names: str) -> str:
        return " ".join(
            str(sum(getattr(rate, name) for name in names) * 1000 / rate.time_ms if rate.time_ms else 0.0)
            for rate in rates
        )

    yesterday, today = statistics.yesterday_morning, statistics.today_morning
    return {
        "bootTimestamp": str(statistics.boot_ms),
        "runtime": _duration(now_ms - statistics.boot_ms),
        "putMessageEntireTimeMax": str(statistics.put_max_ms),
        "putMessageTimesTotal": str(puts),
        "putMessageFailedTimes": str(statistics.put_failures),
        "putMessageSizeTotal": str(size),
        "putMessageAverageSize": str(size / puts if puts else 0.0),
        "putMessageDistributeTime": "".join(
            f"[{name}]:{count} " for name, count in zip(PUT_TIME_CLASSES, statistics.put_times, strict=True)
        ),
        "putLatency99": f"{_put_time_percentile(statistics, 0.99):.2f}",
        "putLatency999": f"{_put_time_percentile(statistics, 0.999):.2f}",
        "getMessageEntireTimeMax": "0",
        "putTps": per_second("puts"),
        "getFoundTps": per_second("found"),
        "getMissTps": per_second("missed"),
        "getTotalTps": per_second("found", "missed"),
        "getTransferredTps": per_second("transferred"),
        "msgPutTotalYesterdayMorning": str(yesterday.puts),
        "msgPutTotalTodayMorning": str(today.puts),
        "msgPutTotalTodayNow": str(statistics.user_puts),
        "msgGetTotalYesterdayMorning": str(yesterday.gets),
        "msgGetTotalTodayMorning": str(today.gets),
        "msgGetTotalTodayNow": str(statistics.user_gets),
    }


def _put_time_percentile(statistics: Statistics, share: float) -> int:
    """The bound of the class in which that share of all puts is reached."""
    needed = share * sum(statistics.put_times)
    reached = 0
    for bound, count in zip(PUT_TIME_BOUNDS_MS, statistics.put_times, strict=False):
        reached += count
        if reached >= needed:
            return min(bound, statistics.put_max_ms)
    return statistics.put_max_ms


def _log(broker: Broker) -> dict[str, str]:
    store = broker.store
    total, free = store.disk.usage()
    used = str(round(1 - free / total, 2)) if total else "0.0"
    return {
        "commitLogDiskRatio": used,
        f"commitLogDiskRatio_{store.disk.name}/commitlog": used,
        "consumeQueueDiskRatio": used,
        "commitLogMinOffset": str(store.min_physical_offset),
        "commitLogMaxOffset": str(store.max_physical_offset),
        "commitLogDirCapacity": f"Total : {_size(total)}, Free : {_size(free)}.",
        "earliestMessageTimeStamp": str(store.earliest_store_time()),
        "remainHowManyDataToFlush": _size(store.end - store.durable),
        "remainTransientStoreBufferNumbs": str((1 << 31) - 1),
        "dispatchBehindBytes": "0",
        "dispatchMaxBuffer": "0",
        "pageCacheLockTimeMills": "0",
    }


def _delay(broker: Broker) -> dict[str, str]:
    info = {"timerReadBehind": "0", "timerOffsetBehind": "0", "timerCongestNum": "0"}
    info |= {"timerEnqueueTps": "0.0", "timerDequeueTps": "0.0"}
    for level, offset in broker.delay.progress.items():
        newest = broker.store.max_offset(SCHEDULE_TOPIC, level - 1)
        info[f"scheduleMessageOffset_{level}"] = f"{offset},{newest}"
    return info


def _machinery(broker: Broker) -> dict[str, str]:
    info = {
        "brokerActive": "true",
        "brokerVersionDesc": VERSION_DESCRIPTION,
        "startAcceptSendRequestTimeStamp": str(broker.settings.start_accept_send_request_time_stamp),
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": "100000",
    }
    for pool, capacity in QUEUE_CAPACITIES.items():
        info[f"{pool}ThreadPoolQueueSize"] = "0"
        info[f"{pool}ThreadPoolQueueCapacity"] = str(capacity)
        info[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    return info


def _duration(elapsed_ms: int) -> str:
    minutes, seconds = divmod(max(0, elapsed_ms) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.1f} {_UNITS[unit]}"
