#!/bin/sh
# The unit tests of a build with sanitizers, in JOBS parts: test_asan.sh PROGRAM JOBS.
# Leaks are looked for only when ASAN_OPTIONS asks for it (detect_leaks=1): LeakSanitizer stops
# every thread by ptrace when the program ends, and where a container forbids that, it dies of it
# now and then.
set -eu
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=0}" \
  UBSAN_OPTIONS="${UBSAN_OPTIONS:-print_stacktrace=1}"
export LOGS="${LOGS:-$(dirname "$0")/../build/asan/test_logs}"
exec "$(dirname "$0")/test_parts.sh" "${2:-1}" "$1"
