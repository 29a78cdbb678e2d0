#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cuda/launch.hpp"
#include "gpt2/kernels/cuda/gpu_types.hpp"
#include "gpt2/kernels/cuda/rounding.hpp"
#include "gpt2/kernels/dropout_mask.hpp"

/// @file
/// Some neighbouring elements a thread, f32 or bf16: accesses of 16 bytes to memory, computation in f32. For .cu files
/// only.

namespace rankwise {

/// N neighbouring elements in registers or in shared memory, as f32.
template <int N>
struct alignas(16) Pack {
  float at[N];  ///< the elements

  /// Adds the elements of another one to these.
  __device__ Pack& operator+=(const Pack& other)
  {
    for (int i = 0; i < N; ++i) at[i] += other.at[i];
    return *this;
  }
};

/// How many elements of type T one access of 16 bytes moves: the Pack of a kernel that works on them.
template <class T>
constexpr int pack_size = static_cast<int>(16 / sizeof(T));

/// Some words that move at once.
template <int bytes>
struct alignas(bytes) [[gnu::may_alias]] Words {
  std::uint32_t at[bytes / 4];  ///< the words
};

/// How N elements of type T move: in accesses of at most 16 bytes.
template <int N, class T>
struct PackAccess {
  static constexpr int bytes = std::min(16, static_cast<int>(N * sizeof(T)));  ///< of one access
  static constexpr int count = static_cast<int>(N * sizeof(T)) / bytes;        ///< of accesses
  static constexpr int elements = N / count;                                   ///< of one access
  using Element = T;                                                           ///< what is moved
};

/// Whether a Pack<N> may be read or written there at once.
template <int N, class T>
__device__ bool takes_pack(const T* memory, std::int64_t count)
{
  return count >= N && reinterpret_cast<std::uintptr_t>(memory) % PackAccess<N, T>::bytes == 0;
}

/// Puts the elements of @p words into @p to.
template <int bytes>
__device__ void unpack(float* to, const Words<bytes>& words, float)
{
  for (int i = 0; i < bytes / 4; ++i) to[i] = std::bit_cast<float>(words.at[i]);
}
/// The same of bf16.
template <int bytes>
__device__ void unpack(float* to, const Words<bytes>& words, bf16)
{
  for (int i = 0; i < bytes / 4; ++i) {
    to[2 * i] = lower_of(words.at[i]);
    to[2 * i + 1] = upper_of(words.at[i]);
  }
}
/// Puts elements of @p from into @p words.
template <int bytes>
__device__ void pack_up(Words<bytes>& words, const float* from, float)
{
  for (int i = 0; i < bytes / 4; ++i) words.at[i] = std::bit_cast<std::uint32_t>(from[i]);
}
/// The same as bf16, rounded.
template <int bytes>
__device__ void pack_up(Words<bytes>& words, const float* from, bf16)
{
  for (int i = 0; i < bytes / 4; ++i) words.at[i] = rounded_pair(from[2 * i], from[2 * i + 1]);
}

/// The first N elements of the @p count that stand at @p from; zero for those that are not there.
template <int N, class T>
__device__ Pack<N> load_pack(const T* from, std::int64_t count)
{
  using Access = PackAccess<N, T>;
  Pack<N> pack{};
  if (takes_pack<N>(from, count)) {
    for (int i = 0; i < Access::count; ++i) {
      const Words<Access::bytes> words = reinterpret_cast<const Words<Access::bytes>*>(from)[i];
      unpack(pack.at + i * Access::elements, words, T());
    }
    return pack;
  }
  for (int i = 0; i < N; ++i)
    if (i < count) pack.at[i] = static_cast<float>(from[i]);
  return pack;
}

/// Writes the elements for which there is room in the @p count that stand at @p to, rounded.
template <int N, class T>
__device__ void store_pack(T* to, const Pack<N>& pack, std::int64_t count)
{
  using Access = PackAccess<N, T>;
  if (takes_pack<N>(to, count)) {
    for (int i = 0; i < Access::count; ++i) {
      Words<Access::bytes> words;
      pack_up(words, pack.at + i * Access::elements, T());
      reinterpret_cast<Words<Access::bytes>*>(to)[i] = words;
    }
    return;
  }
  for (int i = 0; i < N; ++i)
    if (i < count) to[i] = rounded_to<T>(pack.at[i]);
}

/// Which elements of (R, C) a thread takes: channels @p channel ... channel + N - 1 of row @p row, as far as there are any.
struct PackPlace {
  std::int64_t row;      ///< of R
  std::int64_t channel;  ///< of C, a multiple of N
  std::int64_t index;    ///< row C + channel
  std::int64_t count;    ///< elements from there to the end of the row, >= 1
};

/// Thread i calls f for the i-th pack of N elements of (R, C), row by row, and for every (threads of the grid)-th after it.
template <int N, class F>
__global__ void call_for_each_pack(std::int64_t R, std::int64_t C, F f)
{
  const std::int64_t packs = divided_up(C, N);
  for (std::int64_t i = thread_number(); i < R * packs; i += thread_count()) {
    const std::int64_t row = R == 1 ? 0 : i / packs, channel = (i - row * packs) * N;
    f(PackPlace{row, channel, row * C + channel, C - channel});
  }
}

/// Calls f(PackPlace) once for every N elements of (R, C).
/// @param f  a lambda that begins with `[=] __device__`.
template <int N, class F>
void for_each_pack(cudaStream_t stream, std::int64_t R, std::int64_t C, F f,
                   SourceLocation where = SourceLocation::current())
{
  launch(grid_over(stream, R * divided_up(C, N), where), call_for_each_pack<N, F>, R, C, f);
}

/// The factors of dropout on an activation (R, C).
class RowDropout {
 public:
  /// @param dropout  rate, key and rows.
  explicit RowDropout(const Dropout& dropout)
      : mask_(dropout), tokens_(dropout.rows.tokens.count), active_(dropout.active())
  {
  }
  /// Multiplies the elements of a pack by theirs.
  template <int N>
  __device__ void apply(Pack<N>& pack, const PackPlace& place) const
  {
    if (!active_) return;
    for (int i = 0; i < N; i += 4) {
      const std::array<double, 4> factors =
          mask_.factors(place.row / tokens_, place.row % tokens_, 0, place.channel + i);
      for (int j = 0; j < 4; ++j) pack.at[i + j] *= static_cast<float>(factors[static_cast<std::size_t>(j)]);
    }
  }

 private:
  DropoutMask mask_;
  std::int64_t tokens_;
  bool active_;
};

}  // namespace rankwise
