# The commands of this project. `make run` and `make test` work on a fresh clone on Debian or Ubuntu.
# CARGO_TARGET_DIR, CARGO_HOME and HOME of the caller are respected.

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
OUTBOARD := $(TARGET_DIR)/release/outboard
LAB := $(TARGET_DIR)/release/outboard-lab
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)
# A command for `make run` to run beside the server: make run CMD="curl -s http://10.77.0.2/"
export CMD

.PHONY: help run build setup check test lint checks unit loom sim book interop bench report fuzz mutants \
	package

help:
	@echo "make run      serve examples/site at http://10.77.0.2/ until Ctrl-C"
	@echo "make test     install what the tests need and run them all"
	@echo "make check    format, lints, documentation, house rules, tests without network: for each change"
	@echo "make book     the documents as HTML, at $(TARGET_DIR)/book"
	@echo "make build    the programs, at $(OUTBOARD) and $(LAB)"
	@echo "parts of test: setup lint checks unit loom sim book interop"
	@echo "make fuzz     every fuzz target for FUZZ_SECONDS=$(FUZZ_SECONDS); needs a C++ compiler"
	@echo "make mutants  planted faults, each of which the simulator or a test must find"
	@echo "make package  what cargo publish checks of each crate, without an upload"
	@echo "make bench    the main measurements: half an hour, and a machine with nothing else to do"

run: build
	@scripts/run.sh

build:
	@scripts/setup.sh
	cargo build --release -p outboard -p outboard-lab

# What the tests need beyond a compiler: programs that we did not write, to test against.
setup:
	@scripts/setup.sh test

# The inner loop: everything that needs neither privileges nor other programs.
check: lint checks unit

# From cheap to dear; the first that fails ends it. Link-time optimization takes longer than the tests
# gain from it.
test: export CARGO_PROFILE_RELEASE_LTO ?= off
test:
	@$(MAKE) --no-print-directory setup
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory checks
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory loom
	@$(MAKE) --no-print-directory sim
	@$(MAKE) --no-print-directory book
	@$(MAKE) --no-print-directory interop

# Each version of clippy finds other things: warnings fail with the one that the tree is kept clean
# for, and are only shown with others, so that a new version does not break a fresh clone.
LINT_RUST := 1.95
lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- \
		$(if $(findstring rustc $(LINT_RUST).,$(shell rustc --version)),-D warnings)
	RUSTDOCFLAGS="$(if $(findstring rustc $(LINT_RUST).,$(shell rustc --version)),-D warnings)" \
		cargo doc --quiet --workspace --no-deps --document-private-items

# The house rules and the architecture: see xtask/src/main.rs.
checks:
	cargo run --quiet -p xtask -- ci

# Everything that needs no network device: units, properties, packets, simulation.
unit:
	cargo test --workspace --exclude interop

# The rings between host and device, in every order that the memory model allows.
loom:
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$(TARGET_DIR)/loom" \
		cargo test -p outboard-abi --release --lib loom_tests

# Ten thousand seeds of mixed faults, each twice; they have to move every counter of the summary.
# More, and other ones: outboard-lab sim --help.
sim: build
	$(LAB) sim --seeds 10000

# The documents as HTML. mdbook and Graphviz come with `make setup`.
book:
	cargo run --quiet -p xtask -- book

# Plants each fault of xtask/faults (ONLY=NAME: those with NAME in their names) in a copy of the
# tree: the simulator has to find it within 1,000 seeds, or the test that the list names.
mutants:
	cargo run --quiet -p xtask -- mutants $(if $(ONLY),--only $(ONLY))

# Builds each crate from its package alone, in the order of their dependencies.
package:
	cargo publish --dry-run --workspace --locked

# Against programs that we did not write, in network namespaces. The example is built beside the
# programs: alone, it would have other features of its dependencies, and all would be built again.
interop: build
	cargo build --release -p outboard -p outboard-lab -p outboard-stack --bins --example echo
	OUTBOARD_BIN="$(abspath $(OUTBOARD))" cargo test -p interop

# libFuzzer on each target, with what is checked in and what was found before. Coverage is counted by
# LLVM's pass, which is in every compiler; --target keeps build scripts without it. What makes a
# target panic is left in the folder that it says, and replayed by the program with a file to run.
FUZZ_SECONDS ?= 120
FUZZ_TARGETS := formats descriptors attach carrier_device carrier_host shared_ring \
	ethernet_session ext4 http transport target
FUZZ_HOST = $(shell rustc -vV | sed -n 's/^host: //p')
FUZZ_FLAGS := --cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1 \
	-Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
	-Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares
fuzz:
	RUSTFLAGS="$(FUZZ_FLAGS)" CARGO_TARGET_DIR="$(TARGET_DIR)/fuzz" \
		cargo build -p fuzz --profile fuzz --target $(FUZZ_HOST)
	@for target in $(FUZZ_TARGETS); do \
		mkdir -p "$(TARGET_DIR)/fuzz/found/$$target" && \
		"$(TARGET_DIR)/fuzz/$(FUZZ_HOST)/fuzz/$$target" -max_total_time=$(FUZZ_SECONDS) \
			-max_len=2048 -timeout=20 -artifact_prefix="$(TARGET_DIR)/fuzz/$$target-" \
			"$(TARGET_DIR)/fuzz/found/$$target" fuzz/corpus/$$target || exit 1; \
	done

# Programs of crate `interop` that benchmarks start.
LIVE_PROGRAMS := --bin h3load --bin h3serve --bin udprelay

# See docs/benchmarks.md. Nginx, HAProxy and wrk are installed if they are missing.
bench: build
	@scripts/setup.sh bench
	$(LAB) bench io-tcp
	$(LAB) bench memory
	$(LAB) bench nvme
	$(LAB) bench nvme-loss
	$(LAB) bench serve-live
	$(LAB) bench proxy-live
	cargo build --release -p interop $(LIVE_PROGRAMS)
	$(LAB) bench quic-live
	$(LAB) bench quic-relay

# All benchmarks, a few minutes each at most, and a report as HTML in target/report.
report: build
	@scripts/setup.sh bench
	cargo build --release -p interop $(LIVE_PROGRAMS)
	$(LAB) report --quick --out "$(TARGET_DIR)/report"
