# Finds the headers of cuDNN (cudnn.h, with the CUDA runtime's that it includes) and of NVIDIA's cudnn-frontend 1.x; libcudnn
# itself is opened at run time. Looked for: $ENV{KEIRIN_CUDNN_FRONTEND} (an unpacked frontend), $ENV{KEIRIN_DEPS} or
# ~/.cache/keirin, the wheels beside LibTorch, the system. Defines keirin_cudnn_headers. Needs FindKeirinCudaHeaders first.
set(_deps "$ENV{KEIRIN_DEPS}")
if(NOT _deps)
  set(_deps "$ENV{HOME}/.cache/keirin")
endif()
file(GLOB _cudnn "${KEIRIN_TORCH_ROOT}/../nvidia/cudnn" "${_deps}/cudnn*/nvidia/cudnn"
     "${_deps}/cudnn*/lib/python3*/site-packages/nvidia/cudnn" "${_deps}/python-3*/lib/python3*/site-packages/nvidia/cudnn")
file(GLOB _frontend "${_deps}/cudnn-frontend-1.*" "${_deps}/cuda-headers/lib/python3*/site-packages")
get_filename_component(_beside_torch "${KEIRIN_TORCH_ROOT}" DIRECTORY)  # where its wheel puts the folder include; a GLOB never finds ".."
find_path(KEIRIN_CUDNN_INCLUDE cudnn.h HINTS ${_cudnn} /usr/local/cuda PATH_SUFFIXES include)
find_path(KEIRIN_CUDNN_FRONTEND_INCLUDE cudnn_frontend/graph_interface.h HINTS "$ENV{KEIRIN_CUDNN_FRONTEND}" ${_frontend} ${_beside_torch}
          PATH_SUFFIXES include)
mark_as_advanced(KEIRIN_CUDNN_INCLUDE KEIRIN_CUDNN_FRONTEND_INCLUDE)
# cudnn.h includes the CUDA runtime's headers: from the folder that also holds crt/; nv/target (CCCL) may lie elsewhere.
file(GLOB _wheels "${KEIRIN_TORCH_ROOT}/../nvidia/cu1*" "${_deps}/cuda-headers/lib/python3*/site-packages/nvidia/cu1*")
find_path(KEIRIN_CUDNN_CCCL_INCLUDE nv/target HINTS ${_wheels} "$ENV{CUDA_HOME}" /usr/local/cuda PATH_SUFFIXES include include/cccl)
mark_as_advanced(KEIRIN_CUDNN_CCCL_INCLUDE)
if(KEIRIN_CUDART_INCLUDE AND EXISTS "${KEIRIN_CUDART_INCLUDE}/cuda_bf16.h")
  set(KEIRIN_CUDNN_RUNTIME_INCLUDE "${KEIRIN_CUDART_INCLUDE}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(KeirinCudnn REQUIRED_VARS KEIRIN_CUDNN_INCLUDE KEIRIN_CUDNN_FRONTEND_INCLUDE KEIRIN_CUDNN_RUNTIME_INCLUDE
                                  KEIRIN_CUDNN_CCCL_INCLUDE)
if(KeirinCudnn_FOUND AND NOT TARGET keirin_cudnn_headers)
  add_library(keirin_cudnn_headers INTERFACE)
  target_include_directories(keirin_cudnn_headers SYSTEM BEFORE INTERFACE ${KEIRIN_CUDNN_RUNTIME_INCLUDE}
                             ${KEIRIN_CUDNN_FRONTEND_INCLUDE} ${KEIRIN_CUDNN_INCLUDE} ${KEIRIN_CUDNN_CCCL_INCLUDE})
  target_compile_definitions(keirin_cudnn_headers INTERFACE NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
                             CUDNN_FRONTEND_SKIP_JSON_LIB)
endif()
