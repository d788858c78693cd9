#!/bin/bash
# The Debian packages unpack-engine, libunpack-dev and python3-unpack-engine, into dist/, and what lintian says of them.
. "$(dirname "$0")/common.sh"
scripts/setup.sh deb
work=$root/build/deb
source=$work/unpack-engine-$version
rm -f "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo
export_sources "$source"
cp -r packaging/debian "$source/debian"
# The version and its date come from the one place each has.
date=$(git log -1 --format=%aD 2>/dev/null || true)
[ -n "$date" ] || date=$(date -R -r CHANGELOG.md)
cat >"$source/debian/changelog" <<END
unpack-engine ($version) unstable; urgency=medium

  * Release $version: see CHANGELOG.md.

 -- $(sed -n 's/^Maintainer: //p' packaging/debian/control)  $date
END
(cd "$source" && DEB_BUILD_OPTIONS="parallel=$jobs nocheck noautodbgsym" dpkg-buildpackage -b -us -uc >"$work/build.log" 2>&1) ||
  { tail -n 30 "$work/build.log" >&2; fail "dpkg-buildpackage failed; all it said is in build/deb/build.log"; }
if command -v lintian >/dev/null 2>&1; then
  lintian --allow-root --fail-on error "$work"/*.changes
fi
rm -f "$dist"/*.deb
cp "$work"/*.deb "$dist/"
say "$(cd "$dist" && ls -s --block-size=K ./*.deb)"
