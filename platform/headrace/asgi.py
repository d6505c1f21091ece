"""The server's entry: `uvicorn headrace.asgi:application`. HTTP goes to Django, sockets to the consumers.

A socket is accepted only from an origin that CSRF_TRUSTED_ORIGINS names, and carries the browser session; each consumer then checks
the run it is asked for.
"""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "headrace.settings")

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import OriginValidator
from django.conf import settings
from django.core.asgi import get_asgi_application

http = get_asgi_application()  # sets Django up, so it comes before anything that needs models

from headrace.sockets import UnknownSocket  # noqa: E402
from headrace.telemetry.routing import websocket_urlpatterns  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": http,
        "websocket": OriginValidator(
            AuthMiddlewareStack(URLRouter([*websocket_urlpatterns, UnknownSocket.route()])),
            settings.CSRF_TRUSTED_ORIGINS,
        ),
    }
)
