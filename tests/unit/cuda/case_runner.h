// SPDX-License-Identifier: Apache-2.0
//
// Random inputs for a kernel case, its expected outputs from the interpreter, and the comparison. Shared by the emulated run and
// the run on a device; buffers have red zones, so a store that leaves one is found.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/unit/cpu/kernel_maker.h"
#include "tests/unit/cuda/kernel_cases.h"

namespace keirin::test {

struct CaseBuffers {
  std::vector<Storage> got, want;

  explicit CaseBuffers(const KernelCase& c) {
    std::mt19937 random(7);
    const std::vector<int64_t> elements = extents(c.kernel, 1);
    for (size_t i = 0; i < c.kernel.buffers.size(); ++i) {
      const uint8_t dtype = c.kernel.buffers[i].dtype;
      got.emplace_back(dtype, elements[i]);
      if (c.kernel.buffers[i].written) continue;
      got.back().fill_random(random, c.index_below);
      if (!c.positive || !is_real(dtype)) continue;
      for (int64_t e = 0; e < elements[i]; ++e)
        write_element(got.back().data(), e, dtype, std::fabs(read_element(got.back().data(), e, dtype).real) / 4 + 0.5, 0);
    }
    want = got;
    std::vector<void*> pointers;
    for (Storage& s : want) pointers.push_back(s.data());
    interpret(c.kernel, pointers.data(), c.rows.data(), c.order.data());
  }

  // Empty, or the first difference.
  std::string difference(const KernelCase& c) {
    for (size_t b = 0; b < got.size(); ++b) {
      if (!got[b].zones_intact()) return "wrote outside buffer " + std::to_string(b);
      const uint8_t dtype = got[b].dtype();
      const double relative = dtype == kBf16 ? 1.0 / 128 : dtype == kF16 ? 1.0 / 1024 : dtype == kF64 ? 1e-9 : 4e-6;
      const double absolute = dtype == kF64 ? 1e-12 : dtype == kF16 ? 1e-5 : 1e-6;
      for (int64_t e = 0; e < got[b].elements(); ++e) {
        const Number g = read_element(got[b].data(), e, dtype), w = read_element(want[b].data(), e, dtype);
        const bool same = is_real(dtype) ? g.real == w.real || (std::isnan(g.real) && std::isnan(w.real)) ||
                                               std::fabs(g.real - w.real) <= c.loosen * (absolute + relative * std::fabs(w.real))
                                         : g.whole == w.whole;
        if (!same)
          return "buffer " + std::to_string(b) + " dtype " + std::to_string(dtype) + " element " + std::to_string(e) + ": " +
                 (is_real(dtype) ? std::to_string(g.real) + ", not " + std::to_string(w.real)
                                 : std::to_string(g.whole) + ", not " + std::to_string(w.whole));
      }
    }
    return "";
  }
};

}  // namespace keirin::test
