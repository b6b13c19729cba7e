
# "make help" lists the targets.


SHELL = /bin/bash

# nginx's source, if not Debian's nginx-dev; the nginx that runs the module
NGINX_SRC =
NGINX_BINARY = nginx

BUILD = build
CFLAGS = -O2 -g
LDFLAGS =
PORT = 8080

# below DESTDIR, the folder of modules of that nginx, which it tells by -V
MODULES_DIR = $(shell $(NGINX_BINARY) -V 2>&1 | sed -n \
    -e 's/.*--modules-path=\([^ ]*\).*/\1/p; t' \
    -e 's/.*--prefix=\([^ ]*\).*/\1\/modules/p; t' \
    -e 's/^configure arguments:.*/\/usr\/local\/nginx\/modules/p')
INSTALLED = $(or $(MODULES_DIR),$(error where are the modules of nginx? try \
    "make install MODULES_DIR=/usr/lib/nginx/modules"))/$(notdir $(MODULE))

# files of tests that run at the same time: many of them wait most of the time
JOBS = $(shell expr 1 + `nproc`)
TESTS = $(sort $(wildcard t/*.t))

ifeq ($(origin CC),default)
CC = gcc
endif

# a dynamic module; --add-module makes it a part of $(BUILD)/objs/nginx
ADD = --add-dynamic-module

OUT := $(abspath $(BUILD))

MODULE = $(OUT)/ngx_http_ratelimit_module.so
BINARY = $(OUT)/objs/nginx
EMBEDDED = $(wildcard src/redis/lua/* src/api/page/*)
SOURCES = config ngx_http_ratelimit_module.c $(wildcard src/*/*.[ch]) \
    $(EMBEDDED)

DEBIAN_SRC = /usr/share/nginx/src
NGINX_DIR = $(or $(abspath $(NGINX_SRC)),$(DEBIAN_SRC))
NGINX_H = $(NGINX_DIR)/src/core/nginx.h

# RATELIMIT_HIREDIS: a folder that it was installed to, empty for that of the
# system, "no"; without it "config" takes that of "make deps", if there is one
HIREDIS = $(wildcard /usr/include/hiredis/async.h \
    build/hiredis/lib/libhiredis.a)

# libyaml: of the system, or "no"
RATELIMIT_YAML ?=
YAML_H = /usr/include/yaml.h
export RATELIMIT_YAML

# what nginx is built with when it is built here
NGINX_OPTIONS = --with-compat --with-debug --with-threads --with-pcre-jit \
    --with-http_ssl_module --with-http_v2_module --with-http_realip_module \
    --with-http_auth_request_module --with-http_addition_module \
    --with-http_stub_status_module --with-http_sub_module

# variables of the command line are ours, not those of nginx's makefile
NGINX_MAKE = cd $(OUT)/nginx && MAKEFLAGS= $(MAKE) -s --no-print-directory \
    -j$(shell nproc) -f $(OUT)/objs/Makefile
SUBMAKE = $(MAKE) --no-print-directory

export PATH := $(PATH):/usr/sbin:/sbin
PROVE = TEST_NGINX_BINARY=$(NGINX_BINARY) TEST_NGINX_LOAD_MODULES=$(MODULE) \
    RATELIMIT_MODULE=$(MODULE) perl -It/lib -S prove -PSummary -j$(JOBS)

# the tests that drive nginx by Test::Nginx
SUITE = $(or $(shell grep -sl 'Test::Nginx::Socket' $(TESTS)), \
    $(error there is no test of nginx in "$(TESTS)"))

# those with many workers and clients that need no library to be preloaded
LOAD = $(shell grep -sl 'Gateway' $(TESTS) \
    | xargs -r grep -LE 'Gateway\.pm|faketime|FakeClock|LD_PRELOAD')

# nginx itself is not free of what the second one finds
ASAN = -fsanitize=address
UBSAN = -fsanitize=undefined -fno-sanitize-recover=undefined

VALGRIND = --log-file=$(OUT)/valgrind/%p --keep-debuginfo=yes \
    --suppressions=t/valgrind.suppress


.PHONY: all
all: $(MODULE)  ## build the module (NGINX_SRC=DIR, RATELIMIT_HIREDIS=DIR|no)


$(MODULE): $(SOURCES) $(OUT)/objs/Makefile
	@$(NGINX_MAKE) modules
	@cp $(OUT)/objs/ngx_http_ratelimit_module.so $@.new && mv $@.new $@
	@echo "built $(@:$(CURDIR)/%=%)"


$(BINARY): $(SOURCES) $(OUT)/objs/Makefile
	@$(NGINX_MAKE) binary
	@test -x $@ && touch $@
	@echo "built $(@:$(CURDIR)/%=%)"


# in a tree of links, so that nginx's own stays untouched; configure would take
# CFLAGS of the environment for all of them, its warnings included

$(OUT)/objs/Makefile: config $(EMBEDDED) $(NGINX_H) $(OUT)/settings
	@command -v $(firstword $(CC)) > /dev/null \
	    || { echo '"$(CC)" is missing: try "make deps"' >&2; exit 1; }
	@echo "configuring for nginx in $(NGINX_DIR)"
	@rm -rf $(OUT)/objs $(OUT)/nginx && mkdir -p $(OUT)/nginx
	@ln -s $(NGINX_DIR)/{auto,configure,src} $(OUT)/nginx/
	@options=($(NGINX_OPTIONS)); \
	if [ -f $(NGINX_DIR)/conf_flags ]; then \
	    . $(NGINX_DIR)/conf_flags; \
	    options=("$${NGX_CONF_FLAGS[@]}"); \
	fi; \
	cd $(OUT)/nginx && env -u CFLAGS ./configure "$${options[@]}" \
	    --builddir=$(OUT)/objs --with-cc='$(CC)' \
	    --with-cc-opt='$(CFLAGS)' --with-ld-opt='$(LDFLAGS)' $(ADD)=$(CURDIR) \
	    > $(OUT)/configure.log 2>&1 \
	    || { tail -20 $(OUT)/configure.log >&2; rm -f $@; exit 1; }
	@sed -n 's/^ngx_http_ratelimit_module: /    /p' $(OUT)/configure.log


# changes when what the build depends on, other than files, changes

.PHONY: force
$(OUT)/settings: force
	@mkdir -p $(OUT)
	@new='$(NGINX_DIR) $(ADD)=$(CURDIR) $(CC) $(CFLAGS) $(LDFLAGS)'; \
	new+=' $(NGINX_OPTIONS) $(origin RATELIMIT_HIREDIS)'; \
	new+=' $(or $(RATELIMIT_HIREDIS),$(HIREDIS))'; \
	new+=' yaml=$(RATELIMIT_YAML)'; \
	new+=' $(if $(RATELIMIT_YAML),,$(wildcard $(YAML_H)))'; \
	new+=' $(SOURCES)'; \
	[ "$$new" = "$$(cat $@ 2> /dev/null)" ] || echo "$$new" > $@


$(NGINX_H):
	@echo 'there is no source of nginx in $(NGINX_DIR): try "make deps",' >&2
	@echo 'or "make NGINX_SRC=DIR" with the source of your nginx' >&2
	@exit 1


.PHONY: deps
deps:  ## install what the build needs
	@.ci/install build


# a new file in place of the old one: a copy over a file that workers have
# mapped would kill them

.PHONY: install
install: all  ## install the module (DESTDIR=, MODULES_DIR=)
	@to='$(DESTDIR)$(INSTALLED)' && install -d "$${to%/*}" \
	    && install -m 644 $(MODULE) "$$to.new" && mv -f "$$to.new" "$$to"
	@echo 'installed; to be loaded by this line on top of nginx.conf:'
	@echo 'load_module $(INSTALLED);'


.PHONY: uninstall
uninstall:  ## remove what "make install" has installed
	@rm -f '$(DESTDIR)$(INSTALLED)'
	@echo 'removed; nginx does not start with this line in nginx.conf:'
	@echo 'load_module $(INSTALLED);'


.PHONY: deb
deb:  ## build a package for Debian's nginx, in build/
	@.ci/install deb
	@.ci/deb $(OUT)


.PHONY: run
run:  ## try it out: a gateway with limits on 127.0.0.1 (PORT=8080)
	@.ci/gateway $(PORT)
	@.ci/install run
	@$(SUBMAKE) all
	@.ci/gateway $(PORT) $(NGINX_BINARY) $(MODULE)


.PHONY: test
test:  ## run all tests (TESTS="t/x.t ...")
	@.ci/install test
	@$(SUBMAKE) all
	@$(PROVE) $(TESTS)


.PHONY: unit
unit:  ## run the tests of core and table, without nginx
	@.ci/install test
	@$(PROVE) t/03-unit.t


TSAN_ROUNDS = 10


.PHONY: tsan
tsan:  ## look for races in what workers share (TSAN_ROUNDS=10)
	@.ci/install test
	@KIND=tsan ROUNDS=$(TSAN_ROUNDS) $(PROVE) t/03-unit.t


.PHONY: style
style:  ## check the house rules
	@prove t/00-style.t t/01-layers.t


.PHONY: suite
suite:  ## run the nginx tests (MORE="t/x.t ...")
	@.ci/install suite
	@$(SUBMAKE) all
	@$(PROVE) $(SUITE) $(MORE)


PARTS =


.PHONY: matrix
matrix:  ## test other versions, packages and bare roots (PARTS="...")
	@.ci/install test debootstrap git iproute2
	@.ci/matrix $(PARTS)


.PHONY: hup
hup:  ## run the nginx tests with a reload instead of a restart each
	@.ci/install test
	@$(SUBMAKE) all
	@TEST_NGINX_USE_HUP=1 $(PROVE) $(SUITE)


.PHONY: valgrind
valgrind:  ## run the nginx tests under valgrind
	@.ci/install test valgrind
	@$(SUBMAKE) all
	@rm -rf $(OUT)/valgrind && mkdir -m 1777 $(OUT)/valgrind
	@VALGRIND_OPTS='$(VALGRIND)' TEST_NGINX_USE_VALGRIND=1 $(PROVE) $(SUITE)
	@! grep -r ratelimit_ $(OUT)/valgrind


# sources that tests build

.PHONY: sources
sources:
	@.ci/hiredis-source build/hiredis
	@.ci/nginx-source $(OUT)/nginx-source
	@.ci/nginx-source $(OUT)/nginx-trixie trixie
	@.ci/valkey $(OUT)/valkey


# nginx and module out of one source tree

.PHONY: source
source:
	@$(if $(NGINX_SRC),,.ci/nginx-source $(OUT)/nginx-source)

SOURCE = NGINX_SRC=$(or $(NGINX_SRC),$(OUT)/nginx-source)


.PHONY: static
static: source  ## build nginx with the module in it
	@$(SUBMAKE) BUILD=$(OUT)/static $(SOURCE) ADD=--add-module binary


.PHONY: binary
binary: $(BINARY)


.PHONY: asan
asan: source  ## run the nginx tests with sanitizers in nginx and module
	@.ci/install test
	@$(SUBMAKE) BUILD=$(OUT)/asan $(SOURCE) LDFLAGS='$(ASAN)' \
	    CFLAGS='-O1 -g -DNGX_DEBUG_PALLOC $(ASAN)' binary
	@$(SUBMAKE) BUILD=$(OUT)/asan/module $(SOURCE) TESTS='$(TESTS)' \
	    CFLAGS='-O1 -g -DNGX_DEBUG_PALLOC $(ASAN) $(UBSAN)' \
	    LDFLAGS='$(ASAN) $(UBSAN)' NGINX_BINARY=$(OUT)/asan/objs/nginx \
	    all sanitized


.PHONY: sanitized
sanitized:
	@rm -rf $(OUT)/reports && mkdir -m 1777 $(OUT)/reports
	@ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:log_path=$(OUT)/reports/r \
	UBSAN_OPTIONS=print_stacktrace=1:log_path=$(OUT)/reports/r \
	    $(PROVE) $(SUITE) $(LOAD)
	@! grep -r . $(OUT)/reports


FUZZ_TIME = 60
FUZZERS = $(patsubst t/fuzz/%.c,%,$(wildcard t/fuzz/ratelimit_*.c))


.PHONY: fuzz
fuzz:  ## look for inputs that break the core (FUZZ_TIME=60)
	@.ci/install test
	@set -e; for f in $(FUZZERS); do \
	    mkdir -p $(OUT)/fuzz/found/$$f; \
	    clang -std=gnu99 -O1 -g -Isrc -fno-sanitize-recover=all \
	        -fsanitize=fuzzer,address,undefined -o $(OUT)/fuzz/$$f \
	        t/fuzz/$$f.c src/{core,domain,service}/ratelimit_*.c \
	        src/redis/ratelimit_{url,cluster}.c -lyaml; \
	    $(OUT)/fuzz/$$f -max_total_time=$(FUZZ_TIME) -max_len=2048 \
	        -artifact_prefix=$(OUT)/fuzz/ -print_final_stats=1 \
	        $(OUT)/fuzz/found/$$f t/fuzz/corpus/$$f; \
	done


.PHONY: bench
bench: source  ## measure it beside its peers, and write docs/performance.md
	@.ci/install bench
	@$(SUBMAKE) all
	@t/bench/run


.PHONY: clean
clean:  ## remove everything that was built
	@rm -rf $(OUT) t/servroot*


.PHONY: help
help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*##/\1\t/p' Makefile | expand -t 12
