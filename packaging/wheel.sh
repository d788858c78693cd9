#!/bin/bash
# The wheel, into dist/: module, program, page, models and the shared libraries that a base system
# may lack.
. "$(dirname "$0")/common.sh"
scripts/setup.sh wheel
need wheel cmake patchelf strip
borrow_build
rm -f "$dist"/unpack_engine-*.whl
if "$PYTHON" -c 'import build.__main__' 2>/dev/null; then
  CMAKE_BUILD_PARALLEL_LEVEL=$jobs "$PYTHON" -m build --wheel --no-isolation --outdir "$dist" . \
    >/dev/null
else
  CMAKE_BUILD_PARALLEL_LEVEL=$jobs PYTHONPATH=packaging "$PYTHON" \
    -c "import wheel_backend; wheel_backend.build_wheel('$dist')"
fi
say "$(cd "$dist" && ls -s --block-size=M unpack_engine-*.whl)"
