// SPDX-License-Identifier: Apache-2.0
//
// A vendor's library of matrix products of the kind that takes descriptors and proposes algorithms ("Lt" in their names), opened at run
// time. Vendors' differ in their functions' prefix, their numbers and the sizes of what they fill in: that is a `Vendor`, and all else
// is here and in lt_product.h. Declared in our own words, because the headers come with packages that building should not need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "plugins/gpu/driver.h"

namespace keirin::gpu::lt {

using Handle = struct HandleOpaque*;
using Desc = struct DescOpaque*;
using Layout = struct LayoutOpaque*;
using Preference = struct PreferenceOpaque*;
struct Algo {
  uint64_t data[8];  // as long as the longest
};

enum : uint32_t { kEpilogueDefault = 1, kEpilogueRelu = 2, kEpilogueBias = 4, kEpilogueGelu = 32 };  // bits combine; every vendor's

// Numbers of data types, of precisions of a sum, of transposition, and of attributes; -1: the vendor has none.
struct Vendor {
  const char* name;                // in a step's text
  const char* prefix;              // of the functions
  std::vector<const char*> files;  // in the order in which they are tried
  const char* how_to_get;
  struct {
    int32_t f32, f64, f16, bf16;
  } types;
  struct {
    int32_t f32, tf32, f64;
  } sums;
  int32_t as_is, transposed;
  int transpose_a, transpose_b, epilogue, bias_address, bias_type;  // of a product
  int batch_count, batch_stride;                                    // of a matrix
  int most_workspace, least_alignment;                              // of a preference; the second of A, then B, C, D
  size_t algo_bytes;                                                // in what the heuristic fills in
  size_t desc_bytes;                                                // of a descriptor that may be copied byte by byte; 0: none may
  bool takes_all;                                                   // every float type on every device
  int unsupported;                                                  // the status that says so
  // For the key of remembered choices. Empty if this release cannot be used, with the reason.
  std::string (*version)(void* library, Handle handle, std::string& why_not);
  const Driver& (*driver)();
};

#define KRN_LT(X)                                                                                                          \
  X(Create, int (*)(Handle*))                                                                                              \
  X(MatmulDescCreate, int (*)(Desc*, int32_t sums, int32_t scale_type))                                                    \
  X(MatmulDescSetAttribute, int (*)(Desc, int, const void*, size_t))                                                       \
  X(MatmulDescDestroy, int (*)(Desc))                                                                                      \
  X(MatrixLayoutCreate, int (*)(Layout*, int32_t type, uint64_t rows, uint64_t cols, int64_t ld))                          \
  X(MatrixLayoutSetAttribute, int (*)(Layout, int, const void*, size_t))                                                   \
  X(MatrixLayoutDestroy, int (*)(Layout))                                                                                  \
  X(MatmulPreferenceCreate, int (*)(Preference*))                                                                          \
  X(MatmulPreferenceSetAttribute, int (*)(Preference, int, const void*, size_t))                                           \
  X(MatmulPreferenceDestroy, int (*)(Preference))                                                                          \
  X(MatmulAlgoGetHeuristic, int (*)(Handle, Desc, Layout, Layout, Layout, Layout, Preference, int, void* found, int*))     \
  X(Matmul, int (*)(Handle, Desc, const void* alpha, const void* a, Layout, const void* b, Layout, const void* beta,       \
                    const void* c, Layout, void* d, Layout, const void* algo, void* workspace, size_t workspace_bytes,     \
                    void* stream))

// An algorithm that the library proposes.
struct Guess {
  Algo algo{};
  size_t workspace_bytes = 0;
};

// What problems have that were asked about.
struct KnownGuesses {
  std::mutex mutex;  // guards the rest
  std::map<std::string, std::optional<Guess>> first;  // the library's, by the problem's key; empty where it has none
  std::map<std::string, Guess> of_such_sizes;         // the last that was timed, else asked for, by the key of such sizes
};

// The functions, without their prefix.
struct Table {
#define KRN_MEMBER(name, ...) std::type_identity_t<__VA_ARGS__> name = nullptr;
  KRN_LT(KRN_MEMBER)
#undef KRN_MEMBER
  const Vendor* vendor = nullptr;
  Handle handle = nullptr;  // of the context that was current when the library was opened
  std::string version;
  std::shared_ptr<KnownGuesses> known = std::make_shared<KnownGuesses>();
  // Whether the library runs an algorithm for a problem; null where it does not say. The last: what the heuristic fills in, for one.
  int (*MatmulAlgoCheck)(Handle, Desc, Layout a, Layout b, Layout c, Layout d, const void* algo, void* found) = nullptr;

  // At most `most`, in the library's order; none where it has none. Throws nothing.
  std::vector<Guess> guesses(Desc desc, Layout a, Layout b, Layout c, Layout d, Preference preference, int most) const;
  // Another problem's algorithm for this one; nothing where it cannot be, or needs more than `most_workspace` bytes. Throws nothing.
  std::optional<Guess> checked(Desc desc, Layout a, Layout b, Layout c, Layout d, const Algo& algo, size_t most_workspace) const;
};

// A library, opened when it is first asked for; the device's context must be current. Any thread.
class Opened {
 public:
  explicit Opened(const Vendor& vendor);
  const Table* table(std::string& why_not) const {
    why_not = why_not_;
    return ok_ ? &table_ : nullptr;
  }

 private:
  Table table_;
  std::string why_not_;
  bool ok_ = false;
};

}  // namespace keirin::gpu::lt
