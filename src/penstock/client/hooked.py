"""Calls consume hooks around a listener; what a hook raises never reaches consumption."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from penstock.client.listener import ConsumeHook, ConsumeHookContext, ReturnType, Status
from penstock.client.pulled import PulledMessage
from penstock.message.queue import MessageQueue

log = logging.getLogger("penstock.client")


class ConsumeHooks:
    def __init__(self, group: str, hooks: Sequence[ConsumeHook]) -> None:
        self._group = group
        self.registered = hooks

    def before(self, queue: MessageQueue, messages: Sequence[PulledMessage]) -> ConsumeHookContext:
        context = ConsumeHookContext(self._group, queue, messages)
        for hook in self.registered:
            try:
                hook.before(context)
            except Exception:
                log.exception("consume hook %r failed and is ignored", hook)
        return context

    def after(
        self,
        context: ConsumeHookContext,
        status: Status | None,
        return_type: ReturnType | None,
        *,
        success: bool,
    ) -> None:
        context.status = status
        context.return_type = return_type
        context.success = success
        for hook in self.registered:
            try:
                hook.after(context)
            except Exception:
                log.exception("consume hook %r failed and is ignored", hook)
