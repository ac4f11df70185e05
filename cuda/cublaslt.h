// SPDX-License-Identifier: Apache-2.0
//
// The part of cuBLASLt's C API that the matmul anchor uses, opened at run time. Declared here in our own words, from its public
// documentation (cuBLAS 12 and 13), because its header comes only with a 400 MB package that building should not need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace keirin::cuda {

namespace lt {
enum : int32_t { kReal32F = 0, kReal64F = 1, kReal16F = 2, kReal16BF = 14 };                       // cudaDataType
enum : int32_t { kCompute32F = 68, kCompute32FFastTf32 = 77, kCompute64F = 70 };                  // cublasComputeType_t
enum : uint32_t { kEpilogueDefault = 1, kEpilogueRelu = 2, kEpilogueBias = 4, kEpilogueGelu = 32 };  // bits combine
enum : int { kDescTransA = 3, kDescTransB = 4, kDescEpilogue = 7, kDescBiasPointer = 8 };         // cublasLtMatmulDescAttributes_t
enum : int { kLayoutBatchCount = 5, kLayoutBatchStride = 6 };                                     // cublasLtMatrixLayoutAttribute_t
enum : int { kPreferenceMaxWorkspace = 1, kPreferenceMinAlignment = 5 };  // of A, then B, C, D; cublasLtMatmulPreferenceAttributes_t
enum : int32_t { kOpN = 0, kOpT = 1 };                                                            // cublasOperation_t

using Handle = struct handle_opaque*;
using Desc = struct desc_opaque*;
using Layout = struct layout_opaque*;
using Preference = struct preference_opaque*;
struct Algo {
  uint64_t data[8];
};
struct Heuristic {
  Algo algo;
  size_t workspace_bytes;
  int32_t state;  // 0: usable
  float waves;
  int32_t reserved[4];
};
}  // namespace lt

#define KRN_CUBLASLT(X)                                                                                                    \
  X(cublasLtCreate, int (*)(lt::Handle*))                                                                                  \
  X(cublasLtGetVersion, size_t (*)())                                                                                      \
  X(cublasLtMatmulDescCreate, int (*)(lt::Desc*, int32_t compute, int32_t scale_type))                                     \
  X(cublasLtMatmulDescSetAttribute, int (*)(lt::Desc, int, const void*, size_t))                                           \
  X(cublasLtMatmulDescDestroy, int (*)(lt::Desc))                                                                          \
  X(cublasLtMatrixLayoutCreate, int (*)(lt::Layout*, int32_t type, uint64_t rows, uint64_t cols, int64_t ld))              \
  X(cublasLtMatrixLayoutSetAttribute, int (*)(lt::Layout, int, const void*, size_t))                                       \
  X(cublasLtMatrixLayoutDestroy, int (*)(lt::Layout))                                                                      \
  X(cublasLtMatmulPreferenceCreate, int (*)(lt::Preference*))                                                              \
  X(cublasLtMatmulPreferenceSetAttribute, int (*)(lt::Preference, int, const void*, size_t))                               \
  X(cublasLtMatmulPreferenceDestroy, int (*)(lt::Preference))                                                              \
  X(cublasLtMatmulAlgoGetHeuristic, int (*)(lt::Handle, lt::Desc, lt::Layout, lt::Layout, lt::Layout, lt::Layout,          \
                                            lt::Preference, int, lt::Heuristic*, int*))                                    \
  X(cublasLtMatmul, int (*)(lt::Handle, lt::Desc, const void* alpha, const void* a, lt::Layout, const void* b, lt::Layout, \
                            const void* beta, const void* c, lt::Layout, void* d, lt::Layout, const lt::Algo*,             \
                            void* workspace, size_t workspace_bytes, void* stream))

struct CublasLt {
#define KRN_MEMBER(name, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
  KRN_CUBLASLT(KRN_MEMBER)
#undef KRN_MEMBER
  lt::Handle handle = nullptr;  // of the context that was current at the first call

  // The process's table, or null with the reason. The device's context must be current. Any thread.
  static const CublasLt* get(std::string& why_not);
};

}  // namespace keirin::cuda
