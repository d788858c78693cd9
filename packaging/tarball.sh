#!/bin/bash
# One folder that runs on any Linux of this processor with the C library it names: program, page,
# models and the libraries the program links, packed into dist/.
. "$(dirname "$0")/common.sh"
scripts/setup.sh wheel
need wheel cmake ninja patchelf strip objdump
borrow_build
build=$root/${UNPACK_PACKAGE_BUILD:-build/package}
cmake -G Ninja -S . -B "$build" --log-level=WARNING -DCMAKE_BUILD_TYPE=Release -DUNPACK_TESTS=OFF \
  -DUNPACK_PACKAGED=ON
cmake --build "$build" -j "$jobs" --target unpack_cli unpack_pages
name=unpack-$version-linux-$(uname -m)
folder=$root/build/tarball/$name
rm -rf "$root/build/tarball"
mkdir -p "$folder/bin" "$folder/share/unpack" "$folder/share/completions" "$folder/share/man/man1"
cp "$build/unpack" "$folder/bin/"
strip "$folder/bin/unpack"
"$PYTHON" packaging/bundle_libraries.py --runtime "$folder/lib" "$folder/bin/unpack"
cp -r models data "$folder/share/unpack/"
cp "$build/pages/unpack.1" "$folder/share/man/man1/"
cp "$build/pages/unpack.bash" "$build/pages/_unpack" "$build/pages/unpack.fish" \
  "$folder/share/completions/"
cp LICENSE THIRD_PARTY_NOTICES.md README.md CHANGELOG.md "$folder/"
echo "portable folder" >"$folder/share/unpack/installed_as"

# The oldest C library that has every symbol.
glibc=$(find "$folder/bin" "$folder/lib" -type f \( -name unpack -o -name '*.so*' \) \
  -exec objdump -T {} + | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1 | cut -d_ -f2)
cat >"$folder/INSTALL" <<END
unpack $version for Linux on $(uname -m), with glibc $glibc or later. Nothing is installed:
bin/unpack runs from where it lies. oneDNN (libdnnl.so.2 or .3) makes matrix products faster where
the system has it; bin/unpack doctor says whether it does.
END
tar -C "$root/build/tarball" --sort=name --owner=0 --group=0 --numeric-owner \
  --mtime="@$(git log -1 --format=%ct 2>/dev/null || echo 0)" -c "$name" |
  gzip -9n >"$dist/$name.tar.gz"
say "$name.tar.gz needs glibc $glibc: $(du -m "$dist/$name.tar.gz" | cut -f1) MiB"
