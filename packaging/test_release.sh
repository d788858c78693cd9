#!/bin/bash
# What `make release` left in dist/ (or the folder DIST): all of it is there, nothing of it is
# empty, the checksums are those of these files and of no others, every one says the version that
# VERSION says, licences and notices are in each, and the change log begins with this version.
. "$(dirname "$0")/common.sh"
cd "$dist"
[ -s SHA256SUMS ] || fail "make release first"
sha256sum --quiet -c SHA256SUMS || fail "the checksums are not those of these files"
find . "${ours[@]}" ! -name SHA256SUMS -printf '%P\n' | sort >"$root/build/release_files"
sed 's/^[0-9a-f]*  //' SHA256SUMS | sort | cmp -s - "$root/build/release_files" ||
  fail "SHA256SUMS names other files than there are"

# same WHAT VERSION: what a file says of itself.
same() { [ "$2" = "$version" ] || fail "$1 says '$2', VERSION says $version"; say "$1: $2"; }
# one PATTERN: the only file of that name.
one() {
  mapfile -t found < <(compgen -G "$1")
  [ ${#found[@]} = 1 ] || fail "${#found[@]} files are called $1"
  [ -s "${found[0]}" ] || fail "${found[0]} is empty"
  file=${found[0]}
}

one "unpack_engine-$version-*.whl"
same "$file" "$("$PYTHON" -c 'import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
assert wheel.testzip() is None
metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
folder = metadata.rpartition("/")[0]
assert "Preact" in wheel.read(folder + "/THIRD_PARTY_NOTICES.md").decode()
assert wheel.read(folder + "/LICENSE")
lines = wheel.read(metadata).decode().splitlines()
print(next(line[9:] for line in lines if line.startswith("Version: ")))' "$file")"

for package in unpack-engine libunpack-dev python3-unpack-engine; do
  one "${package}_${version}_*.deb"
  same "$file" "$(dpkg-deb -f "$file" Version)"
  dpkg-deb -c "$file" >"$root/build/release_list"
  grep -q "/usr/share/doc/$package/THIRD_PARTY_NOTICES.md\$" "$root/build/release_list" ||
    fail "$file has no notices"
done

one "unpack-$version-linux-*.tar.gz"
folder=${file%.tar.gz}
tar -t -f "$file" >"$root/build/release_list"
for name in LICENSE THIRD_PARTY_NOTICES.md INSTALL bin/unpack; do
  grep -qx "$folder/$name" "$root/build/release_list" || fail "$file has no $name"; done
same "$file" "$(tar -x -O -f "$file" "$folder/INSTALL" | sed -n '1s/^unpack \([^ ]*\) .*/\1/p')"

if [ "$(id -u)" = 0 ] || compgen -G "unpack-*-image.tar" >/dev/null; then
  one "unpack-$version-image.tar"
  same "$file" "$("$PYTHON" -c 'import json, sys, tarfile
image = tarfile.open(sys.argv[1])
blob = lambda about: image.extractfile("blobs/" + about["digest"].replace(":", "/"))
manifest = json.load(image.extractfile("index.json"))["manifests"][0]
layers = [blob(layer) for layer in json.load(blob(manifest))["layers"]]
files = {name.removeprefix("./") for layer in layers
         for name in tarfile.open(fileobj=layer).getnames()}
for name in ("unpack-engine/THIRD_PARTY_NOTICES.md", "unpack-engine/copyright", "libc6/copyright"):
    assert "usr/share/doc/" + name in files, name
print(manifest["annotations"]["org.opencontainers.image.ref.name"].partition(":")[2])' "$file")"
else
  say "no image, which only root makes"
fi

one "unpack_engine-$version.tar.gz"
same "$file" "$(tar -x -O -f "$file" "unpack_engine-$version/VERSION")"
same "$file, PKG-INFO" \
  "$(tar -x -O -f "$file" "unpack_engine-$version/PKG-INFO" | sed -n 's/^Version: //p')"
tar -t -f "$file" "unpack_engine-$version/THIRD_PARTY_NOTICES.md" >/dev/null ||
  fail "$file has no notices"

one "CHANGES-$version.md"
same "$file" "$(sed -n '1s/^## //p' "$file")"
[ "$(wc -l <"$file")" -gt 2 ] || fail "$file says nothing"
same "CHANGELOG.md" "$(sed -n 's/^## //p' "$root/CHANGELOG.md" | head -n 1)"
say "the release is whole: $(wc -l <SHA256SUMS) files," \
  "$(du -cm $(sed 's/^[0-9a-f]*  //' SHA256SUMS) | tail -n 1 | cut -f1) MiB"
