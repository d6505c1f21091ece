"""The wheel, as somebody installs it who has never seen this folder: it migrates, serves the login page, and shadows nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parent.parent
HERE = {str(ROOT), str(ROOT / "platform")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)], cwd=ROOT, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    return next(out.glob("headrace-*.whl"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel; its dependencies are read from this one by a .pth, not installed again."""
    home = tmp_path_factory.mktemp("env")
    venv.create(home, with_pip=False, symlinks=True)
    interpreter = home / "bin" / "python"
    site = next((home / "lib").glob("python3*")) / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # Plain paths only: the editable install's own .pth files are not read through another .pth, so the checkout stays unseen.
    (site / "dependencies.pth").write_text(next(p for p in sys.path if p.endswith("site-packages")) + "\n")
    return interpreter


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "PYTHON", "DJANGO_"))}
    return clean | {
        "HEADRACE_DATA_DIR": str(tmp_path_factory.mktemp("data")),
        "HEADRACE_SECRET_KEY": "wheel-" + "0123456789abcdefghijklmnopqrstuvwxyz" * 2,
        "DJANGO_SETTINGS_MODULE": "headrace.settings",
    }


def run(python: Path, env: dict[str, str], *arguments: str) -> str:
    done = subprocess.run([str(python), *arguments], env=env, cwd=env["HEADRACE_DATA_DIR"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_holds_packages_pages_and_presets_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} - {n for n in (name.split("/")[0] for name in names) if n.endswith(".dist-info")} == {
        "headrace",
        "workers",
        "migrations",
    }
    for wanted in ("headrace/settings.py", "workers/presets/demo.toml", "migrations/teams/0001_initial.py"):
        assert wanted in names
    assert any(name.startswith("headrace/frontend/templates/") for name in names)
    assert any(name.startswith("headrace/frontend/static/") for name in names)
    assert not [name for name in names if name.endswith(".pyc") or "/tests/" in name]


def test_it_imports_from_the_environment_and_leaves_pythons_platform_alone(python: Path, env: dict[str, str]) -> None:
    code = "import platform, headrace, workers, migrations, sys\n"
    code += "print(platform.__file__, headrace.__file__, workers.__file__, *sys.path, sep='\\n')"
    lines = run(python, env, "-c", code).splitlines()
    assert lines[0].endswith("platform.py") and "site-packages" not in lines[0]
    assert all(str(python.parent.parent) in line for line in lines[1:3]), lines
    assert not HERE & set(lines[3:])


def test_it_migrates_and_serves_login_page_and_static_file(python: Path, env: dict[str, str]) -> None:
    run(python, env, "-m", "django", "migrate", "--noinput", "--verbosity", "0")
    assert "/setup/" in run(python, env, "-m", "django", "bootstrap")
    port = _free_port()
    env = env | {"HEADRACE_PORT": str(port)}
    argv = [str(python), "-m", "uvicorn", "headrace.asgi:application", "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    with subprocess.Popen(argv, env=env, cwd=env["HEADRACE_DATA_DIR"]) as server:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=10) as client:
                page = _first_answer(client, server)
                assert page.status_code == 200 and "password" in page.text.lower()
                assets = [part.split('"')[0] for part in page.text.split('href="') if part.startswith("/static/")]
                answers = {asset: client.get(asset) for asset in assets}
                assert {a.status_code for a in answers.values()} == {200}, answers
                assert any(a.headers["content-type"].startswith("text/css") for a in answers.values()), answers
        finally:
            server.terminate()


def _first_answer(client: httpx.Client, server: subprocess.Popen[bytes]) -> httpx.Response:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server ended"
        try:
            return client.get("/login/")
        except httpx.TransportError:
            time.sleep(0.2)
    pytest.fail("the server did not answer within 60 s")


def _free_port() -> int:
    from headrace.supervisor.layout import free_ports

    return free_ports(1)[0]
