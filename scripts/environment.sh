# Sourced by headway.sh and test.sh: headway_environment ROOT makes ROOT/.venv if it is missing or out of date.
# All it prints goes to standard error, so that `--json` keeps standard output to itself.

headway_say() { echo "headway: $*" >&2; }

# A Python fits if it is 3.12 or newer and can make an environment. It is run to find out: a pyenv
# shim lies on PATH for versions that are not switched on.
headway_fits() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1 </dev/null
}

headway_candidates() {
    for version in 3.12 3.13 3.14; do echo "python$version"; done
    echo python3
    echo python
    # pyenv: its own variable, its usual folder, and wherever its shims lie on PATH.
    {
        echo "${PYENV_ROOT:-}"
        echo "${HOME:-}/.pyenv"
        echo "${PATH:-}" | tr ':' '\n' | sed -n 's#/shims/*$##p'
    } | while IFS= read -r folder; do
        [ -n "$folder" ] || continue
        for python in "$folder"/versions/3.1[2-9]*/bin/python3; do echo "$python"; done
    done
    for python in "${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-${HOME:-}/.local/share}/uv/python}"/cpython-3.1[2-9]*/bin/python3 \
        /opt/homebrew/bin/python3.1[2-9] /usr/local/bin/python3.1[2-9] /opt/python/*/bin/python3; do
        echo "$python"
    done
}

headway_python() {
    if [ -n "${HEADWAY_PYTHON:-}" ]; then
        headway_fits "$HEADWAY_PYTHON" && { echo "$HEADWAY_PYTHON"; return 0; }
        headway_say "HEADWAY_PYTHON=$HEADWAY_PYTHON is no Python 3.12 or newer with the venv module; point it at one that is, or unset it."
        return 1
    fi
    found=$(headway_candidates | while IFS= read -r python; do
        if headway_fits "$python"; then
            echo "$python"
            break
        fi
    done)
    [ -n "$found" ] && { echo "$found"; return 0; }
    headway_say "needs Python 3.12 or newer with the venv module and found none on PATH, in pyenv or in uv;" \
        "install one (Debian: python3.12 and python3.12-venv) or set HEADWAY_PYTHON=/path/to/python3.12."
    return 1
}

# What the environment depends on: where it lies, the pinned versions and the project's own metadata.
headway_stamp() {
    echo "$1"
    cat "$1/requirements.txt" "$1/pyproject.toml" "$1/scripts/install.py" | cksum
}

headway_environment() {
    stamp=$(headway_stamp "$1")
    if [ -x "$1/.venv/bin/python" ] && [ "$(cat "$1/.venv/headway-stamp" 2>/dev/null)" = "$stamp" ]; then
        return 0
    fi
    python=$(headway_python) || exit 2
    "$python" "$1/scripts/install.py" "$1" "$stamp" >&2 </dev/null || exit 1
}
