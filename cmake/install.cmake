# The install tree: the shared library with its headers, the SDK for plugin authors, the command, the plugins and the zoo.
#
# It may be moved: every RPATH begins with $ORIGIN. LibTorch is looked for in lib/keirin/torch, a link to the folder that holds its lib/
# and include/: made here to the one that was built with, by hand where the tree came from a package (ci/package).
include(CMakePackageConfigHelpers)
set(_inc ${CMAKE_INSTALL_INCLUDEDIR}/keirin)

# SDK: the contract, the kit and a plugin to copy. `#include "abi/plugin.h"` and `#include <keirin/abi/plugin.h>` both work. What plugin
# authors need and nothing else is the component `sdk`.
install(DIRECTORY abi/ DESTINATION ${_inc}/abi COMPONENT sdk
        FILES_MATCHING PATTERN "*.h" PATTERN "*.def" PATTERN "*.inc" PATTERN "planted.h" EXCLUDE)
install(DIRECTORY plugins/kit/ DESTINATION ${_inc}/plugins/kit COMPONENT sdk FILES_MATCHING PATTERN "*.h" PATTERN "*.cc")
install(DIRECTORY plugins/skeleton/ DESTINATION ${CMAKE_INSTALL_DATADIR}/keirin/skeleton COMPONENT sdk)
set(KEIRIN_HAS_LIBRARY OFF)

# What our own plugins are built of, for plugins that generate code through it: static libraries, linked hidden.
foreach(_part codegen shell codegen_llvm processor interpreter gpu)
  if(TARGET keirin_${_part})
    install(TARGETS keirin_${_part} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/keirin/sdk COMPONENT sdk)
  endif()
endforeach()
foreach(_folder codegen shell processor gpu)
  install(DIRECTORY plugins/${_folder}/ DESTINATION ${_inc}/plugins/${_folder} COMPONENT sdk FILES_MATCHING PATTERN "*.h")
endforeach()

if(TARGET keirin)
  set(KEIRIN_HAS_LIBRARY ON)
  install(FILES core/api/keirin.h core/eager/torch.h core/capture/record/capture.h DESTINATION ${_inc})
  set_target_properties(keirin PROPERTIES INSTALL_RPATH "$ORIGIN/keirin/torch/lib")
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/link_to_torch)
  file(CREATE_LINK ${KEIRIN_TORCH_ROOT} ${PROJECT_BINARY_DIR}/link_to_torch/torch SYMBOLIC)
  install(FILES ${PROJECT_BINARY_DIR}/link_to_torch/torch DESTINATION ${CMAKE_INSTALL_LIBDIR}/keirin COMPONENT link_to_torch)
  install(TARGETS keirin LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET keirin_cuda_graph)
  set_target_properties(keirin_cuda_graph PROPERTIES INSTALL_RPATH "$ORIGIN/torch/lib")
  install(TARGETS keirin_cuda_graph LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/keirin)
endif()
if(TARGET keirin_command)
  set(_rpath "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}/keirin/torch/lib")
  if(KEIRIN_PYTHON)  # beside the package's folder torch
    list(APPEND _rpath "$ORIGIN/lib" "$ORIGIN/../torch/lib")
  endif()
  set_target_properties(keirin_command PROPERTIES INSTALL_RPATH "${_rpath}")
  install(TARGETS keirin_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(TARGET conformance AND TARGET graphs)
  # What `keirin certify` runs.
  set_target_properties(conformance graphs PROPERTIES INSTALL_RPATH "$ORIGIN/../../../${CMAKE_INSTALL_LIBDIR}/keirin/torch/lib")
  install(TARGETS conformance graphs RUNTIME DESTINATION libexec/keirin/certify)
  install(FILES tests/conformance/skips.txt DESTINATION libexec/keirin/certify)
endif()
if(TARGET certify_checks)
  install(TARGETS certify_checks RUNTIME DESTINATION libexec/keirin/certify)
endif()
install(DIRECTORY ${PROJECT_BINARY_DIR}/plugins/ DESTINATION ${CMAKE_INSTALL_LIBDIR}/keirin/plugins USE_SOURCE_PERMISSIONS
        ${KEIRIN_PLUGIN_FILES})
install(FILES README.md ARCHITECTURE.md CHANGELOG.md SECURITY.md LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/keirin)
install(FILES cmake/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/keirin)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/keirin FILES_MATCHING PATTERN "*.md")
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/keirin)
install(DIRECTORY bench/cases/ DESTINATION ${CMAKE_INSTALL_DATADIR}/keirin/cases)
install(FILES tools/matrix/report.schema.json DESTINATION ${CMAKE_INSTALL_DATADIR}/keirin/schemas RENAME matrix-1.json)
install(DIRECTORY bench/zoo/models/small DESTINATION ${CMAKE_INSTALL_DATADIR}/keirin/zoo FILES_MATCHING PATTERN "*.pt2")

set(KEIRIN_INCLUDE_SUBDIR ${_inc})
configure_package_config_file(cmake/keirin-config.cmake.in ${PROJECT_BINARY_DIR}/keirin-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/keirin
                              PATH_VARS KEIRIN_INCLUDE_SUBDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/keirin-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/keirin-config.cmake ${PROJECT_BINARY_DIR}/keirin-config-version.cmake cmake/keirin-plugin.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/keirin COMPONENT sdk)
install(FILES cmake/FindKeirinTorch.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/keirin)
configure_file(cmake/keirin.pc.in ${PROJECT_BINARY_DIR}/keirin.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/keirin.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
