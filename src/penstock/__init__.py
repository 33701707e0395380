"""RocketMQ for Python and Spark people: broker, client and data pipeline.

The public names load on first use, so that `import penstock` is quick and a broker does not load the client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from penstock.client.config import ConsumeFrom, MessageModel
    from penstock.client.listener import (
        ConsumeContext,
        ConsumeStatus,
        OrderlyContext,
        OrderlyStatus,
        RetryLater,
    )
    from penstock.client.producer import Producer
    from penstock.client.pull_consumer import PullConsumer
    from penstock.client.push_consumer import PushConsumer
    from penstock.client.sender import SendResult, SendStatus
    from penstock.client.simple_consumer import SimpleConsumer
    from penstock.errors import LeaseLost, PenstockError, SendError, SendOutcomeUnknown
    from penstock.message.model import Message, ReceivedMessage
    from penstock.message.queue import MessageQueue

__version__: Final = "0.1.0"

_HOMES: Final = {
    "ConsumeContext": "penstock.client.listener",
    "ConsumeFrom": "penstock.client.config",
    "ConsumeStatus": "penstock.client.listener",
    "LeaseLost": "penstock.errors",
    "Message": "penstock.message.model",
    "MessageModel": "penstock.client.config",
    "MessageQueue": "penstock.message.queue",
    "OrderlyContext": "penstock.client.listener",
    "OrderlyStatus": "penstock.client.listener",
    "PenstockError": "penstock.errors",
    "Producer": "penstock.client.producer",
    "PullConsumer": "penstock.client.pull_consumer",
    "PushConsumer": "penstock.client.push_consumer",
    "ReceivedMessage": "penstock.message.model",
    "RetryLater": "penstock.client.listener",
    "SendError": "penstock.errors",
    "SendOutcomeUnknown": "penstock.errors",
    "SendResult": "penstock.client.sender",
    "SendStatus": "penstock.client.sender",
    "SimpleConsumer": "penstock.client.simple_consumer",
}

__all__ = [
    "ConsumeContext",
    "ConsumeFrom",
    "ConsumeStatus",
    "LeaseLost",
    "Message",
    "MessageModel",
    "MessageQueue",
    "OrderlyContext",
    "OrderlyStatus",
    "PenstockError",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RetryLater",
    "SendError",
    "SendOutcomeUnknown",
    "SendResult",
    "SendStatus",
    "SimpleConsumer",
]

_ROOMS: Final = ("admin", "errors", "spark", "sync", "testing")
"""Modules with public names of their own; they, too, need no import but that of the package."""


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
