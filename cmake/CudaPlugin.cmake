# libunpack_cuda.so, by nvcc itself: CMake 3.25 knows no C++20 for CUDA 13.
set(UNPACK_CUDA_ARCHITECTURES 90 CACHE STRING
  "Compute capabilities to build machine code for; newer ones take PTX of the last")
find_program(UNPACK_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
set(missing "")
if(NOT UNPACK_NVCC)
  set(missing "there is no nvcc (set CUDA_HOME or PATH)")
else()
  get_filename_component(nvcc_folder ${UNPACK_NVCC} REALPATH)
  get_filename_component(nvcc_folder ${nvcc_folder} DIRECTORY)
  execute_process(COMMAND ${UNPACK_NVCC} --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
  string(REGEX MATCH "release ([0-9]+)" nvcc_version "${nvcc_version}")
  find_path(UNPACK_CUBLAS_INCLUDE cublas_v2.h HINTS ${nvcc_folder}/../include)
  if(NOT CMAKE_MATCH_1 OR CMAKE_MATCH_1 LESS 12)
    set(missing "${UNPACK_NVCC} is older than 12 and knows no C++20")
  elseif(NOT UNPACK_CUBLAS_INCLUDE)
    set(missing "cuBLAS is not beside ${UNPACK_NVCC}")
  endif()
endif()
if(missing AND UNPACK_CUDA STREQUAL AUTO)
  message(STATUS "The CUDA plugin is left out: ${missing}")
  return()
elseif(missing)
  message(FATAL_ERROR "-DUNPACK_CUDA=ON needs nvcc 12 or later and cuBLAS, but ${missing}")
endif()

# cuBLAS is there where nothing was told to look.
get_filename_component(cuda_libraries ${nvcc_folder}/../lib64 ABSOLUTE)

set(nvcc_targets "")
foreach(architecture IN LISTS UNPACK_CUDA_ARCHITECTURES)
  # What Hopper alone has (pair_sums.cu) is for no other chip, so that it is no part of 90.
  string(REGEX REPLACE "^90$" "90a" own ${architecture})
  list(APPEND nvcc_targets -gencode=arch=compute_${own},code=sm_${own})
endforeach()
list(GET UNPACK_CUDA_ARCHITECTURES -1 newest)
list(APPEND nvcc_targets -gencode=arch=compute_${newest},code=compute_${newest})

set(plugin ${CMAKE_CURRENT_BINARY_DIR}/libunpack_cuda.so)
file(GLOB plugin_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cuda/plugin/*.cu)
file(GLOB plugin_headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/base/formulas.h
  ${CMAKE_CURRENT_SOURCE_DIR}/include/unpack/config.h
  ${CMAKE_CURRENT_SOURCE_DIR}/src/backend/kernels/*.h
  ${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cuda/*.h
  ${CMAKE_CURRENT_SOURCE_DIR}/src/backend/cuda/plugin/*.h)
add_custom_command(
  OUTPUT ${plugin}
  COMMAND ${UNPACK_NVCC} -std=c++20 -O3 ${nvcc_targets} -I${CMAKE_CURRENT_SOURCE_DIR}/src
    -I${CMAKE_CURRENT_SOURCE_DIR}/include -Xcompiler -fPIC,-fvisibility=hidden -shared -o ${plugin}
    ${plugin_sources} -lcublas -Xlinker -rpath -Xlinker ${cuda_libraries}
  DEPENDS ${plugin_sources} ${plugin_headers}
  COMMENT "Building the CUDA plugin"
  VERBATIM)
add_custom_target(unpack_cuda ALL DEPENDS ${plugin})
install(FILES ${plugin} DESTINATION ${CMAKE_INSTALL_LIBDIR})
