#!/bin/bash
# Everything of a release into dist/, with checksums: wheel, Debian packages, portable folder,
# image, sources, and this version's part of the change log.
. "$(dirname "$0")/common.sh"
[ "$(grep -m 1 '^## ' CHANGELOG.md)" = "## $version" ] ||
  fail "the first section of CHANGELOG.md is not '## $version', the version in VERSION"
[ -z "${SUITE:-}" ] || fail "a release has the packages of this system's own release;" \
  "SUITE=$SUITE packaging/deb.sh makes those of another, into dist/$SUITE"
clear_dist
packaging/wheel.sh
packaging/deb.sh
packaging/tarball.sh
if [ "$(id -u)" = 0 ]; then
  packaging/container.sh
else
  say "the image needs root, and is left out"
fi
PYTHONPATH=packaging "$PYTHON" \
  -c "import wheel_backend; print('packaging:', wheel_backend.build_sdist('$dist'))"
sed -n "/^## $version/,/^## /p" CHANGELOG.md | sed '1!{/^## /d}' >"$dist/CHANGES-$version.md"
(cd "$dist" && find . "${ours[@]}" ! -name SHA256SUMS -printf '%P\n' | sort |
  xargs sha256sum >SHA256SUMS && sha256sum --quiet -c SHA256SUMS)
say "$dist holds $version"
ls -s --block-size=M "$dist"
