# How a plugin is built: part of Keirin's own build and, installed, of the package that plugin authors find.

# A plugin: one exported symbol, everything else hidden, no undefined symbol, never unloaded; the kit is compiled in.
#
#   keirin_add_plugin(NAME SOURCES file ... [LIBS target ...] [MANIFEST file])
#
# makes <build>/plugins/NAME with lib<NAME>.so and manifest.toml: KEIRIN_PLUGIN_PATH takes that folder or <build>. LIBS are linked
# static and hidden. MANIFEST, by default manifest.toml.in, is configured, so that it may name @PROJECT_VERSION@ and the machine.
function(keirin_add_plugin name)
  cmake_parse_arguments(A "" "MANIFEST" "SOURCES;LIBS" ${ARGN})
  if(NOT A_SOURCES OR A_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "keirin_add_plugin(${name} ...) has no SOURCES or words that it does not know (${A_UNPARSED_ARGUMENTS}): write "
                        "keirin_add_plugin(${name} SOURCES file ... [LIBS target ...] [MANIFEST file])")
  endif()
  if(NOT A_MANIFEST)
    set(A_MANIFEST manifest.toml.in)
  endif()
  get_filename_component(manifest ${A_MANIFEST} ABSOLUTE)
  if(NOT EXISTS ${manifest})
    message(FATAL_ERROR
            "keirin_add_plugin(${name}): there is no ${manifest}, and without a manifest the host finds no plugin: copy that of "
                        "the skeleton, or name yours with MANIFEST")
  endif()
  add_library(${name} MODULE ${A_SOURCES})
  target_compile_features(${name} PRIVATE cxx_std_20)
  target_compile_options(${name} PRIVATE ${KEIRIN_WARNINGS} -fvisibility=hidden -fvisibility-inlines-hidden
                                         $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique> -ftls-model=global-dynamic)
  target_link_libraries(${name} PRIVATE ${A_LIBS} keirin::kit)
  set(map ${CMAKE_CURRENT_BINARY_DIR}/${name}.map)
  file(WRITE ${map} "{ global: krn_plugin_entry; local: *; };\n")
  target_link_options(${name} PRIVATE -Wl,--version-script=${map} -Wl,-z,defs,-z,now,-z,nodelete -Wl,--exclude-libs,ALL
                                      -Wl,-Bsymbolic -Wl,--build-id=sha1)
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/plugins/${name}
                                           BUILD_RPATH "$ORIGIN" INSTALL_RPATH "$ORIGIN")
  configure_file(${manifest} ${PROJECT_BINARY_DIR}/plugins/${name}/manifest.toml @ONLY)
endfunction()
