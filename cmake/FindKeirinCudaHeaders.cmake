# Finds cuda.h, for its types only: in CUDA_HOME, the toolkit, or the wheels that came with LibTorch (nvidia-cuda-runtime).
# Defines keirin_cuda_headers and KEIRIN_CUDA_INCLUDE; KEIRIN_CUDART_INCLUDE where the runtime's headers are whole
# (crt/host_defines.h is a wheel of its own, nvidia-cuda-crt), which LibTorch's CUDA headers need.
set(_roots "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" /usr/local/cuda)
set(_deps "$ENV{KEIRIN_DEPS}")
if(NOT _deps)
  set(_deps "$ENV{HOME}/.cache/keirin")
endif()
# Folders of NVIDIA wheels: beside LibTorch, and those that ci/setup installed for building.
file(GLOB KEIRIN_CUDA_WHEELS "${KEIRIN_TORCH_ROOT}/../nvidia/cu1*" "${KEIRIN_TORCH_ROOT}/../nvidia/cuda_*"
     "${_deps}/cuda-headers/lib/python3*/site-packages/nvidia/cu1*")
set(KEIRIN_CUDA_WHEELS "${KEIRIN_CUDA_WHEELS}" CACHE INTERNAL "")
set(_wheels ${KEIRIN_CUDA_WHEELS})
find_path(KEIRIN_CUDA_INCLUDE cuda.h HINTS ${_wheels} ${_roots} PATH_SUFFIXES include)
find_path(KEIRIN_CUDART_INCLUDE crt/host_defines.h HINTS ${_wheels} ${_roots} PATH_SUFFIXES include)
mark_as_advanced(KEIRIN_CUDA_INCLUDE KEIRIN_CUDART_INCLUDE)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(KeirinCudaHeaders REQUIRED_VARS KEIRIN_CUDA_INCLUDE)
if(KeirinCudaHeaders_FOUND AND NOT TARGET keirin_cuda_headers)
  add_library(keirin_cuda_headers INTERFACE)
  target_include_directories(keirin_cuda_headers SYSTEM INTERFACE ${KEIRIN_CUDA_INCLUDE})
endif()
