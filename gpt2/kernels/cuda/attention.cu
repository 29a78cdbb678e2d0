#include <algorithm>
#include <cmath>
#include <limits>

#include "gpt2/kernels/cuda/attention_layer.hpp"
#include "gpt2/kernels/cuda/attention_tensor_cores.hpp"
#include "gpt2/kernels/cuda/cuda.hpp"

// The scores of a head are a T x T matrix. It is computed in tiles of queries times keys that stay in registers and
// shared memory, and never stored: the forward pass carries the maximum and the sum of each row's softmax from tile
// to tile (Milakov and Gimelshein 2018; Dao et al. 2022, algorithm 1). The backward pass computes each tile again,
// once for the gradients of queries (attention_backward_dq_kernel) and once for those of keys and values
// (attention_backward_dkv_kernel), so that no two blocks add to the same gradient. Tiles that the mask hides are
// skipped. This file is for f32; attention_tensor_cores.cu is for bf16.

namespace rankwise {

namespace {

/// The online softmax of a thread's rows over the keys so far; the 16 threads of a row have the same values.
template <int n>
struct RunningSoftmax {
  float maximum[n], sum[n];

  __device__ RunningSoftmax()
  {
    for (int i = 0; i < n; ++i) {
      maximum[i] = -std::numeric_limits<float>::infinity();
      sum[i] = 0;
    }
  }
  /// Replaces the thread's scores of row @p i by exp(score - maximum).
  /// @return  the factor that rescales earlier outputs to the new maximum.
  __device__ float add(int i, float (&scores)[n])
  {
    float largest = maximum[i], more = 0;
    for (const float score : scores) largest = std::fmax(largest, score);
    largest = warp_reduce(largest, Larger(), square);
    for (float& score : scores) more += score = std::exp(score - largest);
    const float rescale = std::exp(maximum[i] - largest);
    maximum[i] = largest;
    sum[i] = sum[i] * rescale + warp_reduce(more, Plus(), square);
    return rescale;
  }
};

/// Shared memory of attend().
template <int G>
struct ForwardTiles {
  TokenTile<G> q, k, v;
  ScoreTile<G> weights;
};

/// The outputs of a tile of queries.
///
/// Block: one head of one sequence, one tile of queries, the last tiles first, because they have the most keys; it
/// loops over the tiles of keys. Thread (y, x): scores of queries n y + i and keys n x + j, then channels 4 (x + 16
/// g) + c of those queries' outputs. Reads q once and, from cache, k and v for each tile of queries; writes y: 16 R
/// C bytes.
template <int G>
__global__ void __launch_bounds__(block_threads, TileSize<G>::blocks)
    attend(const ForwardTensors<float> tensors, const AttentionLayer layer)
{
  constexpr int n = TileSize<G>::n;
  constexpr std::int64_t tokens = TileSize<G>::tokens;
  auto& tiles = shared_memory<ForwardTiles<G>>();
  const std::int64_t D = layer.shape.D, T = layer.shape.T, count = divided_up(layer.queries, tokens);
  const AttentionPlace place(layer, count);
  const std::int64_t first = (count - 1 - place.tile) * tokens, queries = layer.queries - first;
  const std::int64_t my_query = first + n * thread_y(), last_query = layer.queries - 1;
  const float scale = layer.scale;
  RunningSoftmax<n> softmax;
  Outputs<G> outputs{};
  tiles.q.load(place.in(tensors.q, layer, first), tensors.q.stride, queries, D);
  const std::int64_t seen = layer.visible(place.b, std::min(first + tokens - 1, last_query));
  for (std::int64_t key = 0; key < seen; key += tokens) {
    tiles.k.load(place.in(tensors.k, layer, key), tensors.k.stride, T - key, D);
    tiles.v.load(place.in(tensors.v, layer, key), tensors.v.stride, T - key, D);
    __syncthreads();
    // score[q, k] = scale q.k over the visible keys; weight = exp(score - maximum), then times the dropout factor.
    Scores<G> scores = Scores<G>::of(tiles.q, tiles.k, layer.fours());
    const std::int64_t my_key = key + n * thread_x();
    for (int i = 0; i < n; ++i) {
      const std::int64_t query = std::min(my_query + i, last_query),
                         visible = layer.visible(place.b, query) - my_key;
      for (int j = 0; j < n; ++j)
        scores.at[i][j] = j < visible ? scale * scores.at[i][j] : -std::numeric_limits<float>::infinity();
      outputs.scale(i, softmax.add(i, scores.at[i]));
      const Numbers<n> factors = factors_of<n>(layer, place, query, my_key);
      for (int j = 0; j < n; ++j) scores.at[i][j] *= factors.at[j];
      scores.store(tiles.weights, i);
    }
    // y[q] += sum over the tile's keys of weight[q, k] v[k]
    __syncwarp();
    outputs.add(tiles.weights, tiles.v);
    __syncthreads();
  }
  for (int i = 0; i < n; ++i) {
    const std::int64_t query = my_query + i;
    if (query > last_query) continue;
    outputs.scale(i, 1 / softmax.sum[i]);
    outputs.store(place.in(tensors.y, layer, query), i, D);
    if (tensors.log_sum_exp != nullptr && thread_x() == 0)
      tensors.log_sum_exp[place.number * layer.queries + query] = softmax.maximum[i] + std::log(softmax.sum[i]);
  }
}

/// The forward pass of all heads.
void attend_all(cudaStream_t stream, const ForwardTensors<float>& tensors, const AttentionLayer& layer)
{
  with_channels(layer.shape.D, [&](auto constant) {
    constexpr int G = decltype(constant)::value;
    const std::int64_t heads = layer.shape.B * layer.shape.heads.count;
    launch(block_for_each_tile<G, ForwardTiles<G>>(stream, heads, layer.queries), attend<G>, tensors, layer);
  });
}

}  // namespace

void CudaKernels::attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                    const AttentionShape& shape, const Dropout& dropout) const
{
  with_gpu_type(y.type(), [&]<class T>(T) {
    attend_all(on_,
               {outputs<T>(y, shape), section<T>(qkv, shape, 0), section<T>(qkv, shape, 1),
                section<T>(qkv, shape, 2), log_sum_exp.data<float>()},
               AttentionLayer(shape, {0, shape.T}, dropout));
  });
}

void CudaKernels::cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                           const AttentionShape& shape, Range tokens) const
{
  append_keys_and_values(on_, cache, qkv, tokens);
  const std::int64_t width = shape.heads.count * shape.D;
  with_gpu_type(y.type(), [&]<class T>(T) {
    T* const keys = cache.data<T>();
    attend_all(on_,
               {outputs<T>(y, shape),
                section<T>(qkv, shape, 0),
                {keys, 2 * width, 0},
                {keys + width, 2 * width, 0},
                nullptr},
               AttentionLayer({1, tokens.end(), shape.heads, shape.D, {}}, tokens, {}));
  });
}

namespace {

/// Shared memory of the two backward kernels.
template <int G>
struct BackwardTiles {
  TokenTile<G> q, dy, k, v;
  ScoreTile<G> scores;
};

/// dq of a tile of queries: dq = sum over keys of scale dscore k.
///
///     forward    score = scale q.k,  weight = exp(score - log_sum_exp),  y = sum over keys of factor weight v
///     backward   dscore = weight (factor dy.v - dy.y)
///
/// Blocks and threads as in attend(). Reads q and dy once and, from cache, k and v for each tile of queries; writes
/// dq: 20 R C bytes.
template <int G>
__global__ void __launch_bounds__(block_threads, TileSize<G>::blocks)
    attention_backward_dq_kernel(const BackwardTensors<float> tensors, const AttentionLayer layer)
{
  constexpr int n = TileSize<G>::n;
  constexpr std::int64_t tokens = TileSize<G>::tokens;
  auto& tiles = shared_memory<BackwardTiles<G>>();
  const std::int64_t D = layer.shape.D, T = layer.shape.T, count = divided_up(T, tokens);
  const AttentionPlace place(layer, count);
  const std::int64_t first = (count - 1 - place.tile) * tokens, my_query = first + n * thread_y();
  const float scale = layer.scale;
  const float *const log_sum_exp = tensors.log_sum_exp + place.number * T, *const inner =
                                                                               tensors.inner(place, layer);
  Outputs<G> dq{};
  tiles.q.load(place.in(tensors.q, layer, first), tensors.q.stride, T - first, D);
  tiles.dy.load(place.in(tensors.dy, layer, first), tensors.dy.stride, T - first, D);
  const std::int64_t seen = layer.visible(place.b, std::min(first + tokens, T) - 1);
  for (std::int64_t key = 0; key < seen; key += tokens) {
    tiles.k.load(place.in(tensors.k, layer, key), tensors.k.stride, T - key, D);
    tiles.v.load(place.in(tensors.v, layer, key), tensors.v.stride, T - key, D);
    __syncthreads();
    Scores<G> scores = Scores<G>::of(tiles.q, tiles.k, layer.fours());
    const Scores<G> dweights = Scores<G>::of(tiles.dy, tiles.v, layer.fours());
    const std::int64_t my_key = key + n * thread_x();
    for (int i = 0; i < n; ++i) {
      const std::int64_t query = std::min(my_query + i, T - 1), visible = layer.visible(place.b, query) - my_key;
      const Numbers<n> factors = factors_of<n>(layer, place, query, my_key);
      for (int j = 0; j < n; ++j) {
        const float weight = j < visible ? std::exp(scale * scores.at[i][j] - log_sum_exp[query]) : 0;
        scores.at[i][j] = weight * (factors.at[j] * dweights.at[i][j] - inner[query]);
      }
      scores.store(tiles.scores, i);
    }
    __syncwarp();
    dq.add(tiles.scores, tiles.k);
    __syncthreads();
  }
  for (int i = 0; i < n; ++i) {
    if (my_query + i >= T) continue;
    dq.scale(i, scale);
    dq.store(place.in(tensors.dq, layer, my_query + i), i, D);
  }
}

/// Replaces a tile of scores, a thread's keys by its queries, by weights after dropout, and the gradients of those
/// weights by gradients of the scores: dscore = weight (factor dweight - dy.y).
template <int G>
__device__ void softmax_backward(Scores<G>& weights, Scores<G>& gradients, const BackwardTensors<float>& tensors,
                                 const AttentionLayer& layer, const AttentionPlace& place, std::int64_t first_key,
                                 std::int64_t first_query)
{
  constexpr int n = TileSize<G>::n;
  const std::int64_t T = layer.shape.T;
  const float scale = layer.scale;
  for (int j = 0; j < n; ++j) {
    const std::int64_t query = std::min(first_query + j, T - 1);
    const std::int64_t visible = first_query + j < T ? layer.visible(place.b, query) - first_key : 0;
    const Numbers<n> factors = factors_of<n>(layer, place, query, first_key);
    const float log_sum_exp = tensors.log_sum_exp[place.number * T + query];
    const float inner = tensors.inner(place, layer)[query];
    for (int i = 0; i < n; ++i) {
      const float weight = i < visible ? std::exp(scale * weights.at[i][j] - log_sum_exp) : 0;
      weights.at[i][j] = weight * factors.at[i];
      gradients.at[i][j] = weight * (factors.at[i] * gradients.at[i][j] - inner);
    }
  }
}

/// dk and dv of a tile of keys: dk = sum over queries of scale dscore q, dv = sum over queries of factor weight dy.
///
/// Block: one head of one sequence, one tile of keys; it loops over the tiles of queries that see them. Thread (y,
/// x): scores of keys n y + i and queries n x + j, then channels 4 (x + 16 g) + c of those keys. Reads k and v once
/// and, from cache, q and dy for each tile of keys; writes dk and dv: 24 R C bytes.
template <int G>
__global__ void __launch_bounds__(block_threads, TileSize<G>::blocks)
    attention_backward_dkv_kernel(const BackwardTensors<float> tensors, const AttentionLayer layer)
{
  constexpr int n = TileSize<G>::n;
  constexpr std::int64_t tokens = TileSize<G>::tokens;
  auto& tiles = shared_memory<BackwardTiles<G>>();
  const std::int64_t D = layer.shape.D, T = layer.shape.T;
  const AttentionPlace place(layer, divided_up(T, tokens));
  const std::int64_t first = place.tile * tokens, my_key = first + n * thread_y();
  Outputs<G> dk{}, dv{};
  tiles.k.load(place.in(tensors.k, layer, first), tensors.k.stride, T - first, D);
  tiles.v.load(place.in(tensors.v, layer, first), tensors.v.stride, T - first, D);
  for (std::int64_t query = 0; query < T; query += tokens) {
    if (layer.visible(place.b, std::min(query + tokens, T) - 1) <= first) continue;
    tiles.q.load(place.in(tensors.q, layer, query), tensors.q.stride, T - query, D);
    tiles.dy.load(place.in(tensors.dy, layer, query), tensors.dy.stride, T - query, D);
    __syncthreads();
    Scores<G> weights = Scores<G>::of(tiles.k, tiles.q, layer.fours());
    Scores<G> gradients = Scores<G>::of(tiles.v, tiles.dy, layer.fours());
    softmax_backward(weights, gradients, tensors, layer, place, my_key, query + n * thread_x());
    for (int i = 0; i < n; ++i) weights.store(tiles.scores, i);
    __syncwarp();
    dv.add(tiles.scores, tiles.dy);
    __syncwarp();
    for (int i = 0; i < n; ++i) gradients.store(tiles.scores, i);
    __syncwarp();
    dk.add(tiles.scores, tiles.q);
    __syncthreads();
  }
  for (int i = 0; i < n; ++i) {
    if (my_key + i >= T) continue;
    dk.scale(i, layer.scale);
    dk.store(place.in(tensors.dk, layer, my_key + i), i, D);
    dv.store(place.in(tensors.dv, layer, my_key + i), i, D);
  }
}

/// The backward pass of @p heads heads from layer.first_head on.
void launch_attention_backward(cudaStream_t stream, const BackwardTensors<float>& tensors,
                               const AttentionLayer& layer, std::int64_t heads)
{
  with_channels(layer.shape.D, [&](auto constant) {
    constexpr int G = decltype(constant)::value;
    const Grid grid = block_for_each_tile<G, BackwardTiles<G>>(stream, heads, layer.queries);
    launch(grid, attention_backward_dq_kernel<G>, tensors, layer);
    launch(grid, attention_backward_dkv_kernel<G>, tensors, layer);
  });
}

/// Threads for each token in multiply_outputs().
constexpr unsigned token_threads = 8;

/// The inner products dy.y. Eight threads: one token of one
/// head, 16 bytes at a time. Reads dy and y: 2 R C elements.
template <class T>
__global__ void __launch_bounds__(block_threads)
    multiply_outputs(const BackwardTensors<T> tensors, const AttentionLayer layer)
{
  constexpr unsigned tokens = block_threads / token_threads;
  constexpr int n = pack_size<T>;
  const AttentionPlace place(layer, divided_up(layer.queries, tokens));
  const std::int64_t t = place.tile * tokens + threadIdx.x / token_threads,
                     D = t < layer.queries ? layer.shape.D : 0;
  const T *const dy = place.in(tensors.dy, layer, t), *const y = place.in(tensors.y, layer, t);
  float sum = 0;
  for (std::int64_t d = threadIdx.x % token_threads * n; d < D; d += token_threads * n) {
    const Pack<n> left = load_pack<n>(dy + d, D - d), right = load_pack<n>(y + d, D - d);
    for (int i = 0; i < n; ++i) sum += left.at[i] * right.at[i];
  }
  sum = warp_reduce(sum, Plus(), token_threads);
  if (D > 0 && threadIdx.x % token_threads == 0) tensors.inner(place, layer)[t] = sum;
}

}  // namespace

void CudaKernels::attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y,
                                     const Tensor& log_sum_exp, const Tensor& qkv, const AttentionShape& shape,
                                     const Dropout& dropout) const
{
  const std::int64_t heads = shape.B * shape.heads.count, heads_at_a_time = scratch_.tensor().elements() / shape.T;
  check(heads_at_a_time > 0, "the sequence has more tokens than the scratch memory of kernels holds");
  AttentionLayer layer(shape, {0, shape.T}, dropout);
  with_gpu_type(dqkv.type(), [&]<class T>(T) {
    const BackwardTensors<T> tensors{section<T>(dqkv, shape, 0), section<T>(dqkv, shape, 1),
                                     section<T>(dqkv, shape, 2), outputs<T>(dy, shape),
                                     outputs<T>(y, shape),       section<T>(qkv, shape, 0),
                                     section<T>(qkv, shape, 1),  section<T>(qkv, shape, 2),
                                     log_sum_exp.data<float>(),  scratch_.tensor().data<float>()};
    for (; layer.first_head < heads;
         layer.first_head += heads_at_a_time) {  // as many heads at a time as fit in the scratch memory
      const std::int64_t some = std::min(heads_at_a_time, heads - layer.first_head);
      const std::int64_t blocks = some * divided_up(layer.queries, block_threads / token_threads);
      launch({on_, dim3(static_cast<unsigned>(blocks))}, multiply_outputs<T>, tensors, layer);
      launch_attention_backward(on_, tensors, layer, some);
    }
  });
}

}  // namespace rankwise
