cmake_policy(VERSION 3.22)
# Writes what COMMAND prints to OUT.
list(REMOVE_ITEM COMMAND "")
execute_process(COMMAND ${COMMAND} OUTPUT_FILE ${OUT} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  file(REMOVE ${OUT})
  message(FATAL_ERROR "${COMMAND} failed: ${status}")
endif()
