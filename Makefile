# Pinfold. The two commands of the README are `make demo` and `make test`.

GO       ?= go
GOFLAGS_ := -trimpath
DESTDIR  ?=
PREFIX   ?= /usr
BINDIR   := $(DESTDIR)$(PREFIX)/bin
SBINDIR  := $(DESTDIR)$(PREFIX)/sbin
LIBEXEC  := $(DESTDIR)$(PREFIX)/libexec/pinfold
UNITDIR  := $(DESTDIR)$(PREFIX)/lib/systemd/system
MANDIR   := $(DESTDIR)$(PREFIX)/share/man
DOCDIR   := $(DESTDIR)$(PREFIX)/share/doc/pinfold
CONFDIR  := $(DESTDIR)/etc/pinfold

.PHONY: all build test test-vm demo bench fuzz lint fmt fmt-check vet install clean

all: build

# Three static binaries; plain `go build ./cmd/...` gives the same.
build:
	CGO_ENABLED=0 $(GO) build $(GOFLAGS_) -o bin/ ./cmd/pinfold ./cmd/pinfoldd ./cmd/pinfold-stage

# Every test, then the leftover check. What this host cannot run is listed with the reason.
test:
	test/run

# The tests that depend on the kernel, on Debian's kernels in QEMU, with systemd: docs/kernels.md.
test-vm:
	test/vm/run

# Commands through a private daemon with the embedded policy. Exit 4: this host lacks a control.
demo: build
	test/demo

# The table of docs/performance.md, beside bare spawns and bwrap, interleaved.
bench: build
	CGO_ENABLED=0 $(GO) run ./test/bench

# Every fuzzer for FUZZTIME each; go writes what fails into the package's testdata/fuzz, to be committed with the cure.
FUZZTIME ?= 30s
fuzz:
	set -e; grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u | while read -r dir; do \
		for f in $$($(GO) test "$$dir" -list '^Fuzz' | grep '^Fuzz'); do \
			echo "$$dir $$f"; $(GO) test "$$dir" -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 1s </dev/null; \
		done; \
	done

fmt:
	golangci-lint fmt

fmt-check:
	test -z "$$(gofmt -l $$(git ls-files '*.go'))"

vet:
	$(GO) vet ./...

lint:
	golangci-lint run ./...

install: build
	install -d -m 0755 $(BINDIR) $(SBINDIR) $(LIBEXEC) $(UNITDIR) $(MANDIR)/man1 $(MANDIR)/man5 $(MANDIR)/man8 $(DOCDIR)
	install -d -m 0755 $(DESTDIR)$(PREFIX)/lib/sysusers.d $(DESTDIR)$(PREFIX)/lib/tmpfiles.d $(CONFDIR) $(CONFDIR)/policy.d
	install -m 0755 bin/pinfold $(BINDIR)/pinfold
	install -m 0755 bin/pinfoldd $(SBINDIR)/pinfoldd
	install -m 0755 bin/pinfold-stage $(LIBEXEC)/pinfold-stage
	install -m 0644 systemd/pinfoldd.service systemd/pinfoldd.socket systemd/var-lib-pinfold-run.mount $(UNITDIR)/
	install -m 0644 systemd/pinfold.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/pinfold.conf
	install -m 0644 systemd/pinfold.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/pinfold.conf
	install -m 0644 docs/man/pinfold.1 $(MANDIR)/man1/pinfold.1
	install -m 0644 docs/man/pinfold-policy.5 $(MANDIR)/man5/pinfold-policy.5
	install -m 0644 docs/man/pinfoldd.8 $(MANDIR)/man8/pinfoldd.8
	install -m 0644 policy/default.yaml $(DOCDIR)/default-policy.yaml

clean:
	rm -rf bin
