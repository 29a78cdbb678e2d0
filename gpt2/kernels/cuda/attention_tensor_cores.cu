#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "gpt2/kernels/cuda/attention_strips.hpp"
#include "gpt2/kernels/cuda/attention_tensor_cores.hpp"

// The scores are computed in tiles and never stored, as in attention.cu, but by tensor cores (Dao 2023,
// FlashAttention-2). Sums are computed in f32. Tensor cores multiply bf16, so the weights are rounded before they
// are multiplied by values or by gradients of outputs, and the gradients of scores before they are multiplied by
// keys or queries. The sum of the softmax is that of the weights before rounding.

namespace rankwise {

namespace {

/// Sizes for up to 64 @p G channels. With many channels blocks and tiles are smaller, so that a strip's sums fit
/// into registers and tiles into shared memory.
template <int G>
struct Sizes {
  static constexpr int channels = 64 * G;             ///< channels of a line
  static constexpr int steps = channels / tile_side;  ///< tiles in a line
  static constexpr int passing = G <= 2 ? 64 : 32;    ///< tokens of each stage
  static constexpr bool in_registers = G <= 2;        ///< true if left factors stay in registers
};

/// A block whose strips are queries.
template <int G>
struct QueryBlock {
  static constexpr int warps = G == 2 ? 8 : 4;          ///< warps, with one strip each
  static constexpr int threads = warp_threads * warps;  ///< threads of the block
  static constexpr int tokens = tile_side * warps;      ///< tokens of all strips
  static constexpr unsigned blocks = G == 1 ? 4 : 1;    ///< wanted number of resident blocks on a multiprocessor
  static constexpr unsigned backward_blocks = G == 1 ? 3 : 1;  ///< the same in the backward pass
  using Strips = TokenLines<tokens, Sizes<G>::channels>;       ///< the tokens of the strips
};

/// The streamed tokens of one stage.
template <int G>
using Passing = TokenLines<Sizes<G>::passing, Sizes<G>::channels>;

/// The streamed keys and values of one stage.
template <int G>
struct KeyStage {
  Passing<G> k, v;
};

/// All keys and values of a head, for a block of queries.
template <int G>
class KeyStream {
 public:
  template <class Tensors>
  __device__ KeyStream(const Tensors& tensors, const AttentionPlace& place, const AttentionLayer& layer)
      : k_(place.in(tensors.k, layer, 0), tensors.k.stride, layer.shape.T, layer.shape.D),
        v_(place.in(tensors.v, layer, 0), tensors.v.stride, layer.shape.T, layer.shape.D)
  {
  }
  /// Begins to copy the next ones. All threads of the block call it.
  __device__ void load(KeyStage<G>& stage)
  {
    k_.load(stage.k);
    v_.load(stage.v);
  }

 private:
  TokenStream<QueryBlock<G>::threads, Passing<G>> k_, v_;
};

/// Number of keys that the queries of a strip see.
struct StripView {
  int some = 0;  ///< keys that the last query sees; 0 if there is no query
  int all = 0;   ///< keys that the first query sees, and therefore all of them

  /// For the strip from query @p query on.
  __device__ StripView(const AttentionLayer& layer, const AttentionPlace& place, std::int64_t query)
  {
    if (query >= layer.queries) return;
    some = static_cast<int>(layer.visible(place.b, std::min(query + tile_side, layer.queries) - 1));
    all = static_cast<int>(layer.visible(place.b, query));
  }
};

/// Reduces with f over the four threads that have one line.
template <class F>
__device__ float reduce_line(float value, F f)
{
  return warp_reduce(value, f, 4);
}

/// Shared memory of attend().
template <int G>
struct ForwardTiles {
  typename QueryBlock<G>::Strips q;
  KeyStage<G> stages[2];
};

/// The outputs of the calling warp's strip of queries.
template <int G, bool dropping>
class ForwardStrip {
 public:
  /// @param query  the strip's first query.
  __device__ ForwardStrip(const ForwardTiles<G>& tiles, const AttentionLayer& layer, const AttentionPlace& place,
                          int query)
      : layer_(layer), place_(place), query_(query), seen_(layer, place, query), q_(tiles.q)
  {
  }
  /// To be called once, after the queries have been copied.
  __device__ void load() { q_.load(); }

  /// Adds the contributions of the keys from @p key on.
  __device__ void add(const KeyStage<G>& stage, int key)
  {
    constexpr int n = Sizes<G>::passing / tile_side;
    if (key >= seen_.some) return;
    KeptWeights kept;
    if constexpr (dropping) kept = kept_by_query(layer_, place_, query_, key, n);
    ProductTile scores[n];
    multiply_tokens(scores, q_, stage.k, 0);
    if (key + Sizes<G>::passing > seen_.all) hide_keys(scores, layer_, place_, query_, key);
    for (int r = 0; r < 2; ++r) {
      const float rescale = exponentiate(scores, r);
      for (ProductTile& output : outputs_) output.scale(r, rescale);
    }
    for (int j = 0; j < n; ++j) {
      if constexpr (dropping) kept.apply(scores[j], j, layer_);
      add_tokens(outputs_, LeftTile::of(scores[j]), stage.v, tile_side * j, 0);
    }
  }

  /// Writes y and log_sum_exp; overwrites the lines of the strip's queries.
  __device__ void store(ForwardTiles<G>& tiles, const ForwardTensors<bf16>& tensors)
  {
    const int line = tile_side * warp_number();
    if (query_ >= layer_.queries) return;
    for (int r = 0; r < 2; ++r) {
      const float sum = reduce_line(sum_[r], Plus());
      for (ProductTile& output : outputs_) output.scale(r, 1 / sum);
      const std::int64_t query = query_ + ProductTile::line(r);
      if (tensors.log_sum_exp != nullptr && query < layer_.queries && lane_number() % 4 == 0)
        tensors.log_sum_exp[place_.number * layer_.queries + query] = layer_.scale * maximum_[r] + std::log(sum);
    }
    for (int c = 0; c < Sizes<G>::steps; ++c) outputs_[c].store(tiles.q, line, tile_side * c);
    store_strip(tiles.q, line, place_.in(tensors.y, layer_, query_), tensors.y.stride, layer_.queries - query_, 0,
                static_cast<int>(layer_.shape.D));
  }

 private:
  /// Replaces the scores of lines @p r by weights, exp(scale (score - maximum)).
  /// @return  the factor that rescales earlier outputs to the new maximum.
  template <int n>
  __device__ float exponentiate(ProductTile (&scores)[n], int r)
  {
    float largest = maximum_[r], more = 0;
    for (const ProductTile& tile : scores)
      for (int h = 0; h < 2; ++h)
        for (const float score : tile.at[h][r]) largest = std::fmax(largest, score);
    largest = reduce_line(largest, Larger());
    for (ProductTile& tile : scores)
      for (int h = 0; h < 2; ++h)
        for (float& score : tile.at[h][r])
          more += score = power_of_two(layer_.log2_scale * score - layer_.log2_scale * largest);
    const float rescale = power_of_two(layer_.log2_scale * (maximum_[r] - largest));
    maximum_[r] = largest;
    sum_[r] = sum_[r] * rescale + more;
    return rescale;
  }

  const AttentionLayer& layer_;
  const AttentionPlace& place_;
  int query_;
  StripView seen_;
  StripFactor<typename QueryBlock<G>::Strips, Sizes<G>::in_registers> q_;
  ProductTile outputs_[Sizes<G>::steps]{};
  float maximum_[2] = {-std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()};
  float sum_[2]{};  // sums of this thread's weights
};

/// The outputs of a block of queries.
///
/// Block: one head of one sequence, one strip of its queries per warp, the last queries first, because they have
/// the most keys; keys and values are streamed. Reads q once and, from cache, k and v for each block; writes y: 8 R
/// C bytes.
template <int G, bool dropping>
__global__ void __launch_bounds__(QueryBlock<G>::threads, QueryBlock<G>::blocks)
    attend(const ForwardTensors<bf16> tensors, const AttentionLayer layer)
{
  constexpr int threads = QueryBlock<G>::threads, tokens = QueryBlock<G>::tokens, passing = Sizes<G>::passing;
  auto& tiles = shared_memory<ForwardTiles<G>>();
  const std::int64_t count = divided_up(layer.queries, tokens);
  const AttentionPlace place(layer, count);
  const std::int64_t first = (count - 1 - place.tile) * tokens;
  const std::int64_t seen = layer.visible(place.b, std::min(first + tokens, layer.queries) - 1);
  ForwardStrip<G, dropping> strip(tiles, layer, place, static_cast<int>(first) + tile_side * warp_number());
  load_tokens<threads>(tiles.q, place.in(tensors.q, layer, first), tensors.q.stride, layer.queries - first,
                       layer.shape.D);
  KeyStream<G> keys(tensors, place, layer);
  pass_by(
      0, static_cast<int>(divided_up(seen, passing)), [&] { strip.load(); },
      [&](int, int stage) { keys.load(tiles.stages[stage]); },
      [&](int i, int stage) { strip.add(tiles.stages[stage], i * passing); });
  strip.store(tiles, tensors);
}

/// Shared memory of attention_backward_dq_kernel().
template <int G>
struct QueryGradientTiles {
  typename QueryBlock<G>::Strips q, dy;
  KeyStage<G> stages[2];
};

/// dq of the calling warp's strip of queries.
///
///     forward    score = scale q.k,  weight = exp(score - log_sum_exp),  y = sum over keys of factor weight v
///     backward   dscore = weight (factor dy.v - dy.y),  dq = sum over keys of scale dscore k
template <int G, bool dropping>
class QueryGradientStrip {
 public:
  /// @param query  the strip's first query.
  __device__ QueryGradientStrip(const QueryGradientTiles<G>& tiles, const BackwardTensors<bf16>& tensors,
                                const AttentionLayer& layer, const AttentionPlace& place, int query)
      : layer_(layer), place_(place), query_(query), seen_(layer, place, query), q_(tiles.q), dy_(tiles.dy)
  {
    for (int r = 0; r < 2; ++r) {
      const std::int64_t t = std::min<std::int64_t>(query + ProductTile::line(r), layer.queries - 1);
      log2_sum_[r] = tensors.log_sum_exp[place.number * layer.queries + t] * std::numbers::log2e_v<float>;
      inner_[r] = tensors.inner(place, layer)[t];
    }
  }
  /// To be called once, after queries and gradients of outputs have been copied.
  __device__ void load()
  {
    q_.load();
    dy_.load();
  }

  /// Adds the contributions of the keys from @p key on.
  __device__ void add(const KeyStage<G>& stage, int key)
  {
    constexpr int n = G == 1 ? 2 : 1;  // tiles of scores at a time
    for (int line = 0; line < Sizes<G>::passing; line += tile_side * n) {
      if (key + line >= seen_.some) return;
      KeptWeights kept;
      if constexpr (dropping) kept = kept_by_query(layer_, place_, query_, key + line, n);
      ProductTile scores[n], gradients[n];
      multiply_tokens(scores, q_, stage.k, line);
      multiply_tokens(gradients, dy_, stage.v, line);
      if (key + line + tile_side * n > seen_.all) hide_keys(scores, layer_, place_, query_, key + line);
      for (int j = 0; j < n; ++j) {
        if constexpr (dropping) kept.apply(gradients[j], j, layer_);
        softmax_backward(gradients[j], scores[j]);
        add_tokens(dq_, LeftTile::of(gradients[j]), stage.k, line + tile_side * j, 0);
      }
    }
  }

  /// Writes dq; overwrites the lines of the strip's queries.
  __device__ void store(QueryGradientTiles<G>& tiles, const BackwardTensors<bf16>& tensors)
  {
    const int line = tile_side * warp_number();
    if (query_ >= layer_.queries) return;
    for (int c = 0; c < Sizes<G>::steps; ++c) {
      for (int r = 0; r < 2; ++r) dq_[c].scale(r, layer_.scale);
      dq_[c].store(tiles.q, line, tile_side * c);
    }
    store_strip(tiles.q, line, place_.in(tensors.dq, layer_, query_), tensors.dq.stride, layer_.queries - query_, 0,
                static_cast<int>(layer_.shape.D));
  }

 private:
  /// Replaces gradients of weights by gradients of scores: dscore = weight (dweight - dy.y).
  __device__ void softmax_backward(ProductTile& gradients, const ProductTile& scores) const
  {
    for (int h = 0; h < 2; ++h)
      for (int r = 0; r < 2; ++r)
        for (int c = 0; c < 2; ++c)
          gradients.at[h][r][c] = power_of_two(layer_.log2_scale * scores.at[h][r][c] - log2_sum_[r]) *
                                  (gradients.at[h][r][c] - inner_[r]);
  }

  const AttentionLayer& layer_;
  const AttentionPlace& place_;
  int query_;
  StripView seen_;
  StripFactor<typename QueryBlock<G>::Strips, Sizes<G>::in_registers> q_, dy_;
  ProductTile dq_[Sizes<G>::steps]{};
  float log2_sum_[2], inner_[2];
};

/// dq of a block of queries.
///
/// Blocks and warps as in attend(). Reads q and dy once and, from cache, k and v for each block; writes dq:
/// 10 R C bytes.
template <int G, bool dropping>
__global__ void __launch_bounds__(QueryBlock<G>::threads, QueryBlock<G>::backward_blocks)
    attention_backward_dq_kernel(const BackwardTensors<bf16> tensors, const AttentionLayer layer)
{
  constexpr int threads = QueryBlock<G>::threads, tokens = QueryBlock<G>::tokens, passing = Sizes<G>::passing;
  auto& tiles = shared_memory<QueryGradientTiles<G>>();
  const std::int64_t count = divided_up(layer.queries, tokens), D = layer.shape.D;
  const AttentionPlace place(layer, count);
  const std::int64_t first = (count - 1 - place.tile) * tokens, here = layer.queries - first;
  const std::int64_t seen = layer.visible(place.b, std::min(first + tokens, layer.queries) - 1);
  QueryGradientStrip<G, dropping> strip(tiles, tensors, layer, place,
                                        static_cast<int>(first) + tile_side * warp_number());
  load_tokens<threads>(tiles.q, place.in(tensors.q, layer, first), tensors.q.stride, here, D);
  load_tokens<threads>(tiles.dy, place.in(tensors.dy, layer, first), tensors.dy.stride, here, D);
  KeyStream<G> keys(tensors, place, layer);
  pass_by(
      0, static_cast<int>(divided_up(seen, passing)), [&] { strip.load(); },
      [&](int, int stage) { keys.load(tiles.stages[stage]); },
      [&](int i, int stage) { strip.add(tiles.stages[stage], i * passing); });
  strip.store(tiles, tensors);
}

/// A block whose strips are keys. It has the sums of two
/// gradients; with many channels each block has only some of them.
template <int G>
struct KeyBlock {
  static constexpr int warps = 4;                          ///< warps, with one strip each
  static constexpr int threads = warp_threads * warps;     ///< threads of the block
  static constexpr int tokens = tile_side * warps;         ///< tokens of all strips
  static constexpr unsigned blocks = G == 1 ? 3 : 1;       ///< wanted number of resident blocks on a multiprocessor
  static constexpr bool in_registers = G == 2;             ///< true if left factors stay in registers
  static constexpr int part = 64 * std::min(G, 2);         ///< channels whose gradients a block has
  static constexpr int parts = Sizes<G>::channels / part;  ///< blocks that share their strips
  using Strips = TokenLines<tokens, Sizes<G>::channels>;   ///< the tokens of the strips
};

/// The streamed queries of one stage, with their statistics.
template <int G>
struct QueryStage {
  Passing<G> q, dy;
  float log_sum_exp[Sizes<G>::passing], inner[Sizes<G>::passing];
};

/// All queries of a head from query @p first on, for a block of keys.
template <int G>
class QueryStream {
 public:
  __device__ QueryStream(const BackwardTensors<bf16>& tensors, const AttentionPlace& place,
                         const AttentionLayer& layer, std::int64_t first)
      : q_(place.in(tensors.q, layer, first), tensors.q.stride, layer.queries - first, layer.shape.D),
        dy_(place.in(tensors.dy, layer, first), tensors.dy.stride, layer.queries - first, layer.shape.D),
        number_((sums() ? tensors.log_sum_exp + place.number * layer.queries : tensors.inner(place, layer)) +
                first + own_query()),
        left_(static_cast<int>(layer.queries - first) - own_query())
  {
  }
  /// Begins to copy the next ones; missing ones are zero. All threads of the block call it.
  __device__ void load(QueryStage<G>& stage)
  {
    q_.load(stage.q);
    dy_.load(stage.dy);
    if (threadIdx.x < 2 * passing)
      copy_number(&(sums() ? stage.log_sum_exp : stage.inner)[own_query()], number_, left_ > 0);
    number_ += passing;
    left_ -= passing;
  }

 private:
  static constexpr int passing = Sizes<G>::passing;
  static_assert(2 * passing <= KeyBlock<G>::threads);

  /// True if the thread copies a sum rather than an inner product.
  __device__ static bool sums() { return threadIdx.x < passing; }
  __device__ static int own_query() { return static_cast<int>(threadIdx.x) % passing; }

  TokenStream<KeyBlock<G>::threads, Passing<G>> q_, dy_;
  const float* number_;  // next number that the thread copies
  int left_;             // queries from there on
};

/// Shared memory of attention_backward_dkv_kernel().
template <int G>
struct KeyGradientTiles {
  typename KeyBlock<G>::Strips k, v;
  QueryStage<G> stages[2];
};

/// dk and dv of the calling warp's strip of keys, for the channels of its block.
///
///     backward   dk = sum over queries of scale dscore q,  dv = sum over queries of factor weight dy
template <int G, bool dropping>
class KeyGradientStrip {
 public:
  /// @param key      the strip's first key.
  /// @param channel  the first channel of the block.
  __device__ KeyGradientStrip(const KeyGradientTiles<G>& tiles, const AttentionLayer& layer,
                              const AttentionPlace& place, int key, int channel)
      : layer_(layer), place_(place), key_(key), channel_(channel), k_(tiles.k), v_(tiles.v)
  {
  }
  /// To be called once, after keys and values have been copied.
  __device__ void load()
  {
    k_.load();
    v_.load();
  }

  /// Adds the contributions of the queries from @p query on.
  __device__ void add(const QueryStage<G>& stage, int query)
  {
    constexpr int n = G == 1 ? 2 : 1;  // tiles of scores at a time
    for (int line = 0; line < Sizes<G>::passing; line += tile_side * n) {
      const int first = query + line, end = std::min(first + tile_side * n, static_cast<int>(layer_.queries));
      if (first >= end || layer_.visible(place_.b, end - 1) <= key_) continue;
      KeptWeights kept;
      if constexpr (dropping) kept = kept_by_key(layer_, place_, key_, first, n);
      ProductTile weights[n], gradients[n];
      multiply_tokens(weights, k_, stage.q, line);
      multiply_tokens(gradients, v_, stage.dy, line);
      if (layer_.visible(place_.b, first) < key_ + tile_side) hide_queries(weights, layer_, place_, key_, first);
      for (int j = 0; j < n; ++j) {
        if constexpr (dropping) kept.apply(gradients[j], j, layer_);
        softmax_backward(weights[j], gradients[j], stage, line + tile_side * j);
        if constexpr (dropping) kept.apply(weights[j], j, layer_);
        add_tokens(dv_, LeftTile::of(weights[j]), stage.dy, line + tile_side * j, channel_);
        add_tokens(dk_, LeftTile::of(gradients[j]), stage.q, line + tile_side * j, channel_);
      }
    }
  }

  /// Writes dk and dv; overwrites the lines of the strip's keys and values.
  __device__ void store(KeyGradientTiles<G>& tiles, const BackwardTensors<bf16>& tensors)
  {
    const int line = tile_side * warp_number();
    const std::int64_t count = layer_.shape.T - key_;
    const int end = std::min(static_cast<int>(layer_.shape.D), channel_ + KeyBlock<G>::part);
    if (count <= 0) return;
    for (int c = 0; c < tiles_of_part; ++c) {
      for (int r = 0; r < 2; ++r) dk_[c].scale(r, layer_.scale);
      dk_[c].store(tiles.k, line, channel_ + tile_side * c);
      dv_[c].store(tiles.v, line, channel_ + tile_side * c);
    }
    store_strip(tiles.k, line, place_.in(tensors.dk, layer_, key_), tensors.dk.stride, count, channel_, end);
    store_strip(tiles.v, line, place_.in(tensors.dv, layer_, key_), tensors.dv.stride, count, channel_, end);
  }

 private:
  static constexpr int tiles_of_part = KeyBlock<G>::part / tile_side;

  /// Replaces scores by weights, and gradients of weights by gradients of scores.
  __device__ void softmax_backward(ProductTile& weights, ProductTile& gradients, const QueryStage<G>& stage,
                                   int line) const
  {
    for (int h = 0; h < 2; ++h)
      for (int c = 0; c < 2; ++c) {
        const int t = line + ProductTile::column(h, c);
        const float log2_sum = stage.log_sum_exp[t] * std::numbers::log2e_v<float>, inner = stage.inner[t];
        for (int r = 0; r < 2; ++r) {
          weights.at[h][r][c] = power_of_two(layer_.log2_scale * weights.at[h][r][c] - log2_sum);
          gradients.at[h][r][c] = weights.at[h][r][c] * (gradients.at[h][r][c] - inner);
        }
      }
  }

  const AttentionLayer& layer_;
  const AttentionPlace& place_;
  int key_, channel_;
  StripFactor<typename KeyBlock<G>::Strips, KeyBlock<G>::in_registers> k_, v_;
  ProductTile dk_[tiles_of_part]{}, dv_[tiles_of_part]{};
};

/// dk and dv of a block of keys.
///
/// Block (x, y): one head of one sequence, one strip of its keys per warp, part y of the channels; the queries that
/// see them are streamed. Reads k and v once and, from cache,
/// q and dy for each block; writes dk and dv: 12 R C bytes.
template <int G, bool dropping>
__global__ void __launch_bounds__(KeyBlock<G>::threads, KeyBlock<G>::blocks)
    attention_backward_dkv_kernel(const BackwardTensors<bf16> tensors, const AttentionLayer layer)
{
  constexpr int threads = KeyBlock<G>::threads, tokens = KeyBlock<G>::tokens, passing = Sizes<G>::passing;
  auto& tiles = shared_memory<KeyGradientTiles<G>>();
  const std::int64_t T = layer.shape.T, D = layer.shape.D;
  const AttentionPlace place(layer, divided_up(T, tokens));
  const std::int64_t first = place.tile * tokens;
  const auto channel = static_cast<int>(blockIdx.y) * KeyBlock<G>::part;
  KeyGradientStrip<G, dropping> strip(tiles, layer, place, static_cast<int>(first) + tile_side * warp_number(),
                                      channel);
  load_tokens<threads>(tiles.k, place.in(tensors.k, layer, first), tensors.k.stride, T - first, D);
  load_tokens<threads>(tiles.v, place.in(tensors.v, layer, first), tensors.v.stride, T - first, D);
  int begin = 0;
  const auto end = static_cast<int>(divided_up(T, passing));
  while (begin < end && layer.visible(place.b, std::min<std::int64_t>((begin + 1) * passing, T) - 1) <= first)
    ++begin;
  QueryStream<G> queries(tensors, place, layer, begin * passing);
  pass_by(
      begin, end, [&] { strip.load(); }, [&](int, int stage) { queries.load(tiles.stages[stage]); },
      [&](int i, int stage) { strip.add(tiles.stages[stage], i * passing); });
  strip.store(tiles, tensors);
}

/// A grid of blocks of type Block for @p tokens tokens of @p heads heads.
template <class Block, class Tiles>
Grid blocks_for(cudaStream_t stream, std::int64_t heads, std::int64_t tokens, unsigned parts = 1,
                SourceLocation where = SourceLocation::current())
{
  return {stream, dim3(static_cast<unsigned>(heads * divided_up(tokens, Block::tokens)), parts), Block::threads,
          sizeof(Tiles), where};
}

}  // namespace

void attend_all(cudaStream_t stream, const ForwardTensors<bf16>& tensors, const AttentionLayer& layer)
{
  with_constants(layer, [&]<int G, bool dropping>(ChannelGroups<G>, Dropping<dropping>) {
    const std::int64_t heads = layer.shape.B * layer.shape.heads.count;
    launch(blocks_for<QueryBlock<G>, ForwardTiles<G>>(stream, heads, layer.queries), attend<G, dropping>, tensors,
           layer);
  });
}

void launch_attention_backward(cudaStream_t stream, const BackwardTensors<bf16>& tensors,
                               const AttentionLayer& layer, std::int64_t heads)
{
  with_constants(layer, [&]<int G, bool dropping>(ChannelGroups<G>, Dropping<dropping>) {
    launch(blocks_for<QueryBlock<G>, QueryGradientTiles<G>>(stream, heads, layer.queries),
           attention_backward_dq_kernel<G, dropping>, tensors, layer);
    launch(blocks_for<KeyBlock<G>, KeyGradientTiles<G>>(stream, heads, layer.queries, KeyBlock<G>::parts),
           attention_backward_dkv_kernel<G, dropping>, tensors, layer);
  });
}

}  // namespace rankwise
