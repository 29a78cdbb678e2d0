#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "gpt2/kernels/cuda/attention_layer.hpp"
#include "gpt2/kernels/cuda/tensor_tiles.hpp"

/// @file
/// Building blocks of attention on tensor cores. Each warp has a strip of 16 tokens and computes their products
/// with the tokens that all warps of its block share; those are streamed through shared memory in stages. For .cu
/// files only.

namespace rankwise {

/// Numbers in one access of 16 bytes.
constexpr int piece = 8;

/// True if the numbers of every token may be read or written in pieces.
__device__ inline bool moves_in_pieces(const bf16* first, std::int64_t stride, std::int64_t D)
{
  return reinterpret_cast<std::uintptr_t>(first) % (piece * sizeof(bf16)) == 0 && stride % piece == 0 &&
         D % piece == 0;
}

/// The tokens of one head in memory, to be copied to shared memory, as many as Lines has at a time. All @p threads
/// of the block have the same stream; addresses for the copies are computed once, for all of them.
template <int threads, class Lines>
class TokenStream {
 public:
  /// @param first   channel 0 of the first token.
  /// @param stride  numbers from one token to the next.
  /// @param count   number of tokens.
  /// @param D       channels of the head.
  __device__ TokenStream(const bf16* first, std::int64_t stride, std::int64_t count, std::int64_t D)
      : from_(first + own_token() * stride + own_channel()),
        stride_(stride),
        count_(static_cast<int>(count)),
        channels_(static_cast<int>(D)),
        in_pieces_(moves_in_pieces(first, stride, D))
  {
  }

  /// Begins to copy the next tokens; missing tokens and channels become zero. All threads of the block call it, and then wait as
  /// for any asynchronous copy.
  __device__ void load(Lines& lines)
  {
    if (in_pieces_)
      for (int i = 0; i < Lines::count / tokens_at_once; ++i)
        copy_piece(&lines.at[own_token() + i * tokens_at_once][own_channel()], from_ + i * tokens_at_once * stride_,
                   own_token() + i * tokens_at_once < count_ && own_channel() < channels_);
    else
      load_numbers(lines);
    from_ += Lines::count * stride_;
    count_ -= Lines::count;
  }

 private:
  static constexpr int pieces = Lines::width / piece, tokens_at_once = threads / pieces;
  static_assert(threads % pieces == 0 && Lines::count % tokens_at_once == 0);

  __device__ static int own_token() { return static_cast<int>(threadIdx.x) / pieces; }
  __device__ static int own_channel() { return static_cast<int>(threadIdx.x) % pieces * piece; }

  /// Copies number by number.
  __device__ void load_numbers(Lines& lines) const
  {
    const bf16* const first = from_ - (own_token() * stride_ + own_channel());
    for (int i = static_cast<int>(threadIdx.x); i < Lines::count * Lines::width; i += threads) {
      const int token = i / Lines::width, channel = i % Lines::width;
      lines.at[token][channel] = token < count_ && channel < channels_ ? first[token * stride_ + channel] : bf16();
    }
  }

  const bf16* from_;  // the thread's piece of the first token that it copies next
  std::int64_t stride_;
  int count_, channels_;
  bool in_pieces_;
};

/// Begins to copy tokens to @p lines once; parameters as of TokenStream.
template <int threads, class Lines>
__device__ void load_tokens(Lines& lines, const bf16* first, std::int64_t stride, std::int64_t count,
                            std::int64_t D)
{
  TokenStream<threads, Lines>(first, stride, count, D).load(lines);
}

/// Writes the strip of the calling warp, in lines @p line to @p line + 15, without missing tokens and channels. No
/// other warp has used these lines.
/// @param to      channel 0 of the strip's first token.
/// @param begin   the first channel to write, a multiple of 8.
/// @param end     one after the last channel.
template <class Lines>
__device__ void store_strip(const Lines& lines, int line, bf16* to, std::int64_t stride, std::int64_t count,
                            int begin, int end)
{
  using Piece = Words<piece* static_cast<int>(sizeof(bf16))>;
  const auto tokens = static_cast<int>(std::min<std::int64_t>(count, tile_side));
  __syncwarp();
  if (moves_in_pieces(to, stride, end)) {
    const int pieces = (end - begin) / piece;
    for (int i = lane_number(); i < tokens * pieces; i += warp_threads) {
      const int token = i / pieces, channel = begin + i % pieces * piece;
      *reinterpret_cast<Piece*>(to + token * stride + channel) =
          *reinterpret_cast<const Piece*>(&lines.at[line + token][channel]);
    }
    return;
  }
  for (int token = 0; token < tokens; ++token)
    for (int channel = begin + lane_number(); channel < end; channel += warp_threads)
      to[token * stride + channel] = lines.at[line + token][channel];
}

/// Streams items through two stages. Calls begin() when the copies that the caller has begun are complete; then
/// load(i, stage) and, when its copies are complete, use(i, stage) for i = @p first ... @p end - 1, one after the other.
/// Item i + 1 is copied to one stage while the other one is used. All threads of the block call it.
template <class Begin, class Load, class Use>
__device__ void pass_by(int first, int end, const Begin& begin, const Load& load, const Use& use)
{
  __pipeline_commit();
  if (first < end) load(first, 0);
  __pipeline_commit();
  __pipeline_wait_prior(1);
  __syncthreads();
  begin();
  for (int i = first; i < end; ++i) {
    const int stage = (i - first) % 2;
    if (i + 1 < end) load(i + 1, 1 - stage);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    use(i, stage);
    __syncthreads();
  }
}

/// A strip as left factor over 16 n channels: in registers, or in shared memory if there are too many channels.
template <class Lines, bool in_registers>
class StripFactor {
 public:
  static constexpr int steps = Lines::width / tile_side;  ///< tiles, each 16 channels wide

  /// Uses the strip in the lines of the calling warp.
  __device__ explicit StripFactor(const Lines& lines) : lines_(lines) {}

  /// To be called once, after the lines have been copied.
  __device__ void load()
  {
    if constexpr (in_registers)
      for (int i = 0; i < steps; ++i) tiles_[i] = from_lines(i);
  }
  /// Tile @p i.
  __device__ LeftTile at(int i) const
  {
    if constexpr (in_registers)
      return tiles_[i];
    else
      return from_lines(i);
  }

 private:
  __device__ LeftTile from_lines(int i) const
  {
    return LeftTile::of(lines_, tile_side * warp_number(), tile_side * i);
  }

  const Lines& lines_;
  LeftTile tiles_[in_registers ? steps : 1]{};
};

/// products = the strip's tokens times 16 n of @p tokens, from @p line on, over all channels.
template <int n, class Factor, class Lines>
__device__ void multiply_tokens(ProductTile (&products)[n], const Factor& strip, const Lines& tokens, int line)
{
  for (ProductTile& product : products) product = {};
  for (int i = 0; i < Factor::steps; ++i) {
    const LeftTile left = strip.at(i);
    for (int j = 0; j < n; ++j)
      products[j].add(left, RightTile::of_lines(tokens, line + tile_side * j, tile_side * i));
  }
}

/// sums += weights times 16 of @p tokens, from @p line on, for 16 n channels from @p channel on.
template <int n, class Lines>
__device__ void add_tokens(ProductTile (&sums)[n], const LeftTile& weights, const Lines& tokens, int line,
                           int channel)
{
  for (int c = 0; c < n; ++c) sums[c].add(weights, RightTile::of_columns(tokens, line, channel + tile_side * c));
}

/// Sets the scores of keys that a query does not see to -infinity. Lines are queries from @p query on, columns keys
/// from @p key on.
template <int n>
__device__ void hide_keys(ProductTile (&scores)[n], const AttentionLayer& layer, const AttentionPlace& place,
                          int query, int key)
{
  for (int r = 0; r < 2; ++r) {
    const int line = std::min(query + ProductTile::line(r), static_cast<int>(layer.queries) - 1);
    const int visible = static_cast<int>(layer.visible(place.b, line)) - key;
    for (int j = 0; j < n; ++j)
      for (int h = 0; h < 2; ++h)
        for (int c = 0; c < 2; ++c)
          if (tile_side * j + ProductTile::column(h, c) >= visible)
            scores[j].at[h][r][c] = -std::numeric_limits<float>::infinity();
  }
}

/// hide_keys() with keys as lines and queries as columns. A missing query may have any weight, because it is
/// multiplied by zero.
template <int n>
__device__ void hide_queries(ProductTile (&scores)[n], const AttentionLayer& layer, const AttentionPlace& place,
                             int key, int query)
{
  for (int j = 0; j < n; ++j)
    for (int h = 0; h < 2; ++h)
      for (int c = 0; c < 2; ++c) {
        const int column = query + tile_side * j + ProductTile::column(h, c);
        const int visible = static_cast<int>(layer.visible(place.b, column)) - key;
        for (int r = 0; r < 2; ++r)
          if (ProductTile::line(r) >= visible) scores[j].at[h][r][c] = -std::numeric_limits<float>::infinity();
      }
}

/// A mask of the thread's weights that dropout keeps, for up to four neighbouring tiles: bit 8 j + 4 n + 2 r + c is
/// set if number [n][r][c] of tile j is kept.
struct KeptWeights {
  unsigned bits = 0;  ///< the mask

  /// Multiplies the numbers of tile @p j by their dropout factors.
  __device__ void apply(ProductTile& tile, int j, const AttentionLayer& layer) const
  {
    for (int n = 0; n < 2; ++n)
      for (int r = 0; r < 2; ++r)
        for (int c = 0; c < 2; ++c)
          tile.at[n][r][c] *= (bits >> (8 * j + 4 * n + 2 * r + c) & 1) != 0 ? layer.kept : 0;
  }
};

/// Mask of the kept weights of one query for four neighbouring keys, from @p key: one bit each.
__device__ inline unsigned kept_of_four(const AttentionLayer& layer, const AttentionPlace& place, int query,
                                        int key)
{
  const std::array<double, 4> factors = layer.mask.factors(
      place.b, std::min<std::int64_t>(query, layer.queries - 1), layer.shape.heads.first + place.h, key);
  unsigned bits = 0;
  for (unsigned i = 0; i < 4; ++i) bits |= (factors[i] != 0 ? 1U : 0U) << i;
  return bits;
}

/// The mask of @p tiles tiles whose lines are queries. Two neighbouring threads share the four keys of two lines:
/// each draws random numbers for one line.
__device__ inline KeptWeights kept_by_query(const AttentionLayer& layer, const AttentionPlace& place, int query,
                                            int key, int tiles)
{
  const int side = lane_number() % 2;
  KeptWeights kept;
  for (int half = 0; half < 2 * tiles; ++half) {
    const unsigned mine =
        kept_of_four(layer, place, query + ProductTile::line(side), key + ProductTile::column(half, 0) / 4 * 4);
    const unsigned other = __shfl_xor_sync(whole_warp, mine, 1);
    for (int r = 0; r < 2; ++r) kept.bits |= ((r == side ? mine : other) >> (2 * side) & 3U) << (4 * half + 2 * r);
  }
  return kept;
}

/// The mask of @p tiles tiles whose lines are keys. Four threads have the same two queries, and one key each of two
/// groups of four keys: each thread draws random numbers for one of the four combinations.
__device__ inline KeptWeights kept_by_key(const AttentionLayer& layer, const AttentionPlace& place, int key,
                                          int query, int tiles)
{
  const int lane = lane_number(), member = lane / 4 % 4;
  KeptWeights kept;
  for (int half = 0; half < 2 * tiles; ++half) {
    const unsigned mine = kept_of_four(layer, place, query + ProductTile::column(half, member % 2),
                                       key + ProductTile::line(member / 2) / 4 * 4);
    for (int i = 0; i < 4; ++i) {
      const unsigned theirs = __shfl_sync(whole_warp, mine, lane - 4 * member + 4 * i);
      kept.bits |= (theirs >> member & 1U) << (4 * half + i);
    }
  }
  return kept;
}

/// Number of groups of 64 channels, as a constant.
template <int G>
using ChannelGroups = std::integral_constant<int, G>;
/// True if any weight is dropped, as a constant.
template <bool dropping>
using Dropping = std::bool_constant<dropping>;

/// Calls use(ChannelGroups, Dropping) with the smallest G of 1, 2 and 4 such that 64 G >= D.
template <class Use>
void with_constants(const AttentionLayer& layer, const Use& use)
{
  check(layer.shape.D <= most_channels, "a head has more channels than attention on a GPU supports");
  const auto with_groups = [&](auto groups) {
    if (layer.dropping)
      use(groups, Dropping<true>());
    else
      use(groups, Dropping<false>());
  };
  if (layer.shape.D <= 64)
    with_groups(ChannelGroups<1>());
  else if (layer.shape.D <= 128)
    with_groups(ChannelGroups<2>());
  else
    with_groups(ChannelGroups<4>());
}

}  // namespace rankwise
