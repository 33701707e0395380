"""Whether a group pulls or pops a topic, as it is set at the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.admin.client import AdminClient
from penstock.errors import InvalidArgument, TopicNotFound
from penstock.message.names import check_group, check_topic
from penstock.wire.bodies import MessageRequestModeSerializeWrapper, SetMessageRequestModeRequestBody
from penstock.wire.codes import RequestCode

PULL: Final = "PULL"
POP: Final = "POP"


async def topic_masters(admin: AdminClient, topic: str, cluster: str | None = None) -> dict[str, str]:
    """broker name → address of the masters that have a topic."""
    check_topic(topic)
    named = {data.broker_name for data in (await admin.route(topic)).queue_datas}
    found = {name: address for name, address in (await admin.masters(cluster)).items() if name in named}
    if not found:
        where = f" in cluster {cluster}" if cluster else ""
        raise TopicNotFound(f"no broker{where} has topic {topic}")
    return found


async def set_consume_mode(
    admin: AdminClient,
    topic: str,
    group: str,
    mode: str,
    share_queues: int = 0,
    *,
    brokers: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Sets it on every broker of the topic, or on those given (name → address); tells on which.

    `share_queues`: how many other consumers' queues each one pops as well; 0 means every queue.
    """
    check_group(group)
    if mode not in (PULL, POP):
        raise InvalidArgument(f"a group consumes a topic in mode PULL or POP, not {mode!r}")
    if not -1 <= share_queues < 1 << 31:
        raise InvalidArgument(f"the number of shared queues must be 0 or more, not {share_queues}")
    if brokers is None:
        brokers = await topic_masters(admin, topic)
    body = SetMessageRequestModeRequestBody(topic, group, mode, share_queues).encode()
    for address in brokers.values():
        await admin.ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
    return dict(brokers)


async def consume_modes(admin: AdminClient) -> dict[str, list[SetMessageRequestModeRequestBody]]:
    """What was set, by broker name. Topics and groups that are not there have the broker's default."""
    found = {}
    for name, address in (await admin.masters()).items():
        response = await admin.ask(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        table = MessageRequestModeSerializeWrapper.decode(response.body).message_request_mode_map
        found[name] = [mode for _, groups in sorted(table.items()) for _, mode in sorted(groups.items())]
    return found
