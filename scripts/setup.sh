#!/usr/bin/env bash
# Installs what building and testing need: Debian packages, cargo-pgrx, its configuration.
# Does nothing, quickly, when all of it is there.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

packages=(
    build-essential         # cc and ld for Rust
    libclang-14-dev         # bindgen, which pgrx runs on PostgreSQL's headers
    libpq-dev               # libpq for the links between servers
    pkg-config
    postgresql-15
    postgresql-server-dev-15
)
if [ "${1:-}" = tests ]; then
    packages+=(chromium)     # shows a page in a test
    # Extensions that ours is tested together with.
    packages+=(postgresql-15-{cron,hll,partman,pgaudit,postgis-3})
fi

step "Debian packages"
command -v dpkg-query > /dev/null || die "this needs Debian; install by hand: ${packages[*]}"
missing=()
for package in "${packages[@]}"; do
    status="$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2> /dev/null || true)"
    [ "$status" = installed ] || missing+=("$package")
done
if [ "${#missing[@]}" -gt 0 ]; then
    echo "installing ${missing[*]}"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}"
else
    echo "all there"
fi
"$PG_CONFIG" --version | grep -q '^PostgreSQL 15\.' ||
    die "$PG_CONFIG belongs to $("$PG_CONFIG" --version); set PG_CONFIG to that of PostgreSQL 15"

step "Rust tools"
command -v cargo > /dev/null || die "cargo is missing; see https://rustup.rs"
if ! cargo fmt --version > /dev/null 2>&1 || ! cargo clippy --version > /dev/null 2>&1; then
    rustup component add rustfmt clippy
fi

# cargo-pgrx must have the very version of the pgrx crate.
wanted="$(sed -n 's/^pgrx = .*"=\([0-9.]*\)".*/\1/p' Cargo.toml | head -n 1)"
[ -n "$wanted" ] || die "Cargo.toml does not pin pgrx"
present="$(cargo pgrx --version 2> /dev/null | awk '{ print $2 }' || true)"
if [ "$present" = "$wanted" ]; then
    echo "cargo-pgrx $wanted is there"
else
    echo "installing cargo-pgrx $wanted (found: ${present:-none}); this takes a few minutes"
    cargo install --locked --quiet cargo-pgrx --version "=$wanted"
fi

config="${PGRX_HOME:-$HOME/.pgrx}/config.toml"
if ! grep -q '^pg15 *=' "$config" 2> /dev/null; then
    cargo pgrx init --pg15 "$PG_CONFIG"
fi
