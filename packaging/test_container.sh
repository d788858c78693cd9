#!/bin/bash
# The image (as root): loaded and run by podman where that works here, else its root run by chroot
# as the user it names. Serves the page to a client, and writes nothing outside its home.
# REQUIRE_PODMAN=1: where podman runs no container, that is an error.
. "$(dirname "$0")/common.sh"
image=$dist/unpack-$version-image.tar
[ -e "$image" ] || fail "make container first"
port=${PORT:-17860}
work=$(mktemp -d)
ask() { "$PYTHON" packaging/check_page.py --at "http://127.0.0.1:$port"; }
# by_podman COMMAND...: with its defaults, or where these want more rights than this machine gives,
# with runc and limits that are allowed.
for runtime in "" "--runtime runc"; do
  limits=${runtime:+--ulimit nofile=1024:$(ulimit -Hn) --ulimit nproc=1000:1000}
  # shellcheck disable=SC2086  # lists of words
  by_podman() { podman $runtime run --rm $limits "$@"; }
  works=no
  command -v podman >/dev/null 2>&1 || break
  podman load -q -i "$image" >/dev/null
  if by_podman "unpack:$version" --version >"$work/version" 2>"$work/why"; then works=yes; break; fi
  say "podman${runtime:+ $runtime}: $(tail -n 1 "$work/why")"
done
if [ $works = yes ]; then
  say "run by podman${runtime:+ $runtime}"
  cat "$work/version"
  grep -q '^installed: container image$' "$work/version"
  by_podman "unpack:$version" doctor | tee "$work/doctor"
  grep -q 'container image, /usr/bin/unpack$' "$work/doctor"
  grep -q '^products .*oneDNN.*right to' "$work/doctor"
  by_podman --entrypoint /usr/bin/sh "unpack:$version" \
    -c 'grep -q Preact /usr/share/doc/unpack-engine/THIRD_PARTY_NOTICES.md &&
      test -s /usr/share/doc/libc6/copyright' || fail "licences are lacking"
  by_podman --read-only --network=none "unpack:$version" predict \
    "Mary and John went to the store. John gave a drink to" | grep -q Mary
  id=$(by_podman -d -p "127.0.0.1:$port:7860" "unpack:$version")
  trap 'podman kill "$id" >/dev/null; rm -rf "$work"' EXIT
  ask
  [ "$(podman exec "$id" id -u)" = 990 ] || fail "it does not run as the user without rights"
  [ -z "$(podman exec "$id" cat /proc/1/status | sed -n 's/^CapEff:[[:space:]0]*//p')" ] ||
    fail "it has rights"
else
  [ -z "${REQUIRE_PODMAN:-}" ] || fail "podman runs no container here (apt-get install podman" \
    "runc iptables)"
  say "podman runs no container here; the image's root is run by chroot"
  tar -x -C "$work" -f "$image"
  mkdir "$work/root"
  "$PYTHON" - "$work" <<'END'
import json, pathlib, sys, tarfile
work = pathlib.Path(sys.argv[1])
blob = lambda digest: work / "blobs" / digest.replace(":", "/")
index = json.loads((work / "index.json").read_text())
manifest = json.loads(blob(index["manifests"][0]["digest"]).read_text())
config = json.loads(blob(manifest["config"]["digest"]).read_text())["config"]
assert config["User"] == "unpack" and config["Entrypoint"] == ["/usr/bin/unpack"], config
with tarfile.open(blob(manifest["layers"][0]["digest"])) as tar:
    tar.extractall(work / "root")
END
  chroot --userspec=unpack "$work/root" /usr/bin/unpack --version | tee "$work/version"
  grep -q '^installed: container image$' "$work/version"
  chroot --userspec=unpack "$work/root" env -i HOME=/home/unpack /usr/bin/unpack serve \
    --port "$port" 2>"$work/log" &
  server=$!
  trap 'kill $server 2>/dev/null; wait $server 2>/dev/null; rm -rf "$work"' EXIT
  ask
  [ "$(ps -o user= -p "$server" | tr -d ' ')" != root ] || fail "it runs as root"
fi
say "the image works"
