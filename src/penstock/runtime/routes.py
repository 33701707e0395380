"""Which queues a topic has on all brokers, for a broker that shares them out among consumers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from penstock import limits
from penstock.broker.topics import PERM_READ
from penstock.errors import PenstockError
from penstock.message.queue import MessageQueue
from penstock.runtime.registration import Registrar
from penstock.wire.bodies import TopicRouteData
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.command import Command
from penstock.wire.headers import GetRouteinfoByTopicHeader

log = logging.getLogger("penstock.runtime")

REFRESH_SECONDS: Final = 30.0
"""Protocol: how old a broker's view of a route may be."""


class Routes:
    """A name server in this process is asked each time. From others the answer comes later: the first
    question about a topic has none yet, and those that were asked for are kept up to date."""

    def __init__(self, registrar: Registrar) -> None:
        self._registrar = registrar
        self._known: dict[str, list[MessageQueue]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._refresh: asyncio.TimerHandle | None = None

    def queues(self, topic: str) -> Sequence[MessageQueue] | None:
        local = self._registrar.local
        if local is not None:
            return _queues(topic, local.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, _header(topic)))
        known = self._known.get(topic)
        if known is None:
            self._ask(topic)
        return known

    def _ask(self, topic: str) -> None:
        if topic not in self._asking and len(self._asking) < limits.ROUTES_ASKED_FOR:
            self._asking[topic] = asyncio.create_task(self._fetch(topic))
        if self._refresh is None:
            self._refresh = asyncio.get_running_loop().call_later(REFRESH_SECONDS, self._refresh_all)

    def _refresh_all(self) -> None:
        self._refresh = None
        for topic in (*self._known, *self._asking):  # one that is being asked for is to be refreshed, too
            self._ask(topic)

    async def _fetch(self, topic: str) -> None:
        try:
            answer = await self._registrar.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, _header(topic))
            found = _queues(topic, answer)
            if found is not None:
                self._known[topic] = found
            else:
                self._known.pop(topic, None)
        except PenstockError as error:  # what was known goes on being the answer
            log.debug("no name server tells the route of topic %s: %s", topic, error)
        finally:
            del self._asking[topic]

    def stop(self) -> None:
        if self._refresh is not None:
            self._refresh.cancel()
        for task in list(self._asking.values()):
            task.cancel()


def _header(topic: str) -> GetRouteinfoByTopicHeader:
    return GetRouteinfoByTopicHeader(topic, accept_standard_json_only=True)


def _queues(topic: str, answer: Command) -> list[MessageQueue] | None:
    if answer.code != ResponseCode.SUCCESS:
        return None
    route = TopicRouteData.decode(answer.body)
    return [
        MessageQueue(topic, data.broker_name, queue_id)
        for data in route.queue_datas
        if data.perm & PERM_READ
        for queue_id in range(data.read_queue_nums)
    ]
