#!/bin/bash
# The Debian packages in a bare system (as root): installed, used (demo, doctor, man page, completion, find_package, import) and removed again.
# SUITE chooses the release, bookworm unless told; packages that were built for it alone (dist/SUITE) come first.
. "$(dirname "$0")/common.sh"
[ ! -d "$dist/${SUITE:-none}" ] || dist=$dist/$SUITE
ls "$dist"/unpack-engine_"$version"_*.deb >/dev/null 2>&1 || fail "make deb first"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bare "${SUITE:-bookworm}" "$folder"
mkdir "$folder/debs" "$folder/consumer"
cp "$dist"/*_"$version"_*.deb "$folder/debs/"
cp tests/consumer/CMakeLists.txt "$folder/consumer/"
sed -n '/^```cpp$/,/^```$/p' README.md | sed '1d;$d' >"$folder/consumer/example.cc"
cat >"$folder/check.sh" <<'END'
set -eu
quiet() { "$@" >/log 2>&1 || { cat /log; exit 1; }; }
quiet apt-get update
dpkg-query -W -f '${Package}\n' | sort >/before
prompt="Mary and John went to the store. John gave a drink to"

# The program alone, without what it recommends: its own products.
quiet apt-get install -y --no-install-recommends /debs/unpack-engine_*.deb
unpack --version
unpack --version | grep -q '^installed: Debian package unpack-engine$'
unpack --version | grep -q 'own products'
unpack predict "$prompt" | grep -q Mary
unpack trace "$prompt" --target " Mary" --versus " John" >/own
unpack doctor
unpack doctor | grep -q 'apt-get install libdnnl'
test -s /usr/share/man/man1/unpack.1.gz -o ! -d /usr/share/man/man1  # a minimal system leaves manual pages out
grep -q _unpack /usr/share/bash-completion/completions/unpack

# With it: oneDNN, and the same picture.
quiet apt-get install -y --no-install-recommends "$(apt-cache search --names-only '^libdnnl[0-9]' | awk '{ print $1 }' | sort | tail -n 1)"
unpack --version | grep -q 'oneDNN'
UNPACK_ONEDNN=on unpack trace "$prompt" --target " Mary" --versus " John" >/onednn  # a small model uses it when told
# What passed sums that nearly cancel hangs on last digits: all before it is the same to the letter.
for file in own onednn; do sed -e 's/^\(Conservation[^;]*\);.*/\1/' -e '/^Conservation/q' /$file >/$file.same; done
grep -q '^Conservation: of .* reached the tokens' /own.same
cmp /own.same /onednn.same

# The library from a stranger's project.
quiet apt-get install -y --no-install-recommends /debs/libunpack-dev_*.deb cmake g++ make
quiet cmake -S /consumer -B /consumer/build -DSNIPPET=/consumer/example.cc
quiet cmake --build /consumer/build
/consumer/build/consumer | grep -q 'Mary'
/consumer/build/consumer_server | grep -q 'http://127.0.0.1'

# The module.
quiet apt-get install -y --no-install-recommends /debs/python3-unpack-engine_*.deb
python3 - <<'PYTHON'
import unpack_engine as up
r = up.load("pocket-gpt2").prepare("Mary and John went to the store. John gave a drink to").trace(target=" Mary", versus=" John")
assert up.about()["installed"] == "Debian package unpack-engine", up.about()
assert r.token_credit[0] > 0 and "pocket-llama" in [m["name"] for m in up.models()]
print("module:", up.__version__)
PYTHON

quiet apt-get purge -y unpack-engine libunpack-dev python3-unpack-engine
for left in /usr/bin/unpack /usr/share/unpack /usr/include/unpack /usr/lib/python3/dist-packages/unpack_engine; do
  [ ! -e "$left" ] || { echo "$left is still there"; exit 1; }
done
echo "deb: installed, used and removed on $(. /etc/os-release && echo "$PRETTY_NAME")"
END
within "$folder" sh /check.sh
