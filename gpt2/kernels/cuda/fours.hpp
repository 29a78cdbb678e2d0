#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cuda/launch.hpp"
#include "gpt2/kernels/dropout_mask.hpp"

/// @file
/// Four neighbouring elements a thread: one access of 16 bytes to memory, and one call of Philox. For .cu files only.

namespace rankwise {

/// Four neighbouring elements in registers or in shared memory.
struct alignas(16) Four {
  float at[4];  ///< the elements
};

/// Whether a Four may be read or written there at once.
__device__ inline bool takes_four(const float* memory, std::int64_t count)
{
  return count >= 4 && reinterpret_cast<std::uintptr_t>(memory) % sizeof(Four) == 0;
}

/// The first four elements of the @p count that stand at @p from; zero for those that are not there.
__device__ inline Four load_four(const float* from, std::int64_t count)
{
  if (takes_four(from, count)) return *reinterpret_cast<const Four*>(from);
  Four four{};
  for (int i = 0; i < 4; ++i)
    if (i < count) four.at[i] = from[i];
  return four;
}

/// Writes the elements for which there is room in the @p count that stand at @p to.
__device__ inline void store_four(float* to, const Four& four, std::int64_t count)
{
  if (takes_four(to, count)) {
    *reinterpret_cast<Four*>(to) = four;
    return;
  }
  for (int i = 0; i < 4; ++i)
    if (i < count) to[i] = four.at[i];
}

/// Which elements of (R, C) a thread takes: channels @p channel ... channel + 3 of row @p row, as far as there are any.
struct FourPlace {
  std::int64_t row;      ///< of R
  std::int64_t channel;  ///< of C, a multiple of 4
  std::int64_t index;    ///< row C + channel
  std::int64_t count;    ///< elements from there to the end of the row, >= 1
};

/// Thread i calls f for the i-th four of (R, C), row by row, and for every (threads of the grid)-th after it.
template <class F>
__global__ void call_for_each_four(std::int64_t R, std::int64_t C, F f)
{
  const std::int64_t fours = divided_up(C, 4);
  for (std::int64_t i = thread_number(); i < R * fours; i += thread_count()) {
    const std::int64_t row = i / fours, channel = i % fours * 4;
    f(FourPlace{row, channel, row * C + channel, C - channel});
  }
}

/// Calls f(FourPlace) once for every four elements of (R, C).
/// @param f  a lambda that begins with `[=] __device__`.
template <class F>
void for_each_four(cudaStream_t stream, std::int64_t R, std::int64_t C, F f,
                   SourceLocation where = SourceLocation::current())
{
  launch(grid_over(stream, R * divided_up(C, 4), where), call_for_each_four<F>, R, C, f);
}

/// The factors of dropout on an activation (R, C), four at a time.
class RowDropout {
 public:
  /// @param dropout  rate, key and rows.
  explicit RowDropout(const Dropout& dropout)
      : mask_(dropout), tokens_(dropout.rows.tokens.count), active_(dropout.active())
  {
  }
  /// Multiplies four elements by theirs.
  __device__ void apply(Four& four, const FourPlace& place) const
  {
    if (!active_) return;
    const std::array<double, 4> factors = mask_.factors(place.row / tokens_, place.row % tokens_, 0, place.channel);
    for (std::size_t i = 0; i < 4; ++i) four.at[i] *= static_cast<float>(factors[i]);
  }

 private:
  DropoutMask mask_;
  std::int64_t tokens_;
  bool active_;
};

}  // namespace rankwise
