# Debian's cross compiler, a folder with the libraries of arm64 (UNPACK_SYSROOT), and qemu to run
# what comes out.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
# GCC 12 is wrong about comparing two std::vector<char> here.
set(CMAKE_CXX_FLAGS_INIT -Wno-stringop-overread)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES UNPACK_SYSROOT)
set(CMAKE_SYSROOT ${UNPACK_SYSROOT})
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-L;${UNPACK_SYSROOT})
set(CMAKE_FIND_ROOT_PATH ${UNPACK_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${UNPACK_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR}
  ${UNPACK_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${UNPACK_SYSROOT}/usr/share/pkgconfig)
