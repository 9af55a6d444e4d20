# Sourced by the other scripts: shared names and helpers. Not run by itself.
# shellcheck shell=bash

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

export PG_CONFIG="${PG_CONFIG:-/usr/bin/pg_config}"

# Prints a step's title.
step() {
    printf '\n==> %s\n' "$*"
}

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Runs a command as root: directly when we are root, through sudo otherwise.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo > /dev/null; then
        sudo "$@"
    else
        die "\"$*\" needs root: become root or install sudo"
    fi
}
