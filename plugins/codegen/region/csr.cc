// SPDX-License-Identifier: Apache-2.0
//
// A counting sort by destination. Runs may overlap: each takes its own reference to the arrays it uses.
#include "plugins/codegen/region/csr.h"

#include <cstring>
#include <mutex>

#include "plugins/codegen/kernel/rows.h"

namespace keirin::codegen {
namespace {

struct Arrays {
  std::vector<uint8_t> index;  // the bytes they were built from
  std::vector<int32_t> row_ptr, perm;
};

class HostCsr : public Step {
 public:
  explicit HostCsr(const Csr& csr) : csr_(csr), bytes_(csr.num_edges * dtype_bytes(csr.index_dtype)) {}

  krn_code run(const RunContext& context) const override {
    const char* index = static_cast<const char*>(context.buffers[csr_.index_buffer]) + csr_.index_offset * dtype_bytes(csr_.index_dtype);
    std::shared_ptr<const Arrays> arrays;
    {
      std::lock_guard lock(mutex_);
      arrays = kept_;
    }
    if (!arrays || std::memcmp(arrays->index.data(), index, bytes_) != 0) {
      arrays = build(index);
      if (!arrays) return KRN_STATUS_invalid_input;
      std::lock_guard lock(mutex_);
      kept_ = arrays;
    }
    context.buffers[csr_.row_ptr_buffer] = const_cast<int32_t*>(arrays->row_ptr.data());
    context.buffers[csr_.perm_buffer] = const_cast<int32_t*>(arrays->perm.data());
    context.keep->push_back(std::move(arrays));
    return KRN_STATUS_ok;
  }
  std::string describe() const override {
    return "csr of " + std::to_string(csr_.num_edges) + " edges into " + std::to_string(csr_.num_rows) + " rows";
  }

 private:
  int64_t at(const char* index, int64_t i) const {
    if (csr_.index_dtype == kDType_i32) return reinterpret_cast<const int32_t*>(index)[i];
    return reinterpret_cast<const int64_t*>(index)[i];
  }

  std::shared_ptr<const Arrays> build(const char* index) const {
    auto out = std::make_shared<Arrays>();
    out->index.assign(index, index + bytes_);
    out->row_ptr.assign(csr_.num_rows + 1, 0);
    out->perm.resize(csr_.num_edges);
    for (int64_t e = 0; e < csr_.num_edges; ++e) {
      int64_t row = at(index, e);
      if (row < 0 || row >= csr_.num_rows) return nullptr;
      ++out->row_ptr[row + 1];
    }
    for (int64_t r = 0; r < csr_.num_rows; ++r) out->row_ptr[r + 1] += out->row_ptr[r];
    std::vector<int32_t> next(out->row_ptr.begin(), out->row_ptr.end() - 1);
    for (int64_t e = 0; e < csr_.num_edges; ++e) out->perm[next[at(index, e)]++] = static_cast<int32_t>(e);
    return out;
  }

  Csr csr_;
  int64_t bytes_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Arrays> kept_;
};

}  // namespace

std::unique_ptr<Step> make_host_csr(const Csr& csr) { return std::make_unique<HostCsr>(csr); }

}  // namespace keirin::codegen
