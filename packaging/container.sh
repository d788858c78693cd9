#!/bin/bash
# A container image (as root), from Debian's packages alone: the root is made by mmdebstrap, the program comes from the .deb. Into dist/ as an
# OCI archive that podman and docker load.
. "$(dirname "$0")/common.sh"
scripts/setup.sh container
debs=$dist${SUITE:+/$SUITE}
ls "$debs"/unpack-engine_"$version"_*.deb >/dev/null 2>&1 || packaging/deb.sh
deb=$(ls "$debs"/unpack-engine_"$version"_*.deb)
work=$root/build/container
rm -rf "$work"
mkdir -p "$work"
bare "${SUITE:-bookworm}" "$work/root"
cp "$deb" "$work/root/unpack.deb"
within "$work/root" sh -eu -c '
  apt-get update -qq
  dnnl=$(apt-cache search --names-only "^libdnnl[0-9]" | awk "{ print \$1 }" | sort | tail -n 1)
  apt-get install -qq -y --no-install-recommends /unpack.deb "$dnnl" >/dev/null
  useradd --system --create-home --home-dir /home/unpack --shell /usr/sbin/nologin --uid 990 unpack
  echo "container image" > /usr/share/unpack/installed_as
  apt-get clean
  rm -rf /unpack.deb /var/lib/apt/lists/* /var/cache/apt/*.bin /var/log/* /usr/share/doc /usr/share/man /usr/share/locale
'
rm -rf "$work/root/dev" "$work/root/proc" "$work/root/etc/resolv.conf"
mkdir -p "$work/root/dev" "$work/root/proc"
"$PYTHON" packaging/oci_image.py "$work/root" "$dist/unpack-$version-image.tar" "unpack:$version"
say "unpack-$version-image.tar: $(du -m "$dist/unpack-$version-image.tar" | cut -f1) MiB; podman load -i it, then podman run -p 7860:7860 unpack:$version"
