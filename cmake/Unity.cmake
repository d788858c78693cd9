# unpack_unity(TARGET FILE...): with UNPACK_UNITY, the sources of a folder become one, except FILEs
# (a folder's name with / behind it: all of it). A new file needs no edit, unless a helper in it has
# the name of one of its neighbours: rename it, or add it to FILEs.
function(unpack_unity target)
  if(NOT UNPACK_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # KiB that the compiler fills before it looks for what it can give back.
    target_compile_options(${target} PRIVATE "SHELL:--param ggc-min-heapsize=524288")
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_filename_component(path ${source} ABSOLUTE)
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${path})
    get_filename_component(folder ${path} DIRECTORY)
    if(NOT path MATCHES "\\.cc$" OR path IN_LIST ARGN OR "${folder}/" IN_LIST ARGN)
      continue()
    endif()
    # src/model/families goes with src/model.
    string(REGEX REPLACE "^(src/[a-z]+)/.*" "\\1" folder ${folder})
    string(MAKE_C_IDENTIFIER ${folder} group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()

# unpack_precompile(TARGET): with UNPACK_UNITY, what nearly every folder includes of the standard
# library, fmt and JSON is compiled once; worth it where a target has many folders. Files with
# options or definitions of their own read these headers as they stand.
function(unpack_precompile target)
  if(NOT UNPACK_UNITY)
    return()
  endif()
  target_precompile_headers(${target} PRIVATE <algorithm> <chrono> <filesystem> <fstream>
    <functional> <map> <memory> <mutex> <numeric> <optional> <set> <span> <string> <thread>
    <unordered_map>
    <variant> <vector> <fmt/format.h> <fmt/ranges.h> ${PROJECT_SOURCE_DIR}/include/unpack/json.h)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    if(options OR definitions)
      set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

# unpack_optimise_less(TARGET): a release build of code that no loop of the engine waits for;
# compiles in two thirds of the time.
function(unpack_optimise_less target)
  if(NOT MSVC)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
endfunction()
