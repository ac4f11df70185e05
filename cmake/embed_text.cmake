# Writes OUT, a C++ source that defines each of TEXTS (files NAME.*, separated by commas) as `const std::string_view
# NAME` in namespace SPACE, which HEADER declares. A file's head, its comment lines up to the first empty one, is for people
# and left out: the text begins with that empty line.
#   cmake -DOUT=.. -DSPACE=.. -DHEADER=.. -DTEXTS=a,b -P embed_text.cmake
string(REPLACE "," ";" TEXTS "${TEXTS}")
set(out "// Made by cmake/embed_text.cmake.\n#include \"${HEADER}\"\n\nnamespace ${SPACE} {\n")
foreach(path IN LISTS TEXTS)
  get_filename_component(name "${path}" NAME_WE)
  file(READ "${path}" text)
  string(FIND "${text}" "\n\n" head)
  if(NOT text MATCHES "^(//|/\\*|<!--|#) SPDX-License-Identifier" OR head LESS 0)
    message(FATAL_ERROR "${path} does not begin with a head of comment lines and an empty line")
  endif()
  math(EXPR begin "${head} + 1")
  string(SUBSTRING "${text}" ${begin} -1 text)
  string(APPEND out "\nconstinit const std::string_view ${name} = R\"krn(${text})krn\";\n")
endforeach()
string(APPEND out "\n}  // namespace ${SPACE}\n")
file(WRITE "${OUT}" "${out}")
