// SPDX-License-Identifier: Apache-2.0
//
// What the host does on a GPU, in place of LibTorch, which no check needs: its context, memory, copies, streams. It calls the driver's
// functions by name, found at run time; a vendor whose devices are to be certified adds a column to `KRN_CERTIFY_DRIVER` (gpu.cc). A
// process has one of these, of the device under certification. Any thread; every function may wait for the device unless it says otherwise,
// and throws Failed where the driver answers an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "abi/plugin.h"
#include "core/host/find/hardware.h"

namespace keirin::certify {

class Gpu {
 public:
  using Stream = void*;

  // The process's, or null where the checks reach memory of the host. `use` throws NotRun where the device cannot be had; a second call
  // for the same item does nothing.
  static Gpu* here();
  static void use(const HardwareItem& item);

  // What is given back by destroying it.
  class Block {
   public:
    Block() = default;
    Block(char* data, std::function<void()> end) : data_(data), end_(std::move(end)) {}
    Block(Block&& other) noexcept : data_(other.data_), end_(std::exchange(other.end_, nullptr)) {}
    Block& operator=(Block&&) = delete;
    ~Block() {
      if (end_) end_();
    }
    char* data() const { return data_; }

   private:
    char* data_ = nullptr;
    std::function<void()> end_;
  };
  Block allocate(size_t bytes);
  // Memory of whole pages, behind whose last byte and before whose first there is none. Throws NotRun where the driver has no such memory.
  Block allocate_between(size_t bytes, size_t& usable);
  void write(void* to, const void* from, size_t bytes);
  void read(void* to, const void* from, size_t bytes);
  // Waits for all work of the process. Throws Failed where some of it ended in an error.
  void wait(const char* after);

  // Of krn_run and of krn.replay: the stream of this process's own, which waits for no other.
  krn_stream stream(uint32_t flags = 0) const { return stream_of(own_, flags); }
  krn_stream stream_of(Stream stream, uint32_t flags = 0) const;
  Stream own() const { return own_; }
  Stream make_stream();  // for the life of the process
  // Of these none waits. `then` runs in the stream's order, on a thread of the driver's, and may not call the driver.
  void call_on(Stream stream, void (*then)(void*), void* context);
  void copy_on(Stream stream, void* to, const void* from, size_t bytes);
  bool is_done(Stream stream, int milliseconds);  // whether it is, at the latest after so long
  // What `work` puts on the own stream, recorded. Launched as often as asked for; for the life of the process. Throws NotRun where the
  // driver records nothing.
  std::function<void()> record(const std::function<void()>& work);
  void* current_context() const;  // the calling thread's
  // Bytes of the device that nobody has, in this process or another; 0 where the driver does not tell.
  uint64_t free_bytes() const;

  void label(krn_tensor& tensor) const;  // as memory of this device
  int32_t type() const { return type_; }

 private:
  struct Driver;
  Gpu() = default;
  void make_current() const;
  void check(int result, const char* function) const;

  std::unique_ptr<Driver> driver_;
  std::string uid_;
  int32_t type_ = 0, index_ = 0;  // as DLPack and LibTorch have it
  uint32_t kind_ = 0;             // KRN_STREAM_KIND_*
  int device_ = 0;                // as the driver does
  void* context_ = nullptr;
  Stream own_ = nullptr;
};

}  // namespace keirin::certify
