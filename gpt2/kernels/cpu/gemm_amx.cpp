#include "gpt2/kernels/cpu/gemm_amx.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <omp.h>
#include <type_traits>

#include "common/base/error.hpp"
#include "gpt2/kernels/cpu/vector_math.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <unistd.h>

#include <sys/syscall.h>
#if defined(__GNUC__) && !defined(__clang__)  // g++ 12 finds variables without a value in its own immintrin.h
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#define RANKWISE_AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))
#endif

namespace rankwise {

#ifdef RANKWISE_AMX

namespace {

// A tile of a factor covers 16 of its own rows or columns and 32 terms of the sums. Its 1,024 bytes are stored as the
// instruction wants them, 16 vectors of 16 pairs of neighbouring terms: of the left factor one vector for each row, of the
// right factor one for each pair of terms, with its 16 columns.
constexpr std::int64_t side = 16, tile_terms = 32, tile_elements = side * tile_terms, tile_sums = side * side;

// A pass over the terms computes 2 x 2 tiles of out from a strip of each factor: 32 rows or columns, packed.
constexpr std::int64_t strip = 2 * side;

// Blocks of the factors. A run of 256 terms of a strip of the left factor (16 KiB) stays in the first cache of a
// core while the four strips of a group of the right factor pass by; 512 rows and the 128 columns of a group, with
// 768 terms (0.75 and 0.2 MiB), stay in the second. The sums of a product with more terms lie in between (2 MiB).
constexpr std::int64_t run = 8;  // steps, of 32 terms each
constexpr std::int64_t block_rows = 512, block_terms = 3 * run * tile_terms, group = 4 * strip,
                       block_columns = 8 * group;

constexpr std::int64_t divided_up(std::int64_t size, std::int64_t by)
{
  return (size + by - 1) / by;
}

/// A factor as it is stored, seen from its rows or columns ("own") and its terms.
struct Factor {
  const bf16* first;
  std::int64_t own_step, term_step;  // elements to the next; one of them is 1

  bool terms_are_neighbours() const { return term_step == 1; }
  Factor from(std::int64_t own, std::int64_t term) const
  {
    return {first + own * own_step + term * term_step, own_step, term_step};
  }
};

/// 16 vectors. Their loops are unrolled, so that they stay in registers.
struct Vectors {
  __m512i of[side];  // NOLINT: as a template argument the type would lose its alignment
};

/// 16 x 16 pairs, with rows and columns exchanged.
[[gnu::always_inline]] RANKWISE_AMX inline void transpose(Vectors& v)
{
  Vectors w;
#pragma GCC unroll side
  for (std::size_t i = 0; i < side; i += 2) {
    w.of[i] = _mm512_unpacklo_epi32(v.of[i], v.of[i + 1]);
    w.of[i + 1] = _mm512_unpackhi_epi32(v.of[i], v.of[i + 1]);
  }
#pragma GCC unroll side
  for (std::size_t i = 0; i < side; i += 4) {
    v.of[i] = _mm512_unpacklo_epi64(w.of[i], w.of[i + 2]);
    v.of[i + 1] = _mm512_unpackhi_epi64(w.of[i], w.of[i + 2]);
    v.of[i + 2] = _mm512_unpacklo_epi64(w.of[i + 1], w.of[i + 3]);
    v.of[i + 3] = _mm512_unpackhi_epi64(w.of[i + 1], w.of[i + 3]);
  }
  constexpr int even = 0x88, odd = 0xDD;  // selectors of the even or odd quarters of two vectors
#pragma GCC unroll side
  for (std::size_t i = 0; i < 4; ++i) {
    const __m512i low = _mm512_shuffle_i32x4(v.of[i], v.of[i + 4], even),
                  high = _mm512_shuffle_i32x4(v.of[i], v.of[i + 4], odd);
    const __m512i low2 = _mm512_shuffle_i32x4(v.of[i + 8], v.of[i + 12], even);
    const __m512i high2 = _mm512_shuffle_i32x4(v.of[i + 8], v.of[i + 12], odd);
    w.of[i] = _mm512_shuffle_i32x4(low, low2, even);
    w.of[i + 8] = _mm512_shuffle_i32x4(low, low2, odd);
    w.of[i + 4] = _mm512_shuffle_i32x4(high, high2, even);
    w.of[i + 12] = _mm512_shuffle_i32x4(high, high2, odd);
  }
  v = w;
}

/// Packs a whole tile of the left or right factor whose neighbours are terms, or else rows or columns.
template <bool right, bool terms>
RANKWISE_AMX void pack_tile(bf16* to, const Factor& from)
{
  Vectors v;
#pragma GCC unroll side
  for (std::size_t i = 0; i < side; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    if constexpr (terms) {  // a vector for each row or column
      v.of[i] = _mm512_loadu_si512(from.first + at * from.own_step);
    } else {  // a vector for each pair of terms
      const auto* const even = reinterpret_cast<const __m256i*>(from.first + 2 * at * from.term_step);
      const auto* const odd = reinterpret_cast<const __m256i*>(from.first + (2 * at + 1) * from.term_step);
      v.of[i] = _mm512_or_si512(_mm512_cvtepu16_epi32(_mm256_loadu_si256(even)),
                                _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(odd)), 16));
    }
  }
  if constexpr (terms == right) transpose(v);
#pragma GCC unroll side
  for (std::size_t i = 0; i < side; ++i) _mm512_store_si512(reinterpret_cast<__m512i*>(to) + i, v.of[i]);
}

/// Packs a tile at the edge of a factor: missing elements are zero.
template <bool right>
RANKWISE_AMX void pack_edge(bf16* to, const Factor& from, std::int64_t own, std::int64_t terms)
{
  std::array<bf16, tile_elements> whole{};
  for (std::int64_t i = 0; i < std::min(own, side); ++i)
    for (std::int64_t t = 0; t < std::min(terms, tile_terms); ++t)
      whole[static_cast<std::size_t>(i * tile_terms + t)] = *from.from(i, t).first;
  pack_tile<right, true>(to, {whole.data(), tile_terms, 1});
}

/// Place of packed tile @p t of rows or columns 16 @p i to 16 @p i + 15: strips of a run of terms follow one
/// another.
/// @param across  number of 16 rows or columns, an even number.
constexpr std::int64_t place_of(std::int64_t i, std::int64_t t, std::int64_t across, std::int64_t steps)
{
  const std::int64_t first = t / run * run, length = std::min(run, steps - first);
  return (first * across + i * length + t - first) * tile_elements;
}

/// Packs a block of a factor, in the order in which it is stored.
template <bool right>
RANKWISE_AMX void pack(bf16* to, const Factor& from, std::int64_t own, std::int64_t terms)
{
  const std::int64_t across = divided_up(own, strip) * 2, steps = divided_up(terms, tile_terms);
  const auto pack_one = [&]<bool neighbours>(std::int64_t i, std::int64_t t) RANKWISE_AMX {
    const Factor tile = from.from(i * side, t * tile_terms);
    bf16* const packed = to + place_of(i, t, across, steps);
    if (own >= (i + 1) * side && terms >= (t + 1) * tile_terms)
      pack_tile<right, neighbours>(packed, tile);
    else
      pack_edge<right>(packed, tile, own - i * side, terms - t * tile_terms);
  };
  if (from.terms_are_neighbours()) {
    for (std::int64_t i = 0; i < across; ++i)
      for (std::int64_t t = 0; t < steps; ++t) pack_one.template operator()<true>(i, t);
  } else {
    for (std::int64_t t = 0; t < steps; ++t)
      for (std::int64_t i = 0; i < across; ++i) pack_one.template operator()<false>(i, t);
  }
}

/// Memory in which a thread packs factors and adds up sums.
struct Workspace {
  alignas(64) std::array<bf16, block_rows * block_terms> left;
  alignas(64) std::array<bf16, group * block_terms> right;
  alignas(64) std::array<float, block_rows * block_columns> sums;
};

/// Tells the processor that all 8 tiles have 16 rows of 64 bytes.
RANKWISE_AMX void use_tiles()
{
  struct alignas(64) Shape {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t bytes[16] = {};
    std::uint8_t rows[16] = {};
  } shape;
  std::fill_n(shape.bytes, 8, std::uint16_t{64});
  std::fill_n(shape.rows, 8, std::uint8_t{side});
  _tile_loadconfig(&shape);
}

/// Two tiles of the left factor, one below the other, for each step of 32 terms.
struct LeftStrip {
  const bf16* first;
  std::int64_t below, next_step;  // elements to the tile below, and to those of the next step
  std::int64_t row = 64;          // bytes from one row of a tile to the next
};

/// 2 x 2 tiles of sums.
struct Sums {
  float* first;
  std::int64_t below, beside;  // elements to the tile below, and to the one beside it
  std::int64_t row = 64;       // bytes from one row of a tile to the next
};

/// Adds the products of @p steps packed tiles of each strip to 32 x 32 sums, or sets the sums to them.
RANKWISE_AMX void multiply_strips(const Sums& sums, const LeftStrip& left, const bf16* right, std::int64_t steps,
                                  bool add)
{
  constexpr int row = 64;  // bytes of a packed tile
  if (add) {
    _tile_loadd(0, sums.first, sums.row);
    _tile_loadd(1, sums.first + sums.beside, sums.row);
    _tile_loadd(2, sums.first + sums.below, sums.row);
    _tile_loadd(3, sums.first + sums.below + sums.beside, sums.row);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const bf16* const right2 = right + steps * tile_elements;
  for (std::int64_t s = 0; s < steps; ++s) {
    const bf16 *const upper = left.first + s * left.next_step, *const at = right + s * tile_elements;
    _tile_loadd(4, upper, left.row);
    _tile_loadd(6, at, row);
    _tile_loadd(7, right2 + s * tile_elements, row);
    _tile_loadd(5, upper + left.below, left.row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums.first, sums.row);
  _tile_stored(1, sums.first + sums.beside, sums.row);
  _tile_stored(2, sums.first + sums.below, sums.row);
  _tile_stored(3, sums.first + sums.below + sums.beside, sums.row);
}

/// A part of the result, from some row and column on.
template <class Out>
struct Result {
  Out* first;
  std::int64_t stride;
  bool accumulate;
  bool past_caches;  // true if whole vectors are written to memory, without reading their lines first
  const bf16* bias;  // bias of its first column, or null

  Result from(std::int64_t row, std::int64_t column) const
  {
    return {first + row * stride + column, stride, accumulate, past_caches,
            bias == nullptr ? nullptr : bias + column};
  }
};

/// 16 numbers at an address.
RANKWISE_AMX inline __m512 load(const float* at, __mmask16 mask)
{
  return _mm512_maskz_loadu_ps(mask, at);
}
RANKWISE_AMX inline __m512 load(const bf16* at, __mmask16 mask)
{
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, at)), 16));
}
RANKWISE_AMX inline void store(float* at, __mmask16 mask, __m512 x)
{
  _mm512_mask_storeu_ps(at, mask, x);
}
RANKWISE_AMX inline void store(bf16* at, __mmask16 mask, __m512 x)
{
  _mm256_mask_storeu_epi16(at, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

/// Writes a whole vector past the caches.
RANKWISE_AMX inline void stream(float* at, __m512 x)
{
  _mm512_stream_ps(at, x);
}
RANKWISE_AMX inline void stream(bf16* at, __m512 x)
{
  _mm256_stream_si256(reinterpret_cast<__m256i*>(at), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

/// Writes up to 32 rows and 128 columns of the result.
template <class Out>
RANKWISE_AMX void write(const Result<Out>& out, const float* sums, std::int64_t rows, std::int64_t columns)
{
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; c += side) {
      const auto mask = static_cast<__mmask16>(columns - c >= side ? 0xFFFF : (1 << (columns - c)) - 1);
      const std::int64_t tile = c / strip * 4 + r / side * 2 + c / side % 2;
      __m512 sum = _mm512_load_ps(sums + tile * tile_sums + r % side * side);
      if (out.bias != nullptr) sum = _mm512_add_ps(sum, load(out.bias + c, mask));
      Out* const to = out.first + r * out.stride + c;
      if (out.accumulate) sum = _mm512_add_ps(load(to, mask), sum);
      const bool aligned = reinterpret_cast<std::uintptr_t>(to) % (side * sizeof(Out)) == 0;
      if (out.past_caches && mask == 0xFFFF && aligned)
        stream(to, sum);
      else
        store(to, mask, sum);
    }
}

/// One block of the result, @p m <= block_rows and @p n columns, from all terms.
template <class Out>
RANKWISE_AMX void multiply_block(const Result<Out>& out, const Factor& a, const Factor& b, std::int64_t m,
                                 std::int64_t n, std::int64_t k, Workspace& work)
{
  const std::int64_t passes = divided_up(k, block_terms);
  const std::int64_t most = divided_up(divided_up(k, passes), tile_terms) * tile_terms;
  const std::int64_t left_across = 2 * divided_up(m, strip);
  for (std::int64_t first = 0; first < k; first += most) {
    const std::int64_t terms = std::min(most, k - first), steps = divided_up(terms, tile_terms);
    pack<false>(work.left.data(), a.from(0, first), m, terms);
    for (std::int64_t j = 0; j < n; j += group) {
      const std::int64_t columns = std::min(group, n - j), right_across = 2 * divided_up(columns, strip);
      pack<true>(work.right.data(), b.from(j, first), columns, terms);
      for (std::int64_t i = 0; i < m; i += strip) {
        float* const sums = work.sums.data() + (passes == 1 ? 0 : j * block_rows + i * group);
        for (std::int64_t t = 0; t < steps; t += run)
          for (std::int64_t s = 0; s < columns; s += strip) {
            const std::int64_t length = std::min(run, steps - t);
            multiply_strips({sums + s * strip, 2 * tile_sums, tile_sums},
                            {work.left.data() + place_of(i / side, t, left_across, steps), length * tile_elements,
                             tile_elements},
                            work.right.data() + place_of(s / side, t, right_across, steps), length, first + t > 0);
          }
        if (first + terms == k) write(out.from(i, j), sums, std::min(strip, m - i), columns);
      }
    }
  }
}

/// True if multiply_in_place() can compute the product: it is in whole strips, and small.
bool fits_in_place(std::int64_t m, std::int64_t n, std::int64_t k, const bf16* bias)
{
  return m % strip == 0 && n % strip == 0 && k % tile_terms == 0 && k <= run * tile_terms && m <= block_rows &&
         n * k <= group * block_terms && bias == nullptr;
}

/// A product of a few tiles, as those of attention: the sums are in the result, and a left factor whose rows are
/// terms is multiplied from where it is.
RANKWISE_AMX void multiply_in_place(const Result<float>& out, const Factor& a, const Factor& b, std::int64_t m,
                                    std::int64_t n, std::int64_t k, Workspace& work)
{
  const std::int64_t steps = k / tile_terms;
  pack<true>(work.right.data(), b, n, k);
  if (!a.terms_are_neighbours()) pack<false>(work.left.data(), a, m, k);
  for (std::int64_t i = 0; i < m; i += strip) {
    const LeftStrip left = a.terms_are_neighbours()
                               ? LeftStrip{a.from(i, 0).first, side * a.own_step, tile_terms, 2 * a.own_step}
                               : LeftStrip{work.left.data() + i * k, steps * tile_elements, tile_elements};
    for (std::int64_t j = 0; j < n; j += strip)
      multiply_strips({out.from(i, j).first, side * out.stride, side, 4 * out.stride}, left,
                      work.right.data() + j * k, steps, out.accumulate);
  }
}

/// The part of the product that one thread computes.
template <class Out>
RANKWISE_AMX void multiply_part(const Result<Out>& out, const Factor& a, const Factor& b, Range rows, Range columns,
                                std::int64_t k)
{
  thread_local const std::unique_ptr<Workspace> work = std::make_unique_for_overwrite<Workspace>();
  use_tiles();
  if constexpr (std::is_same_v<Out, float>)
    if (fits_in_place(rows.count, columns.count, k, out.bias)) {
      multiply_in_place(out.from(rows.first, columns.first), a.from(rows.first, 0), b.from(columns.first, 0),
                        rows.count, columns.count, k, *work);
      _tile_release();
      return;
    }
  // Without sums in between all columns at once.
  const std::int64_t width = k > block_terms ? block_columns : columns.count;
  for (std::int64_t i = 0; i < rows.count; i += block_rows)
    for (std::int64_t j = 0; j < columns.count; j += width) {
      const std::int64_t row = rows.first + i, column = columns.first + j;
      multiply_block(out.from(row, column), a.from(row, 0), b.from(column, 0), std::min(block_rows, rows.count - i),
                     std::min(width, columns.count - j), k, *work);
    }
  if (out.past_caches) _mm_sfence();  // before other threads read the result
  _tile_release();
}

/// Part @p index of @p parts of @p size, in whole strips.
Range part_of(std::int64_t size, std::int64_t parts, std::int64_t index)
{
  const std::int64_t strips = divided_up(size, strip);
  const std::int64_t first = strips * index / parts * strip, end = strips * (index + 1) / parts * strip;
  return {std::min(first, size), std::min(end, size) - std::min(first, size)};
}

}  // namespace

bool amx_multiplies_bf16()
{
  static const bool does = [] {
    constexpr long ask_for_permission = 0x1023, tile_data = 18;     // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    constexpr unsigned amx_bf16 = 1U << 22U, amx_tile = 1U << 24U;  // bits of EDX in CPUID leaf 7
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & amx_bf16) != 0 && (d & amx_tile) != 0;
    return tiles && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bf16") && syscall(SYS_arch_prctl, ask_for_permission, tile_data) == 0;
  }();
  return does;
}

template <class Out>
void multiply_on_tiles(Out* out, std::int64_t out_stride, GemmOperand<bf16> a, GemmOperand<bf16> b, std::int64_t m,
                       std::int64_t n, std::int64_t k, bool accumulate, const bf16* bias)
{
  // Gradients of weights, in f32, are not read before the backward pass ends, and logits are larger than the caches.
  constexpr std::int64_t large = std::is_same_v<Out, float> ? 1 << 20 : 1 << 25;
  const bool past_caches = !accumulate && m * n * static_cast<std::int64_t>(sizeof(Out)) > large;
  const Result<Out> result{out, out_stride, accumulate, past_caches, bias};
  const Factor left{a.first, a.transposed ? 1 : a.stride, a.transposed ? a.stride : 1};
  const Factor right{b.first, b.transposed ? b.stride : 1, b.transposed ? 1 : b.stride};
  if (omp_in_parallel()) {
    multiply_part(result, left, right, {0, m}, {0, n}, k);
    return;
  }
  // Each thread packs what its part needs: of all grids of parts the one with the shortest sides packs least.
  const std::int64_t threads = omp_get_max_threads();
  std::int64_t across = 1;
  for (std::int64_t q = 1; q <= threads; ++q)
    if (threads % q == 0 && m * q / threads + n / q < m * across / threads + n / across) across = q;
#pragma omp parallel for
  for (std::int64_t i = 0; i < threads; ++i)
    multiply_part(result, left, right, part_of(m, threads / across, i / across), part_of(n, across, i % across), k);
}

#else

bool amx_multiplies_bf16()
{
  return false;
}

template <class Out>
void multiply_on_tiles(Out*, std::int64_t, GemmOperand<bf16>, GemmOperand<bf16>, std::int64_t, std::int64_t,
                       std::int64_t, bool, const bf16*)
{
  throw Error("this processor has no tiles");
}

#endif

template void multiply_on_tiles(float*, std::int64_t, GemmOperand<bf16>, GemmOperand<bf16>, std::int64_t,
                                std::int64_t, std::int64_t, bool, const bf16*);
template void multiply_on_tiles(bf16*, std::int64_t, GemmOperand<bf16>, GemmOperand<bf16>, std::int64_t,
                                std::int64_t, std::int64_t, bool, const bf16*);

}  // namespace rankwise
