"""What every socket address shares."""

from __future__ import annotations

from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer
from django.urls import re_path
from django.urls.resolvers import URLPattern


class UnknownSocket(AsyncWebsocketConsumer):
    """An address that leads nowhere is closed with 4404, not with an exception in the log."""

    async def connect(self) -> None:
        await self.accept()
        await self.close(code=4404)

    @classmethod
    def route(cls) -> URLPattern:
        consumer: Any = cls.as_asgi()
        return re_path(r"^.*$", consumer)
