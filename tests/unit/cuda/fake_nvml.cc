// SPDX-License-Identifier: Apache-2.0
//
// NVML as a test tells it to be: which processes work on the one GPU there is, and how much. Like the real one it refuses a list that is
// shorter than what it may have, whatever it has.
#include <cstdint>

struct Process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
struct Sample {
  unsigned pid;
  unsigned long long time_us;
  unsigned units, memory, encoder, decoder;
};

#define KRN_FAKE __attribute__((visibility("default")))

extern "C" {
KRN_FAKE unsigned fake_num = 0, fake_room = 72;
KRN_FAKE unsigned fake_pids[8] = {}, fake_units[8] = {};
KRN_FAKE unsigned long long fake_since_us = 0;

KRN_FAKE int nvmlInit_v2() { return 0; }
KRN_FAKE int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  *device = &fake_num;
  return 0;
}
KRN_FAKE int nvmlDeviceGetClockInfo(void*, int, unsigned* mhz) {
  *mhz = 1500;
  return 0;
}
KRN_FAKE int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = 0x4;  // a power limit that it works at
  return 0;
}
KRN_FAKE int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, Process* out) {
  if (*count < fake_room) {
    *count = fake_room;
    return 7;
  }
  for (unsigned i = 0; i < fake_num; ++i) out[i] = {fake_pids[i], 1 << 20, 0, 0};
  *count = fake_num;
  return 0;
}
KRN_FAKE int nvmlDeviceGetProcessUtilization(void*, Sample* out, unsigned* count, unsigned long long since_us) {
  fake_since_us = since_us;
  if (!out || *count < fake_room) {
    *count = fake_room;
    return 7;
  }
  unsigned n = 0;
  for (unsigned i = 0; i < fake_num; ++i)
    if (fake_units[i]) out[n++] = {fake_pids[i], since_us + 1, fake_units[i], 0, 0, 0};
  *count = n;
  return n ? 0 : 6;
}

}  // extern "C"
