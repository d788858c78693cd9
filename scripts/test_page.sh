#!/bin/sh
# The page's own unit tests, and whether the page in web/dist is what web/src builds. Needs npm;
# without it, or without its packages, says so and lets pass: the built page is committed, and a
# real browser tests it all the same.
set -eu
cd "$(dirname "$0")/../web"
if ! command -v npm >/dev/null 2>&1; then
  echo "page: npm is not here, so its unit tests do not run"
  exit 0
fi
if [ ! -d node_modules ] && ! npm ci --silent --no-audit --no-fund; then
  if npm install --silent --no-save --no-audit --no-fund; then
    echo "page: npm ci refuses web/package-lock.json, and npm install does not:" \
      "mend the lock file" >&2
    exit 1
  fi
  echo "page: its npm packages could not be installed, so its unit tests do not run"
  exit 0
fi
npm test
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
npx vite build --logLevel warn --outDir "$made"
if ! diff -q "$made/index.html" dist/index.html; then
  echo "page: web/dist is not what web/src builds; run 'npm run build' in web/ and commit it" >&2
  exit 1
fi
echo "page: tests passed, web/dist is up to date"
