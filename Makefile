# A thin front: CMake does the work. `make demo` and `make test` set everything up on Debian 12 or
# later.
.PHONY: all build python demo bench test test-asan test-tsan test-packages test-odr format order \
  tidy install clean setup setup-test wheel deb tarball container arm64 release

JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
# The Python that Debian's pytest and numpy belong to, whatever else comes first in PATH.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)
PROMPT = Mary and John went to the store. John gave a drink to
# UNPACK_CUDA=ON adds the plugin for NVIDIA GPUs; the tests compile it wherever there is a compiler
# for it.
UNPACK_CUDA ?=
# What a trial of the packages may have left in build/release is taken back.
PLAIN = -DUNPACK_PACKAGED=OFF -UUNPACK_PYTHON_SITE -DCMAKE_INSTALL_PREFIX=$(PREFIX)
WERROR = $(if $(CI),-DUNPACK_WERROR=ON)
# The page is tested in a real browser, which Ubuntu has as a snap alone.
WEB = $$(if grep -q '^ID=ubuntu' /etc/os-release && \
  ! /usr/bin/chromedriver --version >/dev/null 2>&1; then \
  echo "test: Chromium's driver does not run here, so tests/web is left out" >&2; \
  else echo tests/web; fi)

all: build

setup:
	@scripts/setup.sh build

setup-test:
	@scripts/setup.sh $(if $(CI),ci,test)

build: setup
	@cmake --preset release --log-level=WARNING -DUNPACK_TESTS=OFF $(PLAIN) \
	  $(if $(UNPACK_CUDA),-DUNPACK_CUDA=$(UNPACK_CUDA))
	@cmake --build build/release -j $(JOBS)

# The Python package, complete in build/release/python: put that folder on PYTHONPATH.
python:
	@scripts/setup.sh python
	@cmake --preset release --log-level=WARNING -DUNPACK_TESTS=OFF $(PLAIN) -DUNPACK_PYTHON=ON \
	  -DPython_EXECUTABLE=$(PYTHON)
	@cmake --build build/release -j $(JOBS) --target unpack_python
	@PYTHONPATH=build/release/python $(PYTHON) -c "import unpack_engine as up; \
	  print('unpack_engine', up.__version__, 'is in build/release/python')"

demo: build
	@echo; build/release/unpack predict "$(PROMPT)"
	@echo; build/release/unpack trace "$(PROMPT)" --target " Mary" --versus " John"

test: setup-test
	cmake --preset release -DUNPACK_TESTS=ON $(PLAIN) -DUNPACK_PYTHON=ON \
	  -DPython_EXECUTABLE=$(PYTHON) $(WERROR) -DUNPACK_CUDA=$(or $(UNPACK_CUDA),AUTO)
	cmake --build build/release -j $(JOBS)
	ctest --test-dir build/release --output-on-failure -j $(JOBS) -LE cli
ifeq ($(CI),true)
	$(MAKE) --no-print-directory format order tidy
	$(MAKE) --no-print-directory test-odr test-asan
endif
	scripts/test_page.sh
	UNPACK=$(CURDIR)/build/release/unpack $(PYTHON) -m pytest -q tests/cli
	UNPACK=$(CURDIR)/build/release/unpack $(PYTHON) -m pytest -q tests/server $(WEB)
	UNPACK=$(CURDIR)/build/release/unpack UNPACK_PYTHON=$(CURDIR)/build/release/python \
	  $(PYTHON) -m pytest -q tests/python
ifeq ($(CI),true)
	@if ! command -v apt-get >/dev/null 2>&1; then \
	  echo "test: the packages are left out: they are made with apt's tools, and this system has" \
	  "no apt"; \
	elif ! scripts/setup.sh packages; then \
	echo "test: apt is here, but what makes the packages could not be installed" >&2; exit 1; \
	else UNPACK_PACKAGE_BUILD=build/release DIST=$(CURDIR)/build/trial $(MAKE) \
	--no-print-directory test-packages; fi
endif

# What this machine reaches: the table of `unpack bench`, then the suite in bench/, whose figures go
# to build/release/bench.json.
bench:
	@scripts/setup.sh bench
	@cmake --preset release --log-level=WARNING -DUNPACK_BENCH=ON
	@cmake --build build/release -j $(JOBS) --target unpack_cli unpack_bench
	build/release/unpack bench --device cpu --threads 2 --tokens 16,64
	build/release/bench/unpack_bench --benchmark_out=build/release/bench.json \
	  --benchmark_out_format=json

# The unit tests once more, as a debug build, with every bad access, undefined operation and failed
# assertion an error.
test-asan: setup-test
	cmake --preset asan
	cmake --build build/asan -j $(JOBS) --target unit_tests
	scripts/test_asan.sh build/asan/tests/unit_tests $(JOBS)

# By hand: the unit tests and the server under load with ThreadSanitizer.
test-tsan: setup-test
	JOBS=$(JOBS) scripts/test_tsan.sh

# A debug build without optimisation, linked with the types of all files compared: one that is
# defined twice is an error.
test-odr: setup-test
	cmake --preset odr --log-level=WARNING
	cmake --build build/odr -j $(JOBS) --target unpack_cli
	build/odr/unpack predict "$(PROMPT)"

# The ways to install that take no root and little time: the Debian packages and what lintian says
# of them, the wheel in a virtual environment. CI makes them of what build/release holds by then
# (UNPACK_PACKAGE_BUILD), which compiles next to nothing.
test-packages:
	packaging/deb.sh
	packaging/wheel.sh
	packaging/test_wheel.sh

# Packages, into dist/: docs/packaging.md.
wheel deb tarball container release:
	packaging/$@.sh

# Cross-build for 64-bit ARM, and its unit tests in qemu.
arm64:
	packaging/arm64.sh

format:
	scripts/check_format.sh

# Folders include only what stands before them.
order:
	@$(PYTHON) scripts/check_order.py

tidy:
	scripts/check_tidy.sh build/release

install: build
	cmake --install build/release --prefix $(PREFIX)

clean:
	rm -rf build
