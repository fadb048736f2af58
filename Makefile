# Each target is a command of ./dev, which also works where make is not installed.
.DEFAULT_GOAL := help
TARGETS := build demo test check unit race e2e fuzz bench lint install-deps clean

.PHONY: help $(TARGETS) compare
help: ## list the targets
	@./dev help

# build         ./postern, static and reproducible
# demo          the call that works, the secret that is not there, the exfiltration that is refused
# test          everything, with one count at the end
# check         gofmt, go vet, staticcheck, the architecture tests
# unit, race    tests of every package but the end-to-end ones; the same under the race detector
# e2e           real clients in real sandboxes, as root and as an ordinary user
# fuzz          every fuzz target for a moment: make fuzz FUZZTIME=30s
# bench         benchmarks of every package, briefly
# lint          golangci-lint
# install-deps  only install what the tests need
# clean         remove what was built
$(TARGETS):
	@./dev $@

# compare       postern beside other proxies: make compare DIR=path/of/the/harness
compare:
	@./dev compare $(DIR)
