# Every target sets up what it needs by itself: there is no order to know. `make` alone prints this list.

TARGET := $(or $(CARGO_TARGET_DIR),target)

# A protoc that tests/setup.sh fetched for a machine without one; see there.
export PATH := $(abspath $(TARGET))/protoc/bin:$(PATH)

CI_PEERS  := reference-0.6.0 cri-tools-1.36.0 containerd-2.4.2 kubelet-1.36.3 etcd-3.6.7 kube-apiserver-1.36.3
ALL_PEERS := $(CI_PEERS) containerd-1.7.30 kubelet-1.31.0 kubelet-1.37.0 runc-1.4.0 crio-1.36.3

QUICK := --lib --bins --test quick --test node

# Runs e2e with options, and prints its figures also when some test failed.
run-e2e = rm -f $(TARGET)/e2e-report.md; cargo test --no-run --test e2e || exit; \
	CRISP_SWEEPER=e2e tests/with-skips.sh cargo test --quiet --test e2e -- $(1); status=$$?; \
	cat $(TARGET)/e2e-report.md 2> /dev/null; exit $$status

.PHONY: help setup build demo test lint bench layout e2e e2e-all peers

help: ## Print the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: ## Install everything that any target needs (each does so for itself)
	@tests/setup.sh

build: ## Build the release binary, target/release/crisp
	@tests/setup.sh build
	cargo build --release

demo: ## Try crisp with nothing installed but Rust (KEEP=1 leaves it running)
	@tests/setup.sh build
	cargo build --bin crisp --example demo
	@KEEP=$(KEEP) exec cargo run --quiet --example demo

test: ## Unit tests, the fake runtime, and a real containerd (quick; parts that cannot run are listed as skipped)
	@tests/setup.sh build test
	cargo test --no-run $(QUICK)
	@tests/with-skips.sh sh -c 'cargo test --quiet --no-fail-fast $(QUICK) && cargo test --quiet --doc'

lint: ## Formatting, clippy, and the rules on dependencies
	@tests/setup.sh build lint
	cargo fmt --check
	cargo clippy --quiet --all-targets -- -D warnings
	@# Advisories are left out: their database is a network service of its own.
	cargo deny --log-level error check bans licenses sources

bench: ## Measure crisp beside a direct connection and nginx
	@tests/setup.sh build bench
	cargo build --release
	@# Elsewhere: a program built beside benches has more in it, and would be taken for the one to install.
	CRISP_BIN=$(abspath $(TARGET))/release/crisp cargo bench --target-dir $(TARGET)/bench

layout: build ## Find out anew which functions run on a node, to lay them together (needs another build)
	@tests/setup.sh test layout
	@tests/layout.sh

e2e: ## critest, crictl and a kubelet through crisp: the subset that CI runs
	@tests/setup.sh build e2e
	@tests/peers/build.sh $(CI_PEERS)
	@$(call run-e2e)

e2e-all: ## The same on every supported containerd, CRI-O and kubelet
	@tests/setup.sh build e2e
	@tests/peers/build.sh $(ALL_PEERS)
	@$(call run-e2e,--include-ignored)

peers: ## Build the programs of e2e without running it (ALL=1: those of e2e-all)
	@tests/setup.sh e2e
	@tests/peers/build.sh $(if $(ALL),$(ALL_PEERS),$(CI_PEERS))
