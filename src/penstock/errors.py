"""Every error Penstock raises, under one root.

Three questions decide what a caller does with an error, so each class answers them:
whose fault it was (the class), whether trying again can help (`retriable`), and
whether the operation may have happened all the same (`outcome_unknown`).
"""

from __future__ import annotations

from collections.abc import Sequence


class PenstockError(Exception):
    """Root of all errors raised by this package."""

    retriable: bool = False
    outcome_unknown: bool = False


# ---- what the caller gave us ------------------------------------------------------------------------


class InvalidArgument(PenstockError, ValueError):
    """A value given by the caller is not allowed; the text says what is."""


class IllegalName(InvalidArgument):
    """A topic or group name breaks the protocol's rules."""


class MessageTooLarge(InvalidArgument):
    """A body, property text or batch is over its limit."""


class MissingExtra(PenstockError, ImportError):
    """A feature needs an optional dependency that is not installed."""


class WrongState(PenstockError, RuntimeError):
    """The object cannot do this now: not started, already closed, or used after a fork."""


# ---- bytes that are not what they should be ---------------------------------------------------------


class ProtocolError(PenstockError):
    """The peer sent bytes that are not a valid frame; the connection must be closed."""


class BadHeader(PenstockError):
    """A request header lacks a field or a field has the wrong type."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


class CorruptRecord(PenstockError):
    """A stored message record is damaged."""


# ---- the network ------------------------------------------------------------------------------------


class RemotingError(PenstockError):
    """A call to a server did not complete."""

    retriable = True


class ConnectFailed(RemotingError):
    """No connection could be made; nothing was sent."""


class SendFailed(RemotingError):
    """The connection was lost before or while the answer was awaited; the request may have arrived."""

    outcome_unknown = True


class RequestTimeout(RemotingError):
    """No answer in time; the request may have been carried out."""

    outcome_unknown = True


class TooManyRequests(RemotingError):
    """The bound on requests in flight was reached and no place became free in time."""


# ---- what servers answer ----------------------------------------------------------------------------


class ServerError(PenstockError):
    """A broker or name server answered with an error code."""

    def __init__(self, code: int, remark: str | None, *, address: str = "", retriable: bool = False) -> None:
        where = f" from {address}" if address else ""
        super().__init__(f"code {code}{where}: {remark or 'no remark'}")
        self.code = code
        self.remark = remark
        self.address = address
        self.retriable = retriable


class TopicNotFound(PenstockError):
    """No route for the topic: it does not exist, or no broker that serves it is alive."""


class BrokerNotFound(PenstockError):
    """The route names a broker whose address is not known."""

    retriable = True


class NoNameServer(PenstockError):
    """No name server is configured, or none can be reached."""

    retriable = True


class SendError(PenstockError):
    """A message was not stored: every attempt failed for certain."""


class SendOutcomeUnknown(SendError):
    """A message may or may not have been stored: the last attempt got no answer."""

    outcome_unknown = True


class SendManyFailed(SendError):
    """Some messages of a `send_many` failed; `results` has, in their order, a result or an error for each."""

    def __init__(self, text: str, results: list[object], *, outcome_unknown: bool) -> None:
        super().__init__(text)
        self.results = results
        self.outcome_unknown = outcome_unknown


class LeaseLost(PenstockError):
    """A popped message is no longer this consumer's: its time is over, or it was acked or given back.

    The broker gives it, or gave it, to whoever pops next. `messages` are those it happened to.
    """

    def __init__(self, text: str, messages: Sequence[object] = ()) -> None:
        super().__init__(text)
        self.messages = list(messages)


# ---- the store --------------------------------------------------------------------------------------


class StoreError(PenstockError):
    """The data directory cannot be used as it is."""


class StoreLocked(StoreError):
    """Another process holds the data directory."""


class StoreDamaged(StoreError):
    """A file is missing, has the wrong size, or is damaged beyond the repairable tail."""


class StoreFull(StoreError):
    """The disk is full or over its watermark; writes are refused until space returns."""

    retriable = True
