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

# Makes a copy of PostgreSQL in a temporary folder, which the caller removes, and sets PG_CONFIG to its
# pg_config: an installation to be spoilt. Sets copy to the folder.
copy_postgresql() {
    local major bin
    bin="$("$PG_CONFIG" --bindir)"
    major="$("$PG_CONFIG" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')"
    copy="$(mktemp -d)"
    # The servers run as another user.
    chmod 755 "$copy"
    # pg_config finds everything relative to where it is.
    mkdir -p "$copy/lib/postgresql" "$copy/share/postgresql"
    cp -a "$(dirname "$bin")" "$copy/lib/postgresql/$major"
    cp -a "$("$PG_CONFIG" --sharedir)" "$copy/share/postgresql/$major"
    ln -s "$(dirname "$("$PG_CONFIG" --includedir)")" "$copy/include"
    export PG_CONFIG="$copy/lib/postgresql/$major/bin/pg_config"
}
