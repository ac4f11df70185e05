// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's memory, copies, threads and streams behind the core's interface. No torch in this header.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/services.h"

namespace keirin {

// Any number may exist; they share LibTorch's allocators and its thread pool. The first one installs a counting layer
// over LibTorch's CPU allocator, which is what peak_bytes reads on the CPU.
std::unique_ptr<TensorServices> make_tensor_services();

// Makes the device usable: loads LibTorch's GPU library on first need. `unsupported` if this LibTorch has none or the
// device is not there.
Status ensure_device(Device device);
// LibTorch's devices that can be used here, the CPU first. Loads its GPU library, if there is one. Any thread.
std::vector<Device> devices_here();
// "no such device: cuda:3; available: cpu, cuda:0": the one text for it. `others` are names that stand for no device of LibTorch's.
std::string no_device_text(const std::string& name, const std::vector<std::string>& others = {});

// Runs `fn` with this native handle (cudaStream_t, hipStream_t) as the calling thread's current stream of the device, then puts the former
// one back. `unsupported` on the CPU, and where LibTorch does not take the handle for the stream that it is; `fn` did not run then.
Status on_stream(Device device, void* handle, const std::function<Status()>& fn);

// Whether two tensors of equal dtype and sizes have the same bits in every element, whatever their strides.
Result<bool> same_bits(const TensorRef& a, const TensorRef& b);

// Where calls wrote in a large buffer, so that it is compared by what they wrote. Null `mask`: not known.
struct ChangedPlaces {
  bool most = false;        // half of it at least: it is compared as a whole
  TensorRef before;         // what the buffer held
  TensorRef mask, indices;  // bools of its sizes; the same as numbers of elements, row-major
};
// Of tensors of the sizes of `before`: the elements at places where one of them differs from it, in bits or, in another dtype, in value;
// the same places of each, as one axis. The tensors themselves where that is half of all at least, and where their sizes are others.
// `places`: if asked for.
Result<std::vector<TensorRef>> changed_elements(const TensorRef& before, const std::vector<TensorRef>& tensors,
                                                ChangedPlaces* places = nullptr);
// Of each tensor the elements at its places. Null where they are not known, where it is of another dtype or of other sizes than `before`,
// and where it differs from that elsewhere as well. The lists are parallel; the device is waited for once.
Result<std::vector<TensorRef>> elements_within(std::span<const ChangedPlaces> places, std::span<const TensorRef> tensors);

// What else than its arguments decides how LibTorch's operators compute on the device, as one word: deterministic algorithms, the
// precision of f32 products and convolutions, autocast and its dtype, the default dtype. Equal words, equal answers. Any thread.
uint64_t numeric_modes(Device device);

// The generators that operators on the device draw from when the caller names none: LibTorch's of the CPU, and the device's own.
// Shared by the whole process: whoever sets a state changes what every other thread draws next.
struct RandomState {
  std::vector<std::vector<uint8_t>> generators;
  bool operator==(const RandomState&) const = default;
};
Result<RandomState> random_state(Device device);
Status set_random_state(Device device, const RandomState& state);

}  // namespace keirin
