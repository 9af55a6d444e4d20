#!/usr/bin/env bash
# PostgreSQL's own regression and isolation suites over a primary and two standbys: once with
# replicas off, once with everything shipped that can be; see tests/src/bin/suite.rs.
#
# The suites come from Debian's source package of the installed major version, into SUITE_DIR, a
# temporary folder that later runs find again. TESTS="name name ..." runs some tests only.
set -euo pipefail
# shellcheck source=scripts/common.sh
source "$(dirname "$0")/common.sh"

major="$("$PG_CONFIG" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')"
suite="${SUITE_DIR:-${TMPDIR:-/tmp}/parallel_replicas-suite-$major}"

# Prints the versions of the source package, the installed one first, then newer before older ones:
# a mirror does not keep every source.
source_versions() {
    {
        dpkg-query --show --showformat '${source:Version}\n' "postgresql-$major"
        apt-cache showsrc "postgresql-$major" 2> /dev/null | sed -n 's/^Version: //p' | sort -rV
    } | awk '!seen[$0]++'
}

fetch() {
    local download version
    download="$(mktemp -d)"
    # apt fetches as a user of its own.
    chmod 777 "$download"
    apt-cache showsrc "postgresql-$major" > /dev/null 2>&1 || as_root apt-get update -qq
    while read -r version; do
        if (cd "$download" && apt-get source -qq --download-only "postgresql-$major=$version"); then
            dpkg-source --extract "$download"/*.dsc "$download/source" > /dev/null
            # The suite's scripts go with their own version's psql.
            (cd "$download" && apt-get download -qq "postgresql-client-$major=$version")
            dpkg-deb --extract "$download"/*.deb "$download/client"
            rm -rf "$suite.new"
            cp -r "$download/source/src/test" "$suite.new"
            cp -r "$download/client/usr/lib/postgresql/$major/bin" "$suite.new/bin"
            echo "$version" > "$suite.new/version"
            mv "$suite.new" "$suite"
            rm -rf "$download"
            return
        fi
    done < <(source_versions)
    die "no source package of postgresql-$major to be had; is there a deb-src line for apt?"
}

step "PostgreSQL's regression suite"
[ -e "$suite/version" ] || fetch
echo "of $(cat "$suite/version") in $suite, for $("$PG_CONFIG" --version)"

step "Functions of the suite in C"
libraries="$suite/lib"
mkdir -p "$libraries"
cc -O1 -fPIC -shared -w -I"$("$PG_CONFIG" --includedir-server)" \
    -o "$libraries/regress.so" "$suite/regress/regress.c"
cp "$("$PG_CONFIG" --pkglibdir)"/{autoinc,refint}.so "$libraries"
chmod -R a+rX "$suite"

step "Building the runner"
cargo build -p parallel_replicas_tests --bin suite
exec cargo run --quiet -p parallel_replicas_tests --bin suite -- "$suite"
