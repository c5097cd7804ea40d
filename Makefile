# `make dev` brings up a local four-replica Byzantine cluster, `make test` runs all tests.
CARGO ?= cargo
DIR ?= perdura-dev
# Tests draw from the commit, so that a rerun repeats them.
export PERDURA_SEED ?= $(shell printf '%d' 0x$$(git rev-parse --short=7 HEAD 2> /dev/null || echo 1))

.PHONY: dev test verify fix bench build programs release

# Whatever runs from this tree: optimised, with assertions, linked fast, and with mistakes that tests switch on. The same packages and
# features whatever is asked for, so that code is generated once.
FAST = --profile fast --locked --workspace --features perdura-protocol/seeded-bugs

# What the tour and `make dev` run.
build:
	$(CARGO) build $(FAST) --bin perdura

# And what simulates groups, makes replicas lie, and injects faults.
programs:
	$(CARGO) build $(FAST) --bin perdura --bin perdura-lab --bin perdura-chaos

# What is shipped, `target/release/perdura`: optimised over all crates together, which takes minutes, and with nothing in it that misbehaves.
release:
	$(CARGO) build --release --locked --package perdura-cli
	scripts/check-shipped target/release/perdura

# The experiments' program, `target/release/perdura-lab`, and beside it the `perdura` that it measures.
.PHONY: lab
lab: release
	$(CARGO) build --release --locked --package perdura-lab

# A container image of it, with podman or docker.
.PHONY: container
container: release
	scripts/container

# A Debian package of it, `target/deb/perdura_*.deb`; needs `cargo install --locked cargo-deb`.
.PHONY: deb
deb: release
	scripts/deb

# A cluster of real processes on loopback, with its data in $(DIR); Ctrl-C stops it.
dev: build
	target/fast/perdura dev $(DIR)

# Many wait for processes most of their time.
export RUST_TEST_THREADS ?= $(shell expr 2 + "$$(nproc)")

# All but the suites of applications on processes (`make test-buzzer-http`).
test:
	$(CARGO) test $(FAST) $(TEST)

# Checks and never writes: what is shipped, without what tests switch on. All but applications.
verify: structure
	$(CARGO) clippy --profile fast --workspace --tests --examples --bin perdura --bin perdura-model --locked -- -D warnings

# Its first seconds: formatting, of applications too, and what uses what.
.PHONY: structure
structure:
	$(CARGO) fmt --all --check
	scripts/check-architecture
	scripts/check-documents

# And applications, with their suites, which no other command looks at.
.PHONY: verify-apps
verify-apps:
	$(CARGO) clippy --profile fast --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --profile fast --locked --package perdura-buzzer --package perdura-race --test http --test units --test small -- -D warnings

# Documentation without warnings, in target/doc.
.PHONY: doc
doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet

fix:
	$(CARGO) fmt --all
	$(CARGO) clippy --profile fast --locked --workspace --all-targets --fix --allow-dirty --allow-staged

# All that CI does, of each thing more, and what is too long for it. Prints one summary; NIGHTLY names
# steps, in place of all.
.PHONY: nightly
nightly:
	scripts/nightly $(NIGHTLY)

# Throughput, latency and CPU by callers and value size, and the wait over a lost leader.
bench: release
	scripts/bench

# Perdura beside etcd, ZooKeeper and Redis on the same writes, in turn: a table with ratios, JSON and SVG
# in target/bench-peers. Needs Python 3, and Go or Java with Maven; installs the peers from their registries.
# For example `make bench-peers OPTIONS="--rounds 1"`; PERDURA may name another binary.
.PHONY: bench-peers
OPTIONS ?=
bench-peers: $(if $(PERDURA),,release)
	scripts/bench-peers $(OPTIONS)

# kill -9 of one replica, of the leader, of all at once, 20 times each per kind of group, under load.
.PHONY: kills
ROUNDS ?= 60
kills:
	PERDURA_ALL=1 PERDURA_ROUNDS=$(ROUNDS) $(CARGO) test $(FAST) --test main kills:: -- --nocapture --test-threads 1

# Faults of every kind on a cluster of real processes, with a judge of what clients saw; an hour, or
# for example `make chaos DURATION=120 GROUP="--crash 1" SERVICE=tuples SEED=7 ONLY=memory-rot`, or `SERVICE=partitions PARTITIONS=4`. The
# report is in $(OUT).
.PHONY: chaos
DURATION ?= 3600
GROUP ?= --byzantine 1
SERVICE ?= kv
PARTITIONS ?= 2
SEED ?= $(shell date +%s)
OUT ?= target/chaos/$(SEED)-$(shell date +%H%M%S)
chaos: programs
	scripts/chaos-setup
	target/fast/perdura-chaos $(GROUP) --service $(SERVICE) --partitions $(PARTITIONS) --duration $(DURATION) --seed $(SEED) --out $(OUT) \
	  $(if $(ONLY),--only $(ONLY))

# The agreement machine in every order of events within the bounds of docs/testing/other.md, on two threads;
# then flaws made on purpose, which it has to find, and random walks beyond the bounds.
.PHONY: model-check
model-check:
	$(CARGO) build $(FAST) --bin perdura-model
	target/fast/perdura-model
	target/fast/perdura-model --flaws
	target/fast/perdura-model --walks 60

# Every decoder, and the log against its model, under libFuzzer for SECONDS each; needs cargo-fuzz.
.PHONY: fuzz
SECONDS ?= 60
fuzz:
	scripts/fuzz $(SECONDS)

# An independent judge (porcupine) on what the clients of SEEDS simulated seeds saw; needs Go.
.PHONY: judge
SEEDS ?= 200
judge:
	cd judge && go vet ./... && go test ./...
	scripts/judge $(SEEDS)

# The same judge on what the clients of a chaos run on the store saw, which was kept in DIR by
# `perdura-chaos --keep --out DIR`; needs Go.
.PHONY: judge-chaos
judge-chaos:
	scripts/judge --chaos $(DIR)

# Mutants of quorums, voting rules, evidence, log and sessions against the quick tests of their crates,
# survivors against the simulator; resumable. Needs `cargo install cargo-mutants --locked`.
.PHONY: mutants
mutants:
	scripts/mutants

# Buzzer, a social network (docs/buzzer.md): a cluster of two partitions and the application on loopback, with their data in perdura-buzzer;
# Ctrl-C stops both. For example `make buzzer LISTEN=127.0.0.1:9000 DIR=elsewhere`.
.PHONY: build-buzzer buzzer
build-buzzer: build
	$(CARGO) build $(FAST) --bin buzzer

buzzer: export DIR := $(if $(filter-out perdura-dev,$(DIR)),$(DIR),perdura-buzzer)
buzzer: build-buzzer
	scripts/buzzer

# Its unit tests, the program over HTTP on real servers, and its race at a small size.
.PHONY: test-buzzer-http
test-buzzer-http: build-buzzer
	$(CARGO) test $(FAST) --test units --test http --test small --bin buzzer-race $(TEST)

# A real browser on it: sign-up, posts, timelines, failures, on a desktop and on a phone; screenshots in target/buzzer-screens. Needs the
# Debian packages chromium, chromium-driver and python3-venv.
.PHONY: test-buzzer
test-buzzer: build-buzzer
	apps/buzzer/browser/run

# Buzzer on Perdura against Retwis on Redis, at the level of calls and over HTTP: tables, JSON and SVG in target/bench-buzzer. Takes one to two
# hours on a quiet machine; needs Python 3, and installs Redis from its Debian package. For example
# `make bench-buzzer OPTIONS="run --users 1000 --seconds 2 --rounds 1"`; `OPTIONS=causality` looks for answers that are seen without what they
# answer, `OPTIONS=survival` kills a server, and counts; `scripts/bench-buzzer run --help` lists more.
.PHONY: bench-buzzer
bench-buzzer: release
	$(CARGO) build --release --locked --package perdura-buzzer --package perdura-race
	scripts/bench-buzzer $(OPTIONS)
