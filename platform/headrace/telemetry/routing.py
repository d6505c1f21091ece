"""Socket addresses. asgi.py puts them behind the check of origin and the session."""

from django.urls import path

from headrace.telemetry.consumers import RunConsumer

websocket_urlpatterns = [path("ws/runs/<str:public_id>/", RunConsumer.as_asgi())]
