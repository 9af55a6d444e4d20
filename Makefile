# `make demo` shows the extension at work; `make test` runs everything that must pass.
# Each target is a script of its own in scripts/, which says what it does and why.

benchmarks := bench-overhead bench-local bench-small bench-rows bench-groups bench-write bench-scale \
	bench-tail bench-locality

.PHONY: help setup install demo lint test sim test-regress test-points fuzz-queries chaos soak valgrind bench bench-core $(benchmarks) bench-queue overhead-queue soak-queue

help:
	@echo "make setup    install what building and testing need (Debian 12 packages, cargo-pgrx)"
	@echo "make install  build the extension and install it into PostgreSQL 15"
	@echo "make demo     TPC-H on a primary and two standbys in a temporary folder"
	@echo "              SCALE=0.1 takes less data, KEEP=1 leaves the servers running"
	@echo "make lint     formatting and clippy"
	@echo "make sim      what the rules of work-sharing promise and keep, simulated"
	@echo "make bench    all benchmarks: make bench-overhead, bench-local, bench-small, bench-rows,"
	@echo "              bench-groups, bench-write, bench-scale, bench-tail, bench-locality,"
	@echo "              bench-core; see docs/benchmarks.md"
	@echo "make bench-queue, make overhead-queue, make soak-queue"
	@echo "              the query queue under load, and what it costs; see docs/query-queue.md"
	@echo "make test     setup, lint, all tests; ends with 'N passed, N failed'"
	@echo "make test-regress"
	@echo "              PostgreSQL's own regression and isolation suites with everything shipped"
	@echo "make test-points"
	@echo "              failures at exact places, in a build of its own (part of make test)"
	@echo "make chaos    queries while replicas die, freeze, lag, are promoted and lie; SEED, EVENTS"
	@echo "make soak     sessions whose queries end early, 10000 of them; SEED, QUERIES, SESSIONS"
	@echo "make valgrind a short soak under valgrind"
	@echo "make fuzz-queries"
	@echo "              random queries with and without replicas; SEED, QUERIES, ROUND"

setup:
	@scripts/setup.sh

install: setup
	@scripts/install.sh

demo: install
	@scripts/demo.sh

lint:
	@scripts/lint.sh

test:
	@scripts/test.sh

test-regress: install
	@scripts/test-regress.sh

test-points: setup
	@scripts/test-points.sh

valgrind: setup
	@scripts/valgrind.sh

chaos soak: install
	@scripts/chaos.sh $@

fuzz-queries: install
	@scripts/fuzz.sh

bench: bench-core $(benchmarks) bench-queue

bench-core:
	@scripts/bench-core.sh

$(benchmarks): install
	@scripts/bench.sh $(@:bench-%=%)

bench-queue overhead-queue soak-queue: install
	@scripts/queue.sh $(@:%-queue=%)

sim:
	@scripts/sim.sh
