# Small vocabulary of the build: one function per kind of target.
include(${CMAKE_CURRENT_LIST_DIR}/keirin-plugin.cmake)

set(KEIRIN_WARNINGS -Wall -Wextra)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # In inlined code of its own library it sees faults that are not there: strings that overlap, optionals that are read empty.
  list(APPEND KEIRIN_WARNINGS -Wno-restrict -Wno-array-bounds -Wno-maybe-uninitialized)
endif()

# A link to a file or folder of the source tree; relative, so that a checkout may be moved with its build folder.
function(keirin_link to link)
  get_filename_component(folder ${link} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  file(RELATIVE_PATH relative ${folder} ${to})
  file(CREATE_LINK ${relative} ${link} SYMBOLIC)
endfunction()

# What is installed of the folder of plugins, which holds what they are built of as well.
set(KEIRIN_PLUGIN_FILES FILES_MATCHING PATTERN "*.so*" PATTERN "manifest.toml")
foreach(_part codegen gpu kit processor reference shell skeleton CMakeFiles)
  list(APPEND KEIRIN_PLUGIN_FILES PATTERN ${_part} EXCLUDE)
endforeach()

# A static library of the core or of a tool, compiled with the house warnings.
function(keirin_add_library name)
  cmake_parse_arguments(A "" "" "SOURCES;LIBS;PRIVATE_LIBS" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_compile_options(${name} PRIVATE ${KEIRIN_WARNINGS})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${name} PUBLIC ${A_LIBS} PRIVATE ${A_PRIVATE_LIBS})
endfunction()

# Texts (of kernels, of pages) as part of a library: for each file NAME.* a `std::string_view NAME` in SPACE, as HEADER declares it. Made
# again when a file changes.
function(keirin_embed_texts target)
  cmake_parse_arguments(A "" "SPACE;HEADER" "TEXTS" ${ARGN})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${target}_texts.cc)
  set(paths ${A_TEXTS})
  list(TRANSFORM paths PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  string(REPLACE ";" "," joined "${paths}")
  set(script ${PROJECT_SOURCE_DIR}/cmake/embed_text.cmake)
  add_custom_command(OUTPUT ${out} DEPENDS ${paths} ${script} VERBATIM COMMENT "Embedding texts of ${target}"
                     COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DSPACE=${A_SPACE} -DHEADER=${A_HEADER} -DTEXTS=${joined} -P ${script})
  target_sources(${target} PRIVATE ${out})
endfunction()

# One GoogleTest program = one ctest test. LABEL defaults to unit.
function(keirin_add_test)
  cmake_parse_arguments(A "" "NAME;LABEL;TIMEOUT" "SOURCES;LIBS;ARGS;ENVIRONMENT" ${ARGN})
  if(NOT BUILD_TESTING)
    return()
  endif()
  if(NOT A_LABEL)
    set(A_LABEL unit)
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  add_executable(${A_NAME} ${A_SOURCES})
  target_compile_features(${A_NAME} PRIVATE cxx_std_20)
  target_compile_options(${A_NAME} PRIVATE ${KEIRIN_WARNINGS})
  target_compile_definitions(${A_NAME} PRIVATE KEIRIN_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_include_directories(${A_NAME} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${A_NAME} PRIVATE ${A_LIBS} GTest::gtest GTest::gtest_main)
  add_test(NAME ${A_NAME} COMMAND ${A_NAME} ${A_ARGS})
  set_tests_properties(${A_NAME} PROPERTIES LABELS ${A_LABEL} TIMEOUT ${A_TIMEOUT} ENVIRONMENT "${A_ENVIRONMENT}")
endfunction()

# keirin_runs_beside_others(<test>...): long ones that compile and compare and ask no clock, of which `ci/test` runs several at once.
# Others have the machine to themselves.
function(keirin_runs_beside_others)
  foreach(_test IN LISTS ARGN)
    if(TEST ${_test})
      set_property(TEST ${_test} APPEND PROPERTY LABELS beside)
    endif()
  endforeach()
endfunction()
