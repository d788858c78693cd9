#!/bin/bash
# The Debian packages unpack-engine, libunpack-dev and python3-unpack-engine, into dist/, and what
# lintian says of them.
# SUITE=trixie builds them in a bare system of that release (as root), into dist/trixie.
# UNPACK_PACKAGE_BUILD=build/release packs what was compiled there, without debhelper's flags: a
# trial, for CI.
. "$(dirname "$0")/common.sh"
if [ -z "${SUITE:-}" ]; then
  scripts/setup.sh deb
  need deb dpkg-buildpackage dh cmake ninja
fi
work=$root/build/deb${UNPACK_PACKAGE_BUILD:+-trial}
source=$work/unpack-engine-$version
rm -f "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo
export_sources "$source"
cp -r packaging/debian "$source/debian"
# Whoever distributes the packages answers for them: Debian's own variables name them. The address
# in the tree is nobody's.
if [ -n "${DEBEMAIL:-}" ]; then
  sed -i "s/^Maintainer: .*/Maintainer: ${DEBFULLNAME:-$DEBEMAIL} <$DEBEMAIL>/" \
    "$source/debian/control"
fi
# The version and its date come from the one place each has.
date=$(git log -1 --format=%aD 2>/dev/null || true)
[ -n "$date" ] || date=$(date -R -r CHANGELOG.md)
cat >"$source/debian/changelog" <<END
unpack-engine ($version) unstable; urgency=medium

  * Release $version: see CHANGELOG.md.

 -- $(sed -n 's/^Maintainer: //p' "$source/debian/control")  $date
END
borrow_build
[ -z "${UNPACK_PACKAGE_BUILD:-}" ] || export UNPACK_PACKAGE_BUILD=$root/$UNPACK_PACKAGE_BUILD \
  CMAKE_BUILD_PARALLEL_LEVEL=$jobs
export DEB_BUILD_OPTIONS="parallel=$jobs nocheck noautodbgsym"
if [ -n "${SUITE:-}" ]; then
  there=$root/build/deb-$SUITE
  bare "$SUITE" "$there"
  cp -r "$source" "$there/source"
  within "$there" sh -eu -c "
    apt-get update -qq
    cd /source
    apt-get build-dep -qq -y --no-install-recommends ./
    DEB_BUILD_OPTIONS='$DEB_BUILD_OPTIONS' dpkg-buildpackage -b -us -uc" >"$work/build.log" 2>&1 ||
    { tail -n 30 "$work/build.log" >&2; fail "the packages for $SUITE failed; all it said is in" \
      "$work/build.log"; }
  dist=$dist/$SUITE
  mkdir -p "$dist"
  mv "$there"/*.deb "$there"/*.changes "$there"/*.buildinfo "$work/"
else
  (cd "$source" && dpkg-buildpackage -b -us -uc >"$work/build.log" 2>&1) ||
    { tail -n 30 "$work/build.log" >&2; fail "dpkg-buildpackage failed; all it said is in" \
      "$work/build.log"; }
fi
if ! command -v lintian >/dev/null 2>&1; then
  say "lintian is not here, so nothing looked for errors in the packages (scripts/setup.sh deb" \
    "installs it)"
else
  lintian --allow-root --fail-on error "$work"/*.changes
  say "lintian found no error"
fi
rm -f "$dist"/{unpack-engine,libunpack-dev,python3-unpack-engine}_*.deb
cp "$work"/*.deb "$dist/"
say "$(cd "$dist" && ls -s --block-size=K ./*.deb)"
