# `make dev` brings up a local four-replica Byzantine cluster, `make test` runs all tests.
CARGO ?= cargo
DIR ?= perdura-data

.PHONY: dev test verify fix bench build

build:
	$(CARGO) build --release --locked --bin perdura

# A cluster of real processes on loopback, with its data in $(DIR); Ctrl-C stops it.
dev: build
	target/release/perdura dev $(DIR)

test:
	$(CARGO) test --workspace --locked

# Checks and never writes.
verify:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	scripts/check-architecture
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet

fix:
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged

# Throughput, latency and CPU by callers and value size, and the wait over a lost leader.
bench: build
	scripts/bench

# Perdura beside etcd, ZooKeeper and Redis on the same writes, in turn: a table with ratios, JSON and SVG
# in target/bench-peers. Needs Python 3, and Go or Java with Maven; installs the peers from their registries.
# For example `make bench-peers OPTIONS="--rounds 1"`; PERDURA may name another binary.
.PHONY: bench-peers
OPTIONS ?=
bench-peers: $(if $(PERDURA),,build)
	scripts/bench-peers $(OPTIONS)

# kill -9 of one replica, of the leader, of all at once, 20 times each per kind of group, under load.
.PHONY: kills
kills:
	PERDURA_ROUNDS=60 $(CARGO) test --locked -p perdura --test kills -- --nocapture --test-threads 1

# Faults of every kind on a cluster of real processes, with a judge of what clients saw; an hour, or
# for example `make chaos DURATION=120 GROUP="--crash 1" SERVICE=tuples SEED=7`. The report is in $(OUT).
.PHONY: chaos
DURATION ?= 3600
GROUP ?= --byzantine 1
SERVICE ?= kv
SEED ?= $(shell date +%s)
OUT ?= target/chaos/$(SEED)-$(shell date +%H%M%S)
chaos:
	scripts/chaos-setup
	$(CARGO) build --release --locked -p perdura -p perdura-chaos
	target/release/perdura-chaos $(GROUP) --service $(SERVICE) --duration $(DURATION) --seed $(SEED) --out $(OUT)

# Bits that flip in the memory of replicas, on a build in which they can be made to.
.PHONY: chaos-memory
chaos-memory:
	scripts/chaos-setup
	$(CARGO) build --profile fast --locked -p perdura-chaos
	$(CARGO) build --profile fast --locked -p perdura --features misbehave
	target/fast/perdura-chaos $(GROUP) --service $(SERVICE) --duration $(DURATION) --seed $(SEED) --out $(OUT) --only memory-rot

# The agreement machine in every order of events within the bounds of docs/testing.md, on two threads;
# then flaws made on purpose, which it has to find, and random walks beyond the bounds.
.PHONY: model-check
model-check:
	$(CARGO) build --profile fast --locked -p perdura-model
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
