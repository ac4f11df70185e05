# SPDX-License-Identifier: Apache-2.0
# Puts a script in a cross-compiled program's place that starts it through the emulator, so that a program under the emulator can
# start it: the kernel beneath cannot. The program itself becomes PROGRAM.elf.
#   cmake -DPROGRAM=.. "-DEMULATOR=qemu-aarch64-static;-L;sysroot" -P emulated.cmake
file(RENAME "${PROGRAM}" "${PROGRAM}.elf")
set(words "")
foreach(word IN LISTS EMULATOR)
  string(APPEND words " '${word}'")
endforeach()
file(WRITE "${PROGRAM}" "#!/bin/sh\nexec${words} '${PROGRAM}.elf' \"$@\"\n")
file(CHMOD "${PROGRAM}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
