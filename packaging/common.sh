#!/bin/bash
# Sourced by the scripts of this folder: names, and a bare system to try things in.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
version=$(head -n 1 VERSION)
dist=${DIST:-$root/dist}
jobs=${JOBS:-$(nproc)}
PYTHON=${PYTHON:-/usr/bin/python3}
mkdir -p "$dist"

say() { echo "packaging: $*"; }
fail() { echo "packaging: $*" >&2; exit 1; }

# need KIND TOOL...: all of these programs are here; scripts/setup.sh KIND has just installed them
# where there is apt, and says no more than their packages' names elsewhere.
need() {
  kind=$1
  shift
  lacking=
  for tool; do command -v "$tool" >/dev/null 2>&1 || lacking="$lacking $tool"; done
  [ -z "$lacking" ] || fail "these programs are missing:$lacking; on Debian and Ubuntu" \
    "\`scripts/setup.sh $kind\` installs them"
}

# Names of what these scripts put into dist: a folder that DIST names may hold files of others.
ours=(-maxdepth 1 -type f '(' -name 'unpack[-_]*' -o -name 'libunpack-dev_*' -o \
  -name 'python3-unpack-engine_*' -o -name 'CHANGES-*.md' -o -name SHA256SUMS ')')
clear_dist() { find "$dist" "${ours[@]}" -delete; }

# The files that git tracks, and new ones that it does not ignore, as folder $1; where there is no
# git (sources of a release), all but what was built.
export_sources() {
  rm -rf "$1"
  mkdir -p "$1"
  if ! git rev-parse --git-dir >/dev/null 2>&1; then
    tar -c --exclude=./build --exclude=./dist --exclude=./web/node_modules --exclude=__pycache__ \
      -f - . | tar -x -C "$1" -f -
    return
  fi
  git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
    [ ! -e "$file" ] || printf '%s\0' "$file"; done |
    tar -c --null -T - -f - | tar -x -C "$1" -f -
}

# A trial packs what somebody compiled for their own use (UNPACK_PACKAGE_BUILD): when the script
# ends, that folder is configured as it was before, and its program and module look for models in
# the source tree again.
borrow_build() {
  [ -n "${UNPACK_PACKAGE_BUILD:-}" ] && [ -e "$root/$UNPACK_PACKAGE_BUILD/CMakeCache.txt" ] ||
    return 0
  borrowed=$root/$UNPACK_PACKAGE_BUILD
  cp "$borrowed/CMakeCache.txt" "$borrowed/CMakeCache.before"
  trap give_build_back EXIT
}
give_build_back() {
  mv "$borrowed/CMakeCache.before" "$borrowed/CMakeCache.txt"
  module=$(sed -n 's/^UNPACK_PYTHON:BOOL=ON$/unpack_python/p' "$borrowed/CMakeCache.txt")
  # shellcheck disable=SC2086  # none, or one word
  cmake --log-level=WARNING "$borrowed" >/dev/null &&
    cmake --build "$borrowed" -j "$jobs" --target unpack_cli $module >/dev/null
}

# Where apt of this machine has its packages from, if it is Debian, unless MIRROR names another.
mirror() {
  if [ -z "${MIRROR:-}" ] && grep -qs '^ID=debian$' /etc/os-release; then
    MIRROR=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -n 1)
    [ -n "$MIRROR" ] || MIRROR=$(sed -n 's/^deb \(\[[^]]*\] \)\{0,1\}\(http[^ ]*\).*/\2/p' \
      /etc/apt/sources.list 2>/dev/null | head -n 1)
  fi
  echo "${MIRROR:-}"
}

# ubuntu_keyring: a file with the keys of Ubuntu's archive: this machine's, or the one that Debian
# 13 packs (Debian 12 has none).
ubuntu_keyring() {
  keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
  if [ ! -e "$keys" ] && [ ! -e "$root/build/chroots/ubuntu.gpg" ]; then
    (
      from=$(mktemp -d)
      trap 'rm -rf "$from"' EXIT
      bare trixie "$from"
      within "$from" sh -c 'apt-get update -qq && apt-get install -qq -y ubuntu-archive-keyring' >&2
      cp "$from$keys" "$root/build/chroots/ubuntu.gpg"
    )
  fi
  [ -e "$keys" ] || keys=$root/build/chroots/ubuntu.gpg
  echo "$keys"
}

# bare SUITE FOLDER: a new system with nothing but essential packages and apt: a release of Debian,
# or noble (Ubuntu 24.04, whose mirror is UBUNTU_MIRROR). It is made once and kept as a tar file in
# build/chroots.
bare() {
  suite=$1
  folder=$2
  [ "$(id -u)" = 0 ] || fail "a chroot needs root"
  kept=$root/build/chroots/$suite.tar
  if [ ! -e "$kept" ]; then
    mkdir -p "$root/build/chroots"
    command -v mmdebstrap >/dev/null 2>&1 || scripts/setup.sh container >&2
    need container mmdebstrap unshare
    echo "packaging: making a bare $suite" >&2
    if [ "$suite" = noble ]; then
      mmdebstrap --quiet --variant=minbase --format=tar --include=apt --components=main,universe \
        --keyring="$(ubuntu_keyring)" noble "$kept.new" \
        "${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}"
    else
      # shellcheck disable=SC2046  # none is mmdebstrap's own default
      mmdebstrap --quiet --variant=minbase --format=tar "$suite" "$kept.new" $(mirror)
    fi
    mv "$kept.new" "$kept"
  fi
  rm -rf "$folder"
  mkdir -p "$folder"
  tar -x -C "$folder" -f "$kept" --exclude='./dev/*'
  mkdir -p "$folder/dev" "$folder/proc"
  for device in null:3 zero:5 random:8 urandom:9; do
    mknod -m 666 "$folder/dev/${device%:*}" c 1 "${device#*:}"
  done
  # What every started system has, and process substitution of shells needs.
  ln -s /proc/self/fd "$folder/dev/fd"
  cp /etc/resolv.conf "$folder/etc/resolv.conf" 2>/dev/null || true
  printf '127.0.0.1 localhost\n' >"$folder/etc/hosts"
}

# within FOLDER COMMAND...: runs it there, with /proc in a namespace of its own, so that nothing
# stays mounted.
within() {
  folder=$1
  shift
  unshare ${network:+"$network"} --mount --fork sh -c 'mount -t proc proc "$0/proc" 2>/dev/null
    exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 \
      DEBIAN_FRONTEND=noninteractive "$@"' "$folder" "$@"
}

# within_alone FOLDER COMMAND...: the same in a network of its own, where nobody answers.
within_alone() { network=--net within "$@"; }
