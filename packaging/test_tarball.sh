#!/bin/bash
# test_tarball.sh [SUITE...]: the portable folder here, moved elsewhere, and (as root) in bare
# systems of these releases: bookworm trixie, say.
. "$(dirname "$0")/common.sh"
tarball=$dist/unpack-$version-linux-$(uname -m).tar.gz
[ -e "$tarball" ] || fail "make tarball first"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/check.sh" <<'END'
set -eu
cd "$1"
prompt="Mary and John went to the store. John gave a drink to"
bin/unpack --version
bin/unpack --version | grep -q '^installed: portable folder$'
bin/unpack doctor | tee doctor
grep -q "portable folder, $1/bin/unpack\$" doctor
grep -q '^bundled models .*pocket-gpt2' doctor
bin/unpack predict "$prompt" | grep -q Mary
bin/unpack trace "$prompt" --target " Mary" --versus " John" >/dev/null
UNPACK_ONEDNN=off bin/unpack --version | grep -q 'own products'
UNPACK_ONEDNN=off bin/unpack predict "$prompt" | grep -q Mary
bin/unpack models | grep -q "bundled.*$1/share/unpack/models/pocket-gpt2"
bin/unpack trace "$prompt" --html page.html && grep -qi '<html' page.html
grep -q Preact THIRD_PARTY_NOTICES.md
ls lib/licences/* >/dev/null
for library in lib/*.so*; do
  name=${library#lib/}
  grep -q "\`${name%%.so*}\`" THIRD_PARTY_NOTICES.md ||
    { echo "THIRD_PARTY_NOTICES.md does not name $name"; exit 1; }
done
END
mkdir "$work/here"
tar -x -C "$work/here" -f "$tarball" --strip-components=1
sh "$work/check.sh" "$work/here"
say "the tarball runs here"
for suite; do
  bare "$suite" "$work/$suite"
  mkdir "$work/$suite/opt/moved"
  tar -x -C "$work/$suite/opt/moved" -f "$tarball" --strip-components=1
  cp "$work/check.sh" "$work/$suite/"
  within "$work/$suite" sh /check.sh /opt/moved
  say "the tarball runs in a bare $suite"
done
