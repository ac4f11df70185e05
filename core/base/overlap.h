// SPDX-License-Identifier: Apache-2.0
//
// Do two tensors share memory? A write to one is then seen in the other, which callers, guards and the importer must know. Decided
// from addresses and strides alone, so it holds for whatever made the tensors.
#pragma once

#include <cstdint>
#include <utility>

#include "core/base/tensor.h"

namespace keirin {

// Where the elements of a strided tensor lie: [begin, end) of the addresses that its elements touch; empty without elements.
std::pair<uintptr_t, uintptr_t> byte_range(const Tensor& tensor);

// Whether the ranges meet: never false for tensors that share an element. Two comparisons once both ranges are known.
bool ranges_meet(const Tensor& a, const Tensor& b);

// Whether an element is shared, or a part of one. Exact, and quick, for views whose axes nest (what slices, permutations and reshapes of
// dense memory give), however large; where others would take more than 65,536 looks, the answer is that of `ranges_meet`.
bool shares_elements(const Tensor& a, const Tensor& b);

// Whether every element of `part` is an element of `whole`. False where that cannot be told: other element sizes, axes of `whole` that do
// not nest, more than 65,536 elements along axes that are none of `whole`'s, with gaps in it.
bool covers(const Tensor& whole, const Tensor& part);

// Same first element, sizes, strides and dtype: writing one writes the other, element for element.
bool same_elements(const Tensor& a, const Tensor& b);

// Equal strides along every axis with more than one element. Strides of the others, and of empty tensors, are seen by nobody.
bool same_strides(const Tensor& a, const Tensor& b);

}  // namespace keirin
