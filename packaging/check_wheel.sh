#!/bin/sh
# Run where the wheel is to be tried, with its path, and check_page.py beside this script: install,
# use, remove in a new virtual environment. numpy is the system's.
set -eu
wheel=$1
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
python3 -m venv --system-site-packages venv
# shellcheck disable=SC1091
. venv/bin/activate
pip install -q --no-index --disable-pip-version-check "$wheel"
unpack --version | tee version
grep -q '^installed: wheel$' version
grep -q 'oneDNN' version  # it came with the wheel
unpack predict "Mary and John went to the store. John gave a drink to" | grep -q Mary
unpack trace "Mary and John went to the store. John gave a drink to" --html picture.html
grep -qi '<html' picture.html
python3 "$here/check_page.py" unpack
unpack doctor
unpack doctor --json - >doctor.json
python3 - <<'END'
import json
findings = {f["subject"]: f for f in json.load(open("doctor.json"))["findings"]}
assert ", wheel, " in findings["program"]["found"], findings["program"]
assert "pocket-gpt2" in findings["bundled models"]["found"], findings
assert "/venv/" in findings["products"]["found"], findings["products"]  # the wheel's own oneDNN

import unpack_engine as up

mapped = list(open("/proc/self/maps"))
assert not any("dnnl" in line or "libcuda" in line for line in mapped), "an import opens nothing"
assert up.about()["installed"] == "wheel", up.about()
p = up.load("pocket-gpt2").prepare("Mary and John went to the store. John gave a drink to")
r = p.trace(target=" Mary", versus=" John")
assert r.token_credit[0] > 0 and r.paths, r
loaded = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
for name in ("libfmt", "libpcre2", "libutf8proc", "libdnnl", "libgomp"):
    of_it = [path for path in loaded if path.split("/")[-1].startswith(name)]
    assert of_it and all("/venv/" in path or name == "libgomp" for path in of_it), (name, of_it)
print("module:", up.__version__, "credit of the first token", round(float(r.token_credit[0]), 3))
END
python3 -m unpack_engine models | grep -q pocket-llama
python3 - >files <<'END'
import importlib.metadata
files = importlib.metadata.files("unpack-engine")
paths = [str(file.locate().resolve()) for file in files]
notices = next(path for path in paths if path.endswith("/THIRD_PARTY_NOTICES.md"))
notices = open(notices, encoding="utf-8").read()
names = [path.split("/")[-1].split(".so")[0] for path in paths if "/unpack_engine/lib/lib" in path]
assert "libfmt" in names, names
assert all(f"`{name}`" in notices for name in names), (names, "are not all named in the notices")
print("\n".join(paths))
END
pip uninstall -q -y unpack-engine
[ "$(wc -l <files)" -gt 20 ]
while IFS= read -r left; do
  [ ! -e "$left" ] || { echo "$left is still there"; exit 1; }
done <files
[ ! -e venv/bin/unpack ]
! ls -d venv/lib/python3*/site-packages/unpack_engine* 2>/dev/null || exit 1
echo "wheel: installed, used and removed"
