"""A socket client at the ASGI level. channels.testing has one, but importing it needs daphne, which nothing here serves with."""

from __future__ import annotations

from typing import Any

from asgiref.testing import ApplicationCommunicator


class SocketClient(ApplicationCommunicator):
    """Speaks the websocket messages of ASGI to an application."""

    def __init__(self, application: Any, path: str, user: Any, session: Any = None) -> None:
        super().__init__(
            application,
            {"type": "websocket", "path": path, "query_string": b"", "headers": [], "subprotocols": [], "user": user, "session": session},
        )

    async def connect(self, timeout: float = 3) -> bool:
        """Whether the application accepted."""
        await self.send_input({"type": "websocket.connect"})
        return (await self.receive_output(timeout))["type"] == "websocket.accept"

    async def receive_text(self, timeout: float = 3) -> str:
        """The next frame."""
        message = await self.receive_output(timeout)
        assert message["type"] == "websocket.send", message
        return message["text"]

    async def disconnect(self) -> None:
        """Go away, and let the consumer finish."""
        await self.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wait(3)
