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

# apt's settings for the machine's own package sources with the source packages of them added, which most
# machines leave out: in a folder of their own, so that nothing of the machine's is changed.
apt_with_sources() {
    local sources="$1/sources" file
    mkdir -p "$sources" "$1/lists"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
        [ -e "$file" ] || continue
        sed -E 's/^Types:.*/Types: deb deb-src/; s/^deb (.*)/&\ndeb-src \1/' "$file" > "$sources/${file##*/}"
    done
    cat > "$1/apt.conf" << EOF
Dir::Etc::SourceList "/dev/null";
Dir::Etc::SourceParts "$sources";
Dir::State::Lists "$1/lists";
Dir::Cache::PkgCache "";
Dir::Cache::SrcPkgCache "";
Dir::Cache::Archives "$1";
EOF
    export APT_CONFIG="$1/apt.conf"
}

# Prints the versions of the source package, the installed one first, then newer before older ones:
# a mirror does not keep every source.
source_versions() {
    {
        dpkg-query --show --showformat '${source:Version}\n' "postgresql-$major"
        apt-cache showsrc "postgresql-$major" 2> /dev/null | sed -n 's/^Version: //p' | sort -rV
    } | awk '!seen[$0]++'
}

fetch() (
    local download version
    download="$(mktemp -d)"
    # apt fetches as a user of its own.
    chmod 777 "$download"
    apt_with_sources "$download"
    apt-get update -qq
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
    die "no source package of postgresql-$major to be had from the machine's package sources"
)

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
