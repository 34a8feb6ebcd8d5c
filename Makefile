# The commands of this project. `make run` and `make test` work on a fresh clone on Debian or Ubuntu.
# CARGO_TARGET_DIR, CARGO_HOME and HOME of the caller are respected.

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
OUTBOARD := $(TARGET_DIR)/release/outboard
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)
# A command for `make run` to run beside the server: make run CMD="curl -s http://10.77.0.2/"
export CMD

.PHONY: help run build setup test lint checks unit loom sim interop bench

help:
	@echo "make run      serve examples/site at http://10.77.0.2/ until Ctrl-C"
	@echo "make test     install what the tests need and run them all"
	@echo "make build    the program, at $(OUTBOARD)"
	@echo "parts of test: setup lint checks unit loom sim interop"
	@echo "make bench    every measurement: a quarter of an hour, and a machine with nothing else to do"

run: build
	@scripts/run.sh

build:
	@scripts/setup.sh
	cargo build --release -p outboard

# What the tests need beyond a compiler: programs that we did not write, to test against.
setup:
	@scripts/setup.sh test

# From cheap to dear; the first that fails ends it.
test:
	@$(MAKE) --no-print-directory setup
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory checks
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory loom
	@$(MAKE) --no-print-directory sim
	@$(MAKE) --no-print-directory interop

# Each version of clippy finds other things: warnings fail with the one that the tree is kept clean
# for, and are only shown with others, so that a new version does not break a fresh clone.
LINT_RUST := 1.95
lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- \
		$(if $(findstring rustc $(LINT_RUST).,$(shell rustc --version)),-D warnings)

# The house rules and the architecture: see xtask/src/main.rs.
checks:
	cargo run --quiet -p xtask -- ci

# Everything that needs no network device: units, properties, packets, simulation.
unit:
	cargo test --workspace --exclude interop

# The rings between host and device, in every order that the memory model allows.
loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$(TARGET_DIR)/loom" \
		cargo test -p abi --release --lib loom_tests

# Ten thousand seeds of mixed faults, each twice. More, and other ones: outboard sim --help.
sim: build
	$(OUTBOARD) sim --seeds 10000

# Against programs that we did not write, in network namespaces.
interop: build
	OUTBOARD_BIN="$(abspath $(OUTBOARD))" cargo test -p interop

# See README.md, "Measurements". Nginx, HAProxy and wrk are installed if they are missing.
bench: build
	$(OUTBOARD) bench io-tcp
	$(OUTBOARD) bench memory
	$(OUTBOARD) bench nvme
	$(OUTBOARD) bench nvme-loss
	$(OUTBOARD) bench serve-live
	$(OUTBOARD) bench proxy-live
	cargo build --release -p interop --bins
	$(OUTBOARD) bench quic-live
