# Finds oneDNN 3.x built with the GNU OpenMP run time: the one that shares LibTorch's thread pool.
#
# Looks at KEIRIN_ONEDNN (a prefix with include/ and lib/), then $ENV{KEIRIN_ONEDNN}, then the environment that ./quickstart made
# under $ENV{KEIRIN_DEPS}. Defines keirin_onednn, and KEIRIN_ONEDNN_LIBRARY: the file to ship beside the plugin.
set(_deps "$ENV{KEIRIN_DEPS}")
if(NOT _deps)
  set(_deps "$ENV{HOME}/.cache/keirin")
endif()
file(GLOB _env_onednn "${_deps}/onednn-*")
if(NOT KEIRIN_ONEDNN AND DEFINED ENV{KEIRIN_ONEDNN})
  set(KEIRIN_ONEDNN "$ENV{KEIRIN_ONEDNN}")
endif()
if(KEIRIN_ONEDNN)
  set(_only NO_DEFAULT_PATH)
endif()
find_path(KEIRIN_ONEDNN_INCLUDE oneapi/dnnl/dnnl.hpp HINTS ${KEIRIN_ONEDNN} ${_env_onednn} PATH_SUFFIXES include ${_only})
get_filename_component(KEIRIN_ONEDNN_ROOT "${KEIRIN_ONEDNN_INCLUDE}" DIRECTORY)
find_file(KEIRIN_ONEDNN_LIBRARY libdnnl.so.3 HINTS ${KEIRIN_ONEDNN_ROOT} PATH_SUFFIXES lib lib64 NO_DEFAULT_PATH)
set(KEIRIN_ONEDNN_VERSION "")
if(EXISTS "${KEIRIN_ONEDNN_INCLUDE}/oneapi/dnnl/dnnl_version.h")
  file(STRINGS "${KEIRIN_ONEDNN_INCLUDE}/oneapi/dnnl/dnnl_version.h" _lines REGEX "define DNNL_VERSION_(MAJOR|MINOR|PATCH)")
  string(REGEX REPLACE "[^0-9]+([0-9]+)[^0-9]+([0-9]+)[^0-9]+([0-9]+).*" "\\1.\\2.\\3" KEIRIN_ONEDNN_VERSION "${_lines}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(KeirinOneDNN REQUIRED_VARS KEIRIN_ONEDNN_LIBRARY KEIRIN_ONEDNN_INCLUDE
                                               VERSION_VAR KEIRIN_ONEDNN_VERSION)
if(KeirinOneDNN_FOUND AND NOT TARGET keirin_onednn)
  add_library(keirin_onednn SHARED IMPORTED)
  set_target_properties(keirin_onednn PROPERTIES IMPORTED_LOCATION ${KEIRIN_ONEDNN_LIBRARY} IMPORTED_SONAME libdnnl.so.3
                                                 INTERFACE_INCLUDE_DIRECTORIES ${KEIRIN_ONEDNN_INCLUDE})
endif()
