#!/bin/bash
# The Debian packages in a bare system (as root): installed, used (demo, picture, page, doctor,
# manual page, completion in three shells, find_package, import) and removed again, every file of
# them. SUITE chooses the release, bookworm unless told; packages that were built for it alone
# (dist/SUITE) come first.
. "$(dirname "$0")/common.sh"
[ ! -d "$dist/${SUITE:-none}" ] || dist=$dist/$SUITE
ls "$dist"/unpack-engine_"$version"_*.deb >/dev/null 2>&1 || fail "make deb first"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bare "${SUITE:-bookworm}" "$folder"
mkdir "$folder/debs" "$folder/consumer"
cp "$dist"/*_"$version"_*.deb "$folder/debs/"
cp packaging/check_page.py "$folder/"
cp tests/consumer/CMakeLists.txt "$folder/consumer/"
sed -n '/^```cpp$/,/^```$/p' README.md | sed '1d;$d' >"$folder/consumer/example.cc"
cat >"$folder/check.sh" <<'END'
set -eu
quiet() { "$@" >/log 2>&1 || { cat /log; exit 1; }; }
quiet apt-get update
prompt="Mary and John went to the store. John gave a drink to"

# The program alone, without what it recommends: its own products.
quiet apt-get install -y --no-install-recommends /debs/unpack-engine_*.deb
unpack --version
unpack --version | grep -q '^installed: Debian package unpack-engine$'
unpack --version | grep -q 'own products'
unpack predict "$prompt" | grep -q Mary
unpack trace "$prompt" --target " Mary" --versus " John" >/own
unpack trace "$prompt" --html /picture.html && grep -qi '<html' /picture.html
unpack doctor
unpack doctor | grep -q 'apt-get install libdnnl'

# The manual page, and completion in the three shells, each finding the script where the package put
# it.
quiet apt-get install -y --no-install-recommends man-db bash-completion zsh fish
man unpack | grep -q 'unpack trace' || { echo "man unpack names no trace"; exit 1; }
said=$(bash -c '. /usr/share/bash-completion/bash_completion
  if type _comp_load >/dev/null 2>&1; then _comp_load unpack; else _completion_loader unpack; fi
  complete -p unpack >/dev/null
  COMP_WORDS=(unpack interv); COMP_CWORD=1; _unpack; echo "${COMPREPLY[@]}"' || true)
[ "$said" = intervene ] || { echo "bash completes interv with: $said"; exit 1; }
zsh -f -c 'autoload -U compinit; compinit -u -D; [[ $_comps[unpack] = _unpack ]] || exit 1
  _describe() { print -rl -- "${(@P)2}" }; _arguments() { }
  words=(unpack interv); CURRENT=2; _unpack' |
  grep -q '^intervene:' || { echo "zsh offers no intervene"; exit 1; }
fish -c 'complete -C "unpack interv"' | grep -q '^intervene' ||
  { echo "fish offers no intervene"; exit 1; }

# With it: oneDNN, and the same picture.
dnnl=$(apt-cache search --names-only '^libdnnl[0-9]' | awk '{ print $1 }' | sort | tail -n 1)
quiet apt-get install -y --no-install-recommends "$dnnl"
unpack --version | grep -q 'oneDNN'
# A small model uses it when told.
UNPACK_ONEDNN=on unpack trace "$prompt" --target " Mary" --versus " John" >/onednn
# The same to the letter, line breaks and one figure apart: which share passed sums that nearly
# cancel hangs on last digits, and is held within 1e-4 of all credit.
share='; \([0-9.e-]*\)% of it passed sums that nearly cancel'
for file in own onednn; do
  tr -s '\n' ' ' </$file >/$file.line
  sed -n "s/.*$share.*/\1/p" /$file.line >/$file.share
  sed "s/$share/; of it/" /$file.line >/$file.same
done
cmp /own.same /onednn.same
paste /own.share /onednn.share |
  awk '{ d = $1 - $2 } END { exit !(NR == 1 && NF == 2 && d <= 0.01 && d >= -0.01) }' ||
  { echo "shares apart: $(cat /own.share /onednn.share)"; exit 1; }

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
p = up.load("pocket-gpt2").prepare("Mary and John went to the store. John gave a drink to")
r = p.trace(target=" Mary", versus=" John")
assert up.about()["installed"] == "Debian package unpack-engine", up.about()
assert r.token_credit[0] > 0 and "pocket-llama" in [m["name"] for m in up.models()]
print("module:", up.__version__)
PYTHON
python3 /check_page.py unpack

packages="unpack-engine libunpack-dev python3-unpack-engine"
for package in $packages; do
  grep -q 'Preact' "/usr/share/doc/$package/THIRD_PARTY_NOTICES.md" ||
    { echo "$package has no notices"; exit 1; }
done
# shellcheck disable=SC2086  # a list of words
dpkg -L $packages | sort -u >/files
grep -q '^/usr/bin/unpack$' /files
# shellcheck disable=SC2086
quiet apt-get purge -y $packages
# Folders that other packages share stay; those of ours alone go, with what Python wrote there.
while IFS= read -r left; do
  case $left in *unpack*) ours=yes ;; *) ours=no ;; esac
  if [ -d "$left" ] && [ $ours = no ]; then continue; fi
  if [ -e "$left" ] || [ -L "$left" ]; then echo "$left is still there"; exit 1; fi
done </files
echo "deb: none of $(wc -l </files) files and folders of our own is left"
echo "deb: installed, used and removed on $(. /etc/os-release && echo "$PRETTY_NAME")"
END
within "$folder" sh /check.sh
