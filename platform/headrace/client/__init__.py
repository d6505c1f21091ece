"""The Python client of the REST API. Needs httpx and pydantic only; answers are the models the server makes them from.

from headrace.client import Client

with Client("http://127.0.0.1:8700", token="hra_...") as headrace:
    run = headrace.launch("sums", preset="demo", set=["budget.steps=40"])
    for state in headrace.watch(run.id):
        print(state.step, state.reward)
"""

from headrace.client.connection import Client
from headrace.client.transport import ApiError
from headrace.client.watching import Progress

__all__ = ["ApiError", "Client", "Progress"]
