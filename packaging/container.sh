#!/bin/bash
# A container image (as root), from Debian's packages alone: the root is made by mmdebstrap, the
# program comes from the .deb. Into dist/ as an OCI archive that podman and docker load. The first
# run fetches a bare system and the packages and keeps them in build/chroots and
# build/container-packages; the image itself is made from these without a network. OFFLINE=1:
# nothing may be fetched. REFRESH=1: all of it is fetched anew, with what was mended since.
. "$(dirname "$0")/common.sh"
suite=${SUITE:-bookworm}
packages=$root/build/container-packages/$suite
[ -z "${REFRESH:-}" ] || rm -rf "$packages" "$root/build/chroots/$suite.tar"
if [ -n "${OFFLINE:-}" ] && { [ ! -e "$packages/complete" ] ||
  [ ! -e "$root/build/chroots/$suite.tar" ]; }; then
  fail "nothing may be fetched (OFFLINE), and build/chroots and build/container-packages lack" \
    "what is needed for $suite: run $0 once with a network"
fi
[ -n "${OFFLINE:-}" ] || scripts/setup.sh container
debs=$dist${SUITE:+/$SUITE}
ls "$debs"/unpack-engine_"$version"_*.deb >/dev/null 2>&1 || packaging/deb.sh
deb=$(ls "$debs"/unpack-engine_"$version"_*.deb)
work=$root/build/container
rm -rf "$work"
mkdir -p "$work"
bare "$suite" "$work/root"
cp "$deb" "$work/root/unpack.deb"
if [ ! -e "$packages/complete" ]; then
  say "fetching the packages that the image needs"
  rm -rf "$packages"
  mkdir -p "$packages"
  within "$work/root" sh -eu -c '
    apt-get update -qq
    dnnl=$(apt-cache search --names-only "^libdnnl[0-9]" | awk "{ print \$1 }" | sort | tail -n 1)
    apt-get install -qq -y --no-install-recommends --download-only /unpack.deb "$dnnl" >/dev/null'
  mv "$work/root"/var/cache/apt/archives/*.deb "$packages/"
  touch "$packages/complete"
fi
mkdir "$work/root/packages"
cp "$packages"/*.deb "$work/root/packages/"
rm -rf "$work/root/var/lib/apt/lists"
within_alone "$work/root" sh -eu -c '
  apt-get install -qq -y -o Dpkg::Use-Pty=0 --no-install-recommends \
    /packages/*.deb /unpack.deb >/dev/null ||
    { echo "packaging: the packages that were kept do not go with this .deb;" \
        "REFRESH=1 fetches others" >&2; exit 1; }
  useradd --system --create-home --home-dir /home/unpack --shell /usr/sbin/nologin --uid 990 unpack
  echo "container image" > /usr/share/unpack/installed_as
  apt-get clean
  rm -rf /unpack.deb /packages /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/*
  rm -rf /usr/share/man /usr/share/locale
  # What a licence asks to go with its software stays.
  find /usr/share/doc -type f ! -name copyright ! -name THIRD_PARTY_NOTICES.md -delete
  find /usr/share/doc -type l ! -exec test -e {} \; -delete
  find /usr/share/doc -type d -empty -delete
'
rm -rf "$work/root/dev" "$work/root/proc" "$work/root/etc/resolv.conf"
mkdir -p "$work/root/dev" "$work/root/proc"
"$PYTHON" packaging/oci_image.py "$work/root" "$dist/unpack-$version-image.tar" "unpack:$version"
size=$(du -m "$dist/unpack-$version-image.tar" | cut -f1)
say "unpack-$version-image.tar: $size MiB; podman load -i it," \
  "then podman run -p 7860:7860 unpack:$version"
