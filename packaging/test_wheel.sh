#!/bin/bash
# test_wheel.sh [bare]: the wheel in a virtual environment here, or in a bare Debian 12 with
# python3, python3-venv and numpy alone (as root).
. "$(dirname "$0")/common.sh"
wheel=$(ls "$dist"/unpack_engine-"$version"-*.whl 2>/dev/null) || fail "make wheel first"
if [ "${1:-}" != bare ]; then
  PATH=$(dirname "$PYTHON"):$PATH packaging/check_wheel.sh "$wheel"
  exit
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bare "${SUITE:-bookworm}" "$folder"
within "$folder" sh -c 'apt-get update -qq &&
  apt-get install -qq -y -o Dpkg::Use-Pty=0 --no-install-recommends python3 python3-venv \
    python3-numpy' >/dev/null
cp "$wheel" packaging/check_wheel.sh packaging/check_page.py "$folder/"
within "$folder" sh -c '! ldconfig -p | grep -E "libfmt|libdnnl|libutf8proc"' ||
  fail "this system is not bare"
within "$folder" sh "/check_wheel.sh" "/$(basename "$wheel")"
