// SPDX-License-Identifier: Apache-2.0
//
// What host and worker need of a GPU to hand each other the arguments of a region: memory that both reach, copies, streams. The driver's
// functions are found by name at run time, so that neither is linked with a vendor. It works in the device's primary context, which is
// LibTorch's and the plugins' too, and leaves each thread with the context that it came with. Any thread. `exhausted` where the device has
// no memory, `device_lost` where the context is of no use any more, else `internal`.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/host/find/hardware.h"
#include "core/host/guard/fork_count.h"

namespace keirin {

class DeviceDriver;

// Memory of the device: this process's own, or another's that was opened here. Giving it back waits for what the device does with it.
class DeviceMemory {
 public:
  DeviceMemory(std::shared_ptr<const DeviceDriver> driver, char* data, uint64_t bytes, bool opened)
      : driver_(std::move(driver)), data_(data), bytes_(bytes), opened_(opened) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  char* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  const std::shared_ptr<const DeviceDriver> driver_;
  char* const data_;
  const uint64_t bytes_;
  const bool opened_;
};
using DeviceMemoryRef = std::shared_ptr<DeviceMemory>;

class DeviceDriver : public std::enable_shared_from_this<DeviceDriver> {
 public:
  // Another process opens the memory by it, while this one holds it.
  using Handle = std::array<uint8_t, 64>;
  // What is lent to another process takes whole ones: the driver lends the pages in which memory lies, and beside it nothing of ours may.
  static constexpr uint64_t kLentUnit = 2 << 20;

  // The process's, of that GPU; it is started if it was not. `unsupported`, with the reason, where there is none or it cannot do this.
  static Result<std::shared_ptr<DeviceDriver>> of(const HardwareItem& item);
  ~DeviceDriver();
  Device device() const { return device_; }

  Result<DeviceMemoryRef> allocate(uint64_t bytes) const;
  Result<Handle> lend(const DeviceMemory& memory) const;
  Result<DeviceMemoryRef> open(const Handle& handle, uint64_t bytes) const;

  // Memory of the host that the device reads and writes by itself, so that `read` and `write` of it wait for nothing. What is returned
  // holds it until it is given back itself, after the last copy that needs it.
  Result<std::shared_ptr<void>> pin(std::shared_ptr<void> memory, uint64_t bytes) const;

  // A stream of this process, for its life; what LibTorch's default stream was given before comes first.
  uint64_t own_stream() const { return own_stream_; }
  // On a stream, in its order; none waits. `read` is done at the next wait().
  Status copy(void* to, const void* from, uint64_t bytes, uint64_t stream) const;
  Status read(void* to_host, const void* from, uint64_t bytes, uint64_t stream) const;
  Status write(void* to, const void* from_host, uint64_t bytes, uint64_t stream) const;
  // Rows that lie `pitch` bytes apart, to where they lie side by side.
  Status write_rows(void* to, const void* from_host, uint64_t pitch, uint64_t width, uint64_t rows, uint64_t stream) const;
  Status fill(void* at, uint8_t value, uint64_t bytes, uint64_t stream) const;
  Status wait(uint64_t stream) const;
  bool is_recorded(uint64_t stream) const;  // what it is given is written down and not done

  // A point in a stream that another one may wait for.
  class Point {
   public:
    explicit Point(std::shared_ptr<const DeviceDriver> driver) : driver_(std::move(driver)) {}
    ~Point();
    Point(const Point&) = delete;
    Status reached_by(uint64_t stream);       // where that stream stands now
    Status awaited_by(uint64_t stream) const;  // nothing, if no stream is to reach it or that one itself is
    bool is_reached() const;
    Status wait() const;  // until it is
    // Another process's streams wait for it, too, where it opens it. Before it is first reached.
    Result<Handle> lend();
    Status open(const Handle& handle);

   private:
    const std::shared_ptr<const DeviceDriver> driver_;
    Status make(unsigned flags);
    void* event_ = nullptr;
    uint64_t stream_ = 0;
    bool opened_ = false;  // another process's
  };

  // Of the device, which others use too; 0 where the driver does not tell.
  struct Bytes {
    uint64_t free = 0, all = 0;
  };
  Bytes bytes() const;

 private:
  friend class DeviceMemory;
  struct Functions;
  class Use;
  DeviceDriver() = default;
  Status failed(int result, const char* what) const;

  const uint64_t forks_ = fork_count();  // a forked copy of the process gives nothing back: the driver knows it not
  std::unique_ptr<Functions> functions_;
  std::string uid_;
  Device device_;
  void* context_ = nullptr;
  uint64_t own_stream_ = 0;
};

}  // namespace keirin
