# SPDX-License-Identifier: Apache-2.0
# Cross-compiles for AArch64 Linux with Debian's g++-aarch64-linux-gnu and starts what was built through qemu's user mode.
#
# The libraries come from an unpacked sysroot and LibTorch from an unpacked wheel, both made by ci/arm under $ENV{KEIRIN_DEPS}; nothing
# of the build machine's own libraries is looked at. KEIRIN_AARCH64_SYSROOT and KEIRIN_AARCH64_TORCH (CMake or environment) name others.
# KEIRIN_TORCH of the environment is not asked: it names a LibTorch of the build machine.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

set(_deps "$ENV{KEIRIN_DEPS}")
if(NOT _deps)
  set(_deps "$ENV{HOME}/.cache/keirin")
endif()
foreach(_of SYSROOT TORCH)
  if(NOT KEIRIN_AARCH64_${_of})
    set(KEIRIN_AARCH64_${_of} "$ENV{KEIRIN_AARCH64_${_of}}")
  endif()
endforeach()
if(NOT KEIRIN_AARCH64_SYSROOT)
  set(KEIRIN_AARCH64_SYSROOT "${_deps}/aarch64-sysroot")
endif()
if(NOT KEIRIN_AARCH64_TORCH)
  file(GLOB _torches "${_deps}/aarch64-torch-*/torch")
  list(SORT _torches COMPARE NATURAL)
  list(POP_BACK _torches KEIRIN_AARCH64_TORCH)
endif()
if(NOT EXISTS "${KEIRIN_AARCH64_SYSROOT}/usr/include")
  message(FATAL_ERROR "There is no sysroot in ${KEIRIN_AARCH64_SYSROOT}. Run `ci/arm --setup-only`, or set KEIRIN_AARCH64_SYSROOT.")
endif()
# Checks that CMake compiles read this file again and know only what is named here.
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES KEIRIN_AARCH64_SYSROOT KEIRIN_AARCH64_TORCH)

set(CMAKE_SYSROOT "${KEIRIN_AARCH64_SYSROOT}")
set(KEIRIN_TORCH "${KEIRIN_AARCH64_TORCH}" CACHE PATH "The LibTorch of the machine that is compiled for" FORCE)
# Programs are the build machine's, everything else the other one's. The LibTorch folder is a root so that its own paths stay as they are.
set(CMAKE_FIND_ROOT_PATH "${KEIRIN_AARCH64_SYSROOT}" "${KEIRIN_AARCH64_TORCH}")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# A cross compiler takes `ld.lld` only from a folder of its own; with -B/usr/bin it would take the build machine's assembler as well.
find_program(KEIRIN_LLD ld.lld)
if(KEIRIN_LLD)
  set(_linker "${CMAKE_BINARY_DIR}/linker")
  file(MAKE_DIRECTORY "${_linker}")
  file(CREATE_LINK "${KEIRIN_LLD}" "${_linker}/ld.lld" SYMBOLIC)
  foreach(_kind EXE SHARED MODULE)
    set(CMAKE_${_kind}_LINKER_FLAGS_INIT "-B${_linker}")
  endforeach()
endif()
set(LLVM_DIR "${KEIRIN_AARCH64_SYSROOT}/usr/lib/llvm-19/lib/cmake/llvm" CACHE PATH "")

# QEMU_CPU chooses the processor (neoverse-n1; max,sve128=on). A library path is not needed: the loader looks in the sysroot first,
# and LibTorch's own path finds the wheels beside it.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L "${KEIRIN_AARCH64_SYSROOT}")
