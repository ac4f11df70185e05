// SPDX-License-Identifier: Apache-2.0
//
// A library of products that is a loop in double on the host: what plugins/gpu says of a product (sizes, leading dimensions, batches,
// epilogue) is taken at its word and computed.
#pragma once

#include <cmath>
#include <memory>
#include <string>

#include "plugins/gpu/product.h"
#include "plugins/kit/tables.h"
#include "tests/unit/cpu/kernel_interpreter.h"

namespace keirin::test {

class HostProducts final : public gpu::ProductLibrary {
 public:
  bool usable(std::string&) const override { return true; }
  bool takes(uint8_t, std::string&) const override { return true; }
  std::unique_ptr<codegen::Step> make(const codegen::AnchorDesc& anchor, const gpu::ProductProblem& problem, bool, gpu::Pick,
                                      double* seconds) const override {
    if (seconds) *seconds = 0;
    ++made;
    return std::make_unique<Product>(anchor, problem);
  }
  mutable int made = 0;

 private:
  class Product final : public codegen::Step {
   public:
    Product(const codegen::AnchorDesc& anchor, const gpu::ProductProblem& problem) : anchor_(anchor), p_(problem) {}
    krn_code run(const codegen::RunContext& context) const override {
      const auto at = [](const gpu::Matrix& m, int64_t batch, int64_t row, int64_t column) {
        return batch * m.batch_stride + (m.transposed ? row * m.ld + column : column * m.ld + row);
      };
      const auto get = [&](const codegen::TensorDesc& t, int64_t element) {
        return read_element(context.buffers[t.buffer], t.offset + element, t.dtype).real;
      };
      const codegen::TensorDesc& y = anchor_.results[0];
      for (int64_t batch = 0; batch < p_.batch; ++batch)
        for (int64_t i = 0; i < p_.m; ++i)
          for (int64_t j = 0; j < p_.n; ++j) {
            double sum = p_.has_bias ? get(anchor_.operands[2], j) : 0;
            for (int64_t l = 0; l < p_.k; ++l)
              sum += get(anchor_.operands[0], at(p_.a, batch, i, l)) * get(anchor_.operands[1], at(p_.b, batch, l, j));
            for (const codegen::PostOp& post : anchor_.post_ops) {
              if (post.op == kit::kOp_add) sum += get(post.operand, at(p_.c, batch, i, j));
              else if (post.op == kit::kOp_relu) sum = std::fmax(sum, 0);
              else sum = 0.5 * sum * (1 + std::tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
            }
            write_element(context.buffers[y.buffer], y.offset + at(p_.d, batch, i, j), y.dtype, sum, 0);
          }
      return KRN_STATUS_ok;
    }
    std::string describe() const override { return "a product on the host"; }

   private:
    codegen::AnchorDesc anchor_;
    gpu::ProductProblem p_;
  };
};

}  // namespace keirin::test
