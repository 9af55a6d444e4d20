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

# The generator of TPC-H data is several times slower without optimisation; everything else in the
# tests waits for servers and only has to build fast.
# shellcheck disable=SC2034
tests_profile=(
    --config 'profile.dev.package.tpchgen.opt-level=3'
    --config 'profile.dev.package.parallel_replicas_tests.opt-level=2'
)
