# libunpack_cuda.so, by nvcc itself: CMake 3.25 knows no C++20 for CUDA 13.
set(UNPACK_CUDA_ARCHITECTURES 90 CACHE STRING "Compute capabilities to build machine code for; newer ones take PTX of the last")
find_program(UNPACK_NVCC nvcc HINTS /usr/local/cuda/bin $ENV{CUDA_HOME}/bin REQUIRED)
set(nvcc_targets "")
foreach(architecture IN LISTS UNPACK_CUDA_ARCHITECTURES)
  list(APPEND nvcc_targets -gencode=arch=compute_${architecture},code=sm_${architecture})
endforeach()
list(GET UNPACK_CUDA_ARCHITECTURES -1 newest)
list(APPEND nvcc_targets -gencode=arch=compute_${newest},code=compute_${newest})

set(plugin ${CMAKE_CURRENT_BINARY_DIR}/libunpack_cuda.so)
set(plugin_source ${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cuda/plugin/unpack_cuda.cu)
file(GLOB plugin_headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cuda/*.h)
add_custom_command(
  OUTPUT ${plugin}
  COMMAND ${UNPACK_NVCC} -std=c++20 -O3 ${nvcc_targets} -I${CMAKE_CURRENT_SOURCE_DIR}/src -Xcompiler -fPIC,-fvisibility=hidden -shared -o ${plugin} ${plugin_source} -lcublas
  DEPENDS ${plugin_source} ${plugin_headers}
  COMMENT "Building the CUDA plugin"
  VERBATIM)
add_custom_target(unpack_cuda ALL DEPENDS ${plugin})
install(FILES ${plugin} DESTINATION ${CMAKE_INSTALL_LIBDIR})
