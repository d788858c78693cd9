# Installs BUILD to a new prefix under WORK, builds a project that knows nothing but that prefix,
# and runs what came out.
function(run expected)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output
    ERROR_VARIABLE output WORKING_DIRECTORY ${WORK})
  if(NOT status EQUAL 0 OR NOT output MATCHES "${expected}")
    message(FATAL_ERROR "${ARGN}\nexit ${status}, expected '${expected}' in:\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
set(prefix ${WORK}/prefix)
run("" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
run("" ${CMAKE_COMMAND} -G ${GENERATOR} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK}/build
  -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${COMPILER} -DSNIPPET=${SNIPPET})
run("" ${CMAKE_COMMAND} --build ${WORK}/build)
run("Mary\t[0-9]" ${WORK}/build/consumer)
run("http://127.0.0.1:[0-9]+" ${WORK}/build/consumer_server)
run("bundled.*${prefix}/share/unpack/models/pocket-gpt2" ${prefix}/bin/unpack models)
run("Mary" ${prefix}/bin/unpack predict "Mary and John went to the store. John gave a drink to")
