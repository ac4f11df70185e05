# Finds LibTorch's CPU libraries without TorchConfig.cmake, which asks for a CUDA toolkit where the wheel was built with CUDA.
#
# Looks at KEIRIN_TORCH (a folder that holds include/ and lib/), then $ENV{KEIRIN_TORCH}, then CMAKE_PREFIX_PATH, then the
# environment that ./quickstart made. At run time libtorch_cpu's own RUNPATH finds the NVIDIA wheels beside it. Defines keirin_torch
# (libtorch_cpu + libc10) and KEIRIN_TORCH_ROOT, KEIRIN_TORCH_VERSION.
set(_deps "$ENV{KEIRIN_DEPS}")
if(NOT _deps)
  set(_deps "$ENV{HOME}/.cache/keirin")
endif()
file(GLOB _env_torch "${_deps}/torch-*/lib/python3*/site-packages/torch" "$ENV{VIRTUAL_ENV}/lib/python3*/site-packages/torch")
if(NOT KEIRIN_TORCH AND DEFINED ENV{KEIRIN_TORCH})
  set(KEIRIN_TORCH "$ENV{KEIRIN_TORCH}")
endif()
if(KEIRIN_TORCH)
  set(_only NO_DEFAULT_PATH)
endif()
find_path(KEIRIN_TORCH_INCLUDE ATen/ATen.h HINTS ${KEIRIN_TORCH} ${_env_torch} PATH_SUFFIXES include ${_only})
get_filename_component(KEIRIN_TORCH_ROOT "${KEIRIN_TORCH_INCLUDE}" DIRECTORY)
find_library(KEIRIN_TORCH_CPU torch_cpu HINTS ${KEIRIN_TORCH_ROOT}/lib NO_DEFAULT_PATH)
find_library(KEIRIN_C10 c10 HINTS ${KEIRIN_TORCH_ROOT}/lib NO_DEFAULT_PATH)
set(KEIRIN_TORCH_VERSION "")
if(EXISTS "${KEIRIN_TORCH_ROOT}/version.py")
  file(STRINGS "${KEIRIN_TORCH_ROOT}/version.py" _line REGEX "^__version__")
  string(REGEX REPLACE ".*'([^']*)'.*" "\\1" KEIRIN_TORCH_VERSION "${_line}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(KeirinTorch REQUIRED_VARS KEIRIN_TORCH_CPU KEIRIN_C10 KEIRIN_TORCH_INCLUDE
                                              VERSION_VAR KEIRIN_TORCH_VERSION)
if(KeirinTorch_FOUND AND NOT TARGET keirin_torch)
  # libtorch_cpu of a CUDA wheel needs libcudart and libcupti, which live in the NVIDIA wheels beside it.
  file(GLOB _nvidia "${KEIRIN_TORCH_ROOT}/../nvidia/*/lib")
  add_library(keirin_torch INTERFACE)
  target_include_directories(keirin_torch SYSTEM INTERFACE ${KEIRIN_TORCH_INCLUDE}
                                                           ${KEIRIN_TORCH_INCLUDE}/torch/csrc/api/include)
  target_link_libraries(keirin_torch INTERFACE ${KEIRIN_TORCH_CPU} ${KEIRIN_C10})
  foreach(_dir ${KEIRIN_TORCH_ROOT}/lib ${_nvidia})
    target_link_options(keirin_torch INTERFACE -Wl,-rpath-link,${_dir})
  endforeach()
  target_compile_definitions(keirin_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
endif()
