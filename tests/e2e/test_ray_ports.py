"""Whatever Ray leaves listening is on loopback alone and refuses a caller without the token."""

from __future__ import annotations

import grpc
import httpx
import psutil
import pytest

from headrace.supervisor import pidfile
from headrace.supervisor.layout import Layout
from tests.e2e.conftest import wait_until

pytestmark = pytest.mark.e2e

LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
# One call that does something for every gRPC service Ray is known to open; each port serves at least one of them.
CALLS = (
    "ray.rpc.JobInfoGcsService/GetAllJobInfo",
    "ray.rpc.InternalKVGcsService/InternalKVGet",
    "ray.rpc.NodeManagerService/GetNodeStats",
    "ray.rpc.ObjectManagerService/Push",
    "ray.rpc.CoreWorkerService/PushTask",
    "ray.rpc.RayletDriver/Init",
    "ray.rpc.ReporterService/GetTraceback",
    "ray.rpc.events.EventAggregatorService/AddEvents",
)


def listening(layout: Layout) -> list[tuple[str, int, str]]:
    """(address, port, process) of every TCP socket that a process of this Ray head listens on."""
    names = {}
    for process in pidfile.leftovers(layout):
        try:
            names[process.pid] = process.name()
        except psutil.Error:
            continue
    sockets = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.pid in names]
    return [(c.laddr.ip, c.laddr.port, names[c.pid]) for c in sockets]


def http_answers(port: int) -> dict[str, int] | None:
    """Status of calls without a token, by path; None where the port does not speak HTTP/1."""
    calls = [("GET", "/api/jobs/"), ("POST", "/api/jobs/"), ("GET", "/metrics"), ("GET", "/api/job_agent/jobs/x/logs")]
    calls += [("POST", "/get_or_create_runtime_env"), ("GET", "/nodes?view=summary"), ("GET", "/api/version"), ("DELETE", "/api/jobs/x")]
    try:
        with httpx.Client(trust_env=False, timeout=5, base_url=f"http://127.0.0.1:{port}") as client:
            return {f"{method} {path}": client.request(method, path).status_code for method, path in calls}
    except httpx.HTTPError:
        return None


def grpc_answers(port: int, token: str | None = None) -> dict[str, str]:
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    found = {}
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for call in CALLS:
            try:
                channel.unary_unary(f"/{call}")(b"", timeout=3, metadata=metadata)
                found[call] = "OK"
            except grpc.RpcError as error:
                found[call] = error.code().name
    return found


def test_every_port_is_loopback_and_refuses(ray_layout: Layout) -> None:
    sockets = wait_until(lambda: len(found := listening(ray_layout)) >= 7 and found, 20, "Ray's ports")
    outside = [s for s in sockets if s[0] not in LOOPBACK]
    assert not outside, f"listening beyond loopback: {outside}"
    kinds = {"http": 0, "grpc": 0}
    for _, port, name in sockets:
        answers = http_answers(port)
        if answers is not None:
            kinds["http"] += 1
            open_calls = {call: status for call, status in answers.items() if status not in (401, 403)}
            assert not open_calls, f"{name} on port {port} answered a caller without the token: {open_calls}"
            continue
        kinds["grpc"] += 1
        codes = grpc_answers(port)
        assert set(codes.values()) <= {"UNAUTHENTICATED", "UNIMPLEMENTED"}, f"{name} on port {port}: {codes}"
        assert "UNAUTHENTICATED" in codes.values(), f"no known service on port {port} of {name}: {codes}"
    assert kinds["http"] >= 3 and kinds["grpc"] >= 4, kinds


def test_the_same_grpc_call_with_the_token_is_let_in(ray_layout: Layout) -> None:
    token = ray_layout.ray_token.read_text()
    call = "ray.rpc.JobInfoGcsService/GetAllJobInfo"
    assert grpc_answers(ray_layout.ports["ray_gcs"])[call] == "UNAUTHENTICATED"
    assert grpc_answers(ray_layout.ports["ray_gcs"], token)[call] == "OK"
    assert grpc_answers(ray_layout.ports["ray_gcs"], "0" * 64)[call] == "UNAUTHENTICATED"


@pytest.mark.parametrize(("header", "status"), [(None, 401), ("Bearer wrong", 403), ("right", 200)])
def test_jobs_api_wants_the_token(ray_layout: Layout, header: str | None, status: int) -> None:
    given = f"Bearer {ray_layout.ray_token.read_text()}" if header == "right" else header
    with httpx.Client(trust_env=False, timeout=10) as client:
        reply = client.get(f"{ray_layout.ray_url}/api/jobs/", headers={"Authorization": given} if given else {})
    assert reply.status_code == status


def test_ray_never_sees_the_control_planes_secrets(ray_layout: Layout) -> None:
    seen = 0
    for process in pidfile.leftovers(ray_layout):
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        seen += 1
        assert not [name for name in environment if name.startswith("HEADRACE_SECRET") or name == "HEADRACE_DATABASE_URL"]
        assert ray_layout.ray_token.read_text() not in " ".join(process.cmdline())
    assert seen >= 5


def test_secret_files_are_private(ray_layout: Layout) -> None:
    assert ray_layout.ray_token.stat().st_mode & 0o777 == 0o600
    assert ray_layout.secret_key.stat().st_mode & 0o777 == 0o600
    assert ray_layout.runtime.stat().st_mode & 0o777 == 0o700
