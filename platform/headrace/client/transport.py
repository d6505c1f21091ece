"""How a request reaches the server and what becomes of a refusal: every error names field, value and cure."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Self

import httpx

from headrace.api.schemas import Problem
from workers.contract.errors import HeadraceError

RETRIES = 4


class ApiError(HeadraceError):
    """The server refused, or cannot be reached. `status` is the HTTP status; 0: no answer."""

    def __init__(self, status: int, problem: Problem) -> None:
        super().__init__(problem.message, field=problem.field, value=problem.value, cure=problem.cure or "", retryable=problem.retryable)
        self.status = status
        self.code = problem.code


class Connection:
    """A server and a token. Reads are tried again when the network fails; a launch carries an idempotency key, so it is too.

    What would act twice is sent again only where the first request cannot have arrived.

    Raises ApiError.
    """

    def __init__(self, server: str, token: str, *, timeout_s: float = 30.0, transport: httpx.BaseTransport | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}", "User-Agent": "headrace-client"}
        self.server = server.rstrip("/")
        self._http = httpx.Client(base_url=f"{self.server}/api/v1", headers=headers, timeout=timeout_s, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _download(self, path: str, to: Path, params: dict[str, str]) -> int:
        part = to.with_name(to.name + ".part")
        written = 0
        try:
            with self._http.stream("GET", path, params=params) as answer, part.open("wb") as sink:
                if answer.status_code != 200:
                    answer.read()
                    raise _refusal(answer)
                for piece in answer.iter_bytes():
                    written += sink.write(piece)
            part.replace(to)
        except httpx.HTTPError as error:
            raise _unreachable(self.server, error) from error
        finally:
            part.unlink(missing_ok=True)
        return written

    def _get(self, path: str, **params: Any) -> Any:
        return self._request("GET", path, params={name: value for name, value in params.items() if value not in (None, "")})

    def _post(self, path: str, body: dict[str, Any], *, once: bool = False) -> Any:
        return self._request("POST", path, once=once, json=body)

    def _request(self, method: str, path: str, *, once: bool = False, **options: Any) -> Any:
        """`once`: an answer that was lost is not asked for again, as a second checkpoint, probe or resume would come of it."""
        for attempt in range(RETRIES):
            try:
                answer = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                arrived = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
                if attempt == RETRIES - 1 or (once and arrived):
                    raise _unreachable(self.server, error) from error
                time.sleep(0.3 * 2**attempt)
                continue
            if answer.status_code in (429, 503) and attempt < RETRIES - 1:
                time.sleep(min(10.0, _seconds(answer.headers.get("Retry-After")) or 0.3 * 2**attempt))
                continue
            break
        if answer.status_code == 204:
            return None
        if answer.status_code >= 300:
            raise _refusal(answer)
        return answer.json()


def _refusal(answer: httpx.Response) -> ApiError:
    try:
        return ApiError(answer.status_code, Problem.model_validate(answer.json()))
    except ValueError:  # no JSON, or not of this shape: whatever stands between client and server answered
        return ApiError(
            answer.status_code, Problem(code="unknown", message=f"{answer.url} answered {answer.status_code}, which is no Headrace answer")
        )


def _unreachable(server: str, error: Exception) -> ApiError:
    words = f"{server} cannot be reached ({type(error).__name__})"
    return ApiError(
        0, Problem(code="unreachable", message=words, field="server", value=server, cure="start it with `headrace up`", retryable=True)
    )


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() else None
