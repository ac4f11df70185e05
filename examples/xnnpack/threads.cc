// SPDX-License-Identifier: Apache-2.0
//
// The loops of XNNPACK on the host's threads. XNNPACK runs each operator as a loop over up to six axes, the last ones in tiles, and calls a
// function of its thread pool for it. This library has functions of those names, which hand the loop to `krn.host.threads`. It needs
// XNNPACK and is opened with RTLD_DEEPBIND: what it brings looks for names here first, so that XNNPACK, and nobody else in the process,
// gets these. A pool of XNNPACK's own would be a second set of threads beside those of the host, which still spin when XNNPACK begins.
#include "threads.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace {

// `call` gets the thread's number, where the tile begins on each axis, and how long it is on the last `kTiles` of them.
template <size_t kAxes, size_t kTiles, class Call>
class Loop {
 public:
  // Ranges of all axes, then the tiles of the last ones.
  Loop(Call call, const std::array<size_t, kAxes + kTiles>& words) : call_(call) {
    for (size_t d = 0; d < kAxes; ++d) {
      range_[d] = words[d];
      tile_[d] = d < kAxes - kTiles ? 1 : words[d + kTiles];
      tiles_[d] = (range_[d] + tile_[d] - 1) / tile_[d];
    }
  }

  void run(pthreadpool* pool) {
    size_t all = 1;
    for (const size_t tiles : tiles_) all *= tiles;
    if (!pool || all <= 1) part(this, 0, static_cast<int64_t>(all), 0);
    else pool->table->parallel_for(pool->host, static_cast<int64_t>(all), 1, part, this);
  }

 private:
  static void KRN_CALL part(void* ctx, int64_t begin, int64_t end, int32_t thread) {
    const Loop& loop = *static_cast<const Loop*>(ctx);
    std::array<size_t, kAxes> at{}, length{};
    auto rest = static_cast<size_t>(begin);
    for (size_t d = kAxes; d-- > 0;) at[d] = rest % loop.tiles_[d] * loop.tile_[d], rest /= loop.tiles_[d];
    for (int64_t k = begin; k < end; ++k) {
      for (size_t d = 0; d < kAxes; ++d) length[d] = std::min(loop.tile_[d], loop.range_[d] - at[d]);
      loop.call_(static_cast<size_t>(thread), at, length);
      for (size_t d = kAxes; d-- > 0;) {
        at[d] += loop.tile_[d];
        if (at[d] < loop.range_[d]) break;
        at[d] = 0;
      }
    }
  }

  const Call call_;
  std::array<size_t, kAxes> range_{}, tile_{}, tiles_{};
};

template <size_t kTiles, class Task, size_t kAxes, size_t... kAxis, size_t... kTile>
void spread(const Task& task, const std::array<size_t, kAxes>& at, const std::array<size_t, kAxes>& length, std::index_sequence<kAxis...>,
            std::index_sequence<kTile...>) {
  task(at[kAxis]..., length[kAxes - kTiles + kTile]...);
}

// `task` gets the thread's number and then what XNNPACK's function gets after everything else.
template <size_t kAxes, size_t kTiles, class Task>
void run(pthreadpool* pool, const Task& task, const std::array<size_t, kAxes + kTiles>& words) {
  const auto call = [&task](size_t thread, const std::array<size_t, kAxes>& at, const std::array<size_t, kAxes>& length) {
    spread<kTiles>([&](auto... numbers) { task(thread, numbers...); }, at, length, std::make_index_sequence<kAxes>(),
                   std::make_index_sequence<kTiles>());
  };
  Loop<kAxes, kTiles, decltype(call)>(call, words).run(pool);
}

}  // namespace

#define TYPES_1 size_t
#define TYPES_2 TYPES_1, size_t
#define TYPES_3 TYPES_2, size_t
#define TYPES_4 TYPES_3, size_t
#define TYPES_5 TYPES_4, size_t
#define TYPES_6 TYPES_5, size_t
#define TYPES_7 TYPES_6, size_t
#define TYPES_8 TYPES_7, size_t
#define WORDS_1 size_t a
#define WORDS_2 WORDS_1, size_t b
#define WORDS_3 WORDS_2, size_t c
#define WORDS_4 WORDS_3, size_t d
#define WORDS_5 WORDS_4, size_t e
#define WORDS_6 WORDS_5, size_t f
#define WORDS_7 WORDS_6, size_t g
#define WORDS_8 WORDS_7, size_t h
#define NAMES_1 a
#define NAMES_2 NAMES_1, b
#define NAMES_3 NAMES_2, c
#define NAMES_4 NAMES_3, d
#define NAMES_5 NAMES_4, e
#define NAMES_6 NAMES_5, f
#define NAMES_7 NAMES_6, g
#define NAMES_8 NAMES_7, h

// A loop in the four ways in which XNNPACK asks for it: plain, with the kind of the core that runs it (all are the default kind here), with
// the number of the thread, and with both. `words` is how many numbers the task gets, which is as many as the caller gives.
#define LOOP(name, axes, tiles, words)                                                                                                    \
  void pthreadpool_parallelize_##name(pthreadpool* pool, void (*task)(void*, TYPES_##words), void* ctx, WORDS_##words, uint32_t) {       \
    run<axes, tiles>(pool, [=](size_t, auto... at) { task(ctx, at...); }, {NAMES_##words});                                              \
  }                                                                                                                                       \
  void pthreadpool_parallelize_##name##_with_thread(pthreadpool* pool, void (*task)(void*, size_t, TYPES_##words), void* ctx,            \
                                                    WORDS_##words, uint32_t) {                                                            \
    run<axes, tiles>(pool, [=](size_t thread, auto... at) { task(ctx, thread, at...); }, {NAMES_##words});                               \
  }                                                                                                                                       \
  void pthreadpool_parallelize_##name##_with_uarch(pthreadpool* pool, void (*task)(void*, uint32_t, TYPES_##words), void* ctx,           \
                                                   uint32_t kind, uint32_t, WORDS_##words, uint32_t) {                                    \
    run<axes, tiles>(pool, [=](size_t, auto... at) { task(ctx, kind, at...); }, {NAMES_##words});                                        \
  }                                                                                                                                       \
  void pthreadpool_parallelize_##name##_with_uarch_with_thread(pthreadpool* pool, void (*task)(void*, uint32_t, size_t, TYPES_##words),  \
                                                               void* ctx, uint32_t kind, uint32_t, WORDS_##words, uint32_t) {            \
    run<axes, tiles>(pool, [=](size_t thread, auto... at) { task(ctx, kind, thread, at...); }, {NAMES_##words});                         \
  }

extern "C" {
size_t pthreadpool_get_threads_count(pthreadpool* pool) { return pool ? static_cast<size_t>(pool->num_threads) : 1; }
LOOP(1d, 1, 0, 1)
LOOP(1d_tile_1d, 1, 1, 2)
LOOP(2d, 2, 0, 2)
LOOP(2d_tile_1d, 2, 1, 3)
LOOP(2d_tile_2d, 2, 2, 4)
LOOP(3d, 3, 0, 3)
LOOP(3d_tile_1d, 3, 1, 4)
LOOP(3d_tile_2d, 3, 2, 5)
LOOP(4d, 4, 0, 4)
LOOP(4d_tile_1d, 4, 1, 5)
LOOP(4d_tile_2d, 4, 2, 6)
LOOP(5d, 5, 0, 5)
LOOP(5d_tile_1d, 5, 1, 6)
LOOP(5d_tile_2d, 5, 2, 7)
LOOP(6d, 6, 0, 6)
LOOP(6d_tile_1d, 6, 1, 7)
LOOP(6d_tile_2d, 6, 2, 8)
}
