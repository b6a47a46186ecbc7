# One line per door; the work is in xtask (cargo xtask help) and scripts/.
# Settings such as DIR=... reach the programs as environment variables, given
# before or after the word make.

.DEFAULT_GOAL := help
.PHONY: help setup build test demo bench soak wheel clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what this machine lacks, or say how
	@scripts/setup

build: setup ## build everything, optimised
	cargo build --workspace --release

test: setup ## every check and every test, guest tests included
	cargo xtask check
	cargo xtask test

demo: setup ## a cluster on this machine, real files in, a node killed [DIR=/usr/share] [KEEP=1]
	@scripts/demo

bench: setup ## measure, and compare with the promised figures
	cargo xtask bench

soak: setup ## run for hours under faults [HOURS=8] [ONLY=part,...]
	cargo xtask soak

wheel: setup ## the Python package as a wheel in target/wheels, tried [PROFILE=release]
	@scripts/wheel

clean: ## remove what was built
	cargo clean
