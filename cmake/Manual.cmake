# The manual page and the completion scripts, which the program itself writes. A cross build runs it
# in an emulator where CMake knows one (CMAKE_CROSSCOMPILING_EMULATOR) and leaves them out
# otherwise.
if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
  message(STATUS "The manual page and shell completion are left out: this program cannot run here")
  return()
endif()

set(pages ${CMAKE_CURRENT_BINARY_DIR}/pages)
file(MAKE_DIRECTORY ${pages})
function(unpack_page file)
  add_custom_command(OUTPUT ${pages}/${file} DEPENDS unpack_cli VERBATIM
    COMMAND ${CMAKE_COMMAND} -DOUT=${pages}/${file}
      "-DCOMMAND=${CMAKE_CROSSCOMPILING_EMULATOR};$<TARGET_FILE:unpack_cli>;${ARGN}"
            -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/write_output.cmake)
endfunction()
unpack_page(unpack.1 manual)
unpack_page(unpack.bash completion bash)
unpack_page(_unpack completion zsh)
unpack_page(unpack.fish completion fish)
add_custom_target(unpack_pages ALL DEPENDS ${pages}/unpack.1 ${pages}/unpack.bash ${pages}/_unpack
  ${pages}/unpack.fish)

install(FILES ${pages}/unpack.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${pages}/unpack.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
  RENAME unpack)
install(FILES ${pages}/_unpack DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
install(FILES ${pages}/unpack.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
