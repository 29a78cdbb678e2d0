#pragma once

#include <algorithm>
#include <cstdint>

#include "common/cuda/launch.hpp"
#include "gpt2/kernels/cuda/gpu_types.hpp"
#include "gpt2/kernels/cuda/rounding.hpp"
#include "gpt2/kernels/dropout_mask.hpp"

/// @file
/// Packs: some neighbouring elements per thread, f32 or bf16, with memory accesses of 16 bytes and computation in
/// f32. For .cu files only.

namespace rankwise {

/// N neighbouring elements in registers or in shared memory, as f32.
template <int N>
struct alignas(16) Pack {
  float at[N];  ///< the elements

  /// Adds the elements of another pack.
  __device__ Pack& operator+=(const Pack& other)
  {
    for (int i = 0; i < N; ++i) at[i] += other.at[i];
    return *this;
  }
};

/// Number of elements of type T in one access of 16 bytes: the size of the packs of a kernel for T.
template <class T>
constexpr int pack_size = static_cast<int>(16 / sizeof(T));

/// Words that are moved in one access.
template <int bytes>
struct alignas(bytes) [[gnu::may_alias]] Words {
  std::uint32_t at[bytes / 4];  ///< the words
};

/// The accesses of at most 16 bytes that move N elements of type T.
template <int N, class T>
struct PackAccess {
  static constexpr int bytes = std::min(16, static_cast<int>(N * sizeof(T)));  ///< bytes of one access
  static constexpr int count = static_cast<int>(N * sizeof(T)) / bytes;        ///< number of accesses
  static constexpr int elements = N / count;                                   ///< elements of one access
  using Element = T;                                                           ///< type of the elements
};

/// True if all of a Pack<N> may be read or written at @p memory.
template <int N, class T>
__device__ bool takes_pack(const T* memory, std::int64_t count)
{
  return count >= N && reinterpret_cast<std::uintptr_t>(memory) % PackAccess<N, T>::bytes == 0;
}

/// Converts the elements of @p words to f32 in @p to.
template <int bytes>
__device__ void unpack(float* to, const Words<bytes>& words, float)
{
  for (int i = 0; i < bytes / 4; ++i) to[i] = std::bit_cast<float>(words.at[i]);
}
/// Converts bf16 elements of @p words to f32 in @p to.
template <int bytes>
__device__ void unpack(float* to, const Words<bytes>& words, bf16)
{
  for (int i = 0; i < bytes / 4; ++i) {
    to[2 * i] = lower_of(words.at[i]);
    to[2 * i + 1] = upper_of(words.at[i]);
  }
}
/// Stores elements of @p from in @p words.
template <int bytes>
__device__ void pack_up(Words<bytes>& words, const float* from, float)
{
  for (int i = 0; i < bytes / 4; ++i) words.at[i] = std::bit_cast<std::uint32_t>(from[i]);
}
/// Packs numbers as bf16, rounded.
template <int bytes>
__device__ void pack_up(Words<bytes>& words, const float* from, bf16)
{
  for (int i = 0; i < bytes / 4; ++i) words.at[i] = rounded_pair(from[2 * i], from[2 * i + 1]);
}

/// The first N of the @p count elements at @p from; missing elements are zero.
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

/// A pack as it is in memory: for bf16 half the registers of a Pack.
template <class T>
struct StoredPack {
  static constexpr int N = pack_size<T>;  ///< number of elements

  Words<16> words{};  ///< the elements

  /// The first N of the @p count elements at @p from; missing elements are zero.
  __device__ static StoredPack load(const T* from, std::int64_t count)
  {
    if (takes_pack<N>(from, count)) return {*reinterpret_cast<const Words<16>*>(from)};
    StoredPack stored;
    pack_up(stored.words, load_pack<N>(from, count).at, T());
    return stored;
  }
  /// The elements as f32.
  __device__ Pack<N> unpacked() const
  {
    Pack<N> pack;
    unpack(pack.at, words, T());
    return pack;
  }
};

/// Writes the elements, rounded, to @p to, but at most @p count of them.
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

/// The elements of (R, C) that a thread processes: channels @p channel ... channel + N - 1 of row @p row, without
/// missing ones.
struct PackPlace {
  std::int64_t row;      ///< row, of R
  std::int64_t channel;  ///< first channel, of C, a multiple of N
  std::int64_t index;    ///< row C + channel
  std::int64_t count;    ///< elements from there to the end of the row, >= 1
};

/// n / d for n, d >= 0; in 32 bits, which takes a third of the time, where both fit.
__device__ inline std::int64_t quotient(std::int64_t n, std::int64_t d)
{
  if ((n | d) >> 32 == 0) return static_cast<std::uint32_t>(n) / static_cast<std::uint32_t>(d);
  return n / d;
}

/// Thread i calls f for pack i, i + threads of the grid, ... of N elements of (R, C), counted row by row.
template <int N, class F>
__global__ void call_for_each_pack(std::int64_t R, std::int64_t C, F f)
{
  const std::int64_t packs = divided_up(C, N);
  for (std::int64_t i = thread_number(); i < R * packs; i += thread_count()) {
    const std::int64_t row = R == 1 ? 0 : quotient(i, packs), channel = (i - row * packs) * N;
    f(PackPlace{row, channel, row * C + channel, C - channel});
  }
}

/// Calls f(PackPlace) once for every pack of N elements of (R, C).
/// @param f  a lambda that begins with `[=] __device__`.
template <int N, class F>
void for_each_pack(cudaStream_t stream, std::int64_t R, std::int64_t C, F f,
                   SourceLocation where = SourceLocation::current())
{
  launch(grid_over(stream, R * divided_up(C, N), where), call_for_each_pack<N, F>, R, C, f);
}

/// The dropout factors of an activation (R, C).
class RowDropout {
 public:
  /// @param dropout  rate, key and rows.
  explicit RowDropout(const Dropout& dropout)
      : mask_(dropout), tokens_(dropout.rows.tokens.count), active_(dropout.active())
  {
  }
  /// Multiplies the elements of a pack by their dropout factors.
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
