#!/bin/sh
# Installs the Debian packages that are missing: setup.sh build | python | bench | test | ci |
# packages | wheel | deb | arm64 | container. As root or through sudo; says what is needed where
# neither is possible.
set -eu

# libdnnl-dev: for the library itself, whose package is called after its release.
build="g++ cmake ninja-build pkg-config libdnnl-dev nlohmann-json3-dev libcli11-dev"
build="$build libfmt-dev libcpp-httplib-dev libpcre2-dev libutf8proc-dev"
python="pybind11-dev python3-dev python3-numpy"
test="zsh fish groff-base libgtest-dev librapidcheck-dev python3 python3-numpy"
test="$test python3-pytest python3-jinja2 python3-scipy python3-networkx graphviz mypy"
test="$test python3-pandas python3-distributed python3-selenium chromium chromium-driver"
ci="clang-format clang-tidy"
wheel="patchelf python3-build python3-venv"
deb="debhelper dh-python dpkg-dev lintian"
chroot="mmdebstrap debian-archive-keyring"

case "${1:-build}" in
  build) wanted=$build ;;
  python) wanted="$build $python" ;;
  bench) wanted="$build libbenchmark-dev" ;;
  test) wanted="$build $python $test" ;;
  ci) wanted="$build $python $test $ci" ;;
  packages) wanted="$build $python $wheel $deb" ;;
  wheel) wanted="$build $python $wheel" ;;
  deb) wanted="$build $python $deb" ;;
  arm64) wanted="$chroot cmake ninja-build pkg-config g++-aarch64-linux-gnu qemu-user-static" ;;
  container) wanted=$chroot ;;
  *) echo "usage: $0 build|python|bench|test|ci|packages|wheel|deb|arm64|container" >&2; exit 2 ;;
esac

if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "setup: this is not a Debian or Ubuntu system; install what these packages hold," \
    "if it is not there yet: $wanted" >&2
  exit 0
fi

# The browser's driver asks for localhost by name, and a bare chroot has nothing that knows it.
case "${1:-build}" in
  test | ci)
    if [ ! -e /etc/hosts ] && [ "$(id -u)" = 0 ]; then
      echo "setup: there is no /etc/hosts; writing one with localhost"
      printf '127.0.0.1 localhost\n::1 localhost\n' >/etc/hosts
    fi
    ;;
esac

missing=""
for package in $wanted; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

# Ubuntu has Chromium as a snap alone, and its packages bring a script that asks for it. Where apt
# knows packages, and none of that name, the browser is left out; `make test` says so.
offered() { apt-cache policy "$1" 2>/dev/null | grep -q '^ *Candidate: [^(]'; }
leave_out_browser() {
  if offered g++ && ! offered chromium; then
    missing=$(printf '%s' "$missing " | sed -e 's/ chromium / /' -e 's/ chromium-driver / /' \
      -e 's/ $//')
  fi
  [ -n "$missing" ] || exit 0
}
leave_out_browser

if [ "$(id -u)" = 0 ]; then
  as_root=""
elif command -v sudo >/dev/null 2>&1 && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
  as_root="sudo"
else
  echo "setup: these packages are missing and neither root nor sudo is at hand; as root, run:" >&2
  echo "  apt-get install --no-install-recommends$missing" >&2
  exit 1
fi

echo "setup: installing$missing"
$as_root apt-get update -q
leave_out_browser
# shellcheck disable=SC2086  # both are lists
$as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -q -y \
  --no-install-recommends $missing
